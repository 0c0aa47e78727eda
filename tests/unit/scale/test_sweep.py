"""Sweeps: planned runs, invalid files, and crashes of runs and driver on Ray."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from manyview.cli.main import main
from manyview.scale.sweep import read_sweep
from manyview.training import RunDir

SHORT_SETTINGS = """
preset = "minute"
out = "night"
[set]
"schedule.frames" = 400
"schedule.seed_frames" = 40
"schedule.random_steps" = 40
"evaluation.every_frames" = 200
"evaluation.episodes" = 2
"evaluation.video" = false
"logging.checkpoint_every_frames" = 100
"logging.tensorboard" = false
"""


def write_sweep(path: Path, head: str, rest: str = SHORT_SETTINGS) -> Path:
    """Write a sweep file and return its path."""
    path.write_text(head + rest)
    return path


def test_every_combination_is_a_run_with_common_and_variant_settings(tmp_path: Path) -> None:
    file = write_sweep(
        tmp_path / "night.toml",
        'tasks = ["toy/identity_continuous", "toy/deep_sea_continuous"]\nmethods = ["drqv2+mem", "sac+none"]\n'
        "seeds = [3, 1]\n",
        SHORT_SETTINGS + '[variants.joint]\n"bonus.mem.entropy" = "joint"\n[variants.plain]\n',
    )
    planned_runs = read_sweep(file).plan_runs()
    assert len(planned_runs) == len({run.run_dir for run in planned_runs}) == 16
    first_run = planned_runs[0]
    assert first_run.run_dir == Path("night/toy-identity_continuous/drqv2+mem/joint/seed3")
    assert (first_run.config.bonus.entropy, first_run.config.schedule.frames) == ("joint", 400)
    assert planned_runs[1].config.bonus.entropy == "marginal"
    assert [run.config.seed for run in planned_runs] == [3] * 8 + [1] * 8


def test_conditions_change_preset_and_settings_and_later_ones_win(tmp_path: Path) -> None:
    file = write_sweep(
        tmp_path / "night.toml",
        'tasks = ["toy/identity_continuous", "toy/deep_sea_continuous"]\nmethods = ["drqv2+mem", "sac+none"]\n',
        SHORT_SETTINGS
        + '[[where]]\nmethods = ["sac+none"]\npreset = "cpu"\n"replay.n_step" = 2\n"schedule.frames" = 800\n'
        '[[where]]\ntasks = ["toy/deep_sea_continuous"]\n"replay.n_step" = 4\n'
        '[variants.long]\n"schedule.frames" = 900\n[variants.short]\n',
    )
    configs = {
        (run.config.task[4:8], run.config.method, run.variant): run.config for run in read_sweep(file).plan_runs()
    }
    settings = {key: (config.preset, config.replay.n_step, config.schedule.frames) for key, config in configs.items()}
    assert settings == {
        ("iden", "drqv2+mem", "long"): ("minute", 1, 900),
        ("iden", "drqv2+mem", "short"): ("minute", 1, 400),
        ("iden", "sac+none", "long"): ("cpu", 2, 900),
        ("iden", "sac+none", "short"): ("cpu", 2, 800),
        ("deep", "drqv2+mem", "long"): ("minute", 4, 900),
        ("deep", "drqv2+mem", "short"): ("minute", 4, 400),
        ("deep", "sac+none", "long"): ("cpu", 4, 900),
        ("deep", "sac+none", "short"): ("cpu", 4, 800),
    }


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ('where = ["a"]', "invalid where: expected a table of settings, got 'a'"),
        ("where = 3", "invalid where: expected tables of tasks, methods, a preset and settings, got 3"),
        ('where = [{methods = ["drqv2+non"]}]', "unknown where.methods 'drqv2+non': expected one of drqv2+none; did"),
        ('where = [{tasks = "toy/identity"}]', "invalid where.tasks: expected a list of names"),
        ("where = [{preset = 3}]", "invalid where.preset: expected a name, got 3"),
        ('where = [{"replay.n_steps" = 3}]', "unknown setting replay.n_steps"),
        ("figure = 3", "invalid figure: expected the description of a figure, got 3"),
    ],
)
def test_invalid_conditions_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], condition: str, reason: str
) -> None:
    file = write_sweep(tmp_path / "night.toml", f"{TASK_AND_METHOD}{condition}\n")
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert reason in capsys.readouterr().err


def test_the_sweep_of_the_docs_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "sweeps.md").read_text()
    (tmp_path / "night.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    planned_runs = read_sweep(tmp_path / "night.toml").plan_runs()
    assert f"{len(planned_runs)} runs in runs/night" in page
    assert str(planned_runs[0].run_dir) in page


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ('tasks = ["toy/identity"]\n', "missing sweep field 'methods'"),
        ('tasks = "toy/identity"\nmethods = ["ppo+none"]\n', "tasks must be a list of names"),
        ('tasks = []\nmethods = ["ppo+none"]\n', "tasks must be a non-empty list without duplicates"),
        (
            'tasks = ["toy/identity"]\nmethods = ["ppo+none"]\nseeds = [1, 1]\n',
            "seeds must be a non-empty list without",
        ),
        ('tasks = ["toy/identity"]\nmethods = ["ppo+none"]\nseed = [1]\n', "unknown sweep field 'seed'"),
        ('tasks = ["toy/identity"]\nmethods = ["best"]\n', "invalid method 'best': expected <agent>+"),
        ('tasks = ["toy/identty"]\nmethods = ["ppo+none"]\n', "unknown task 'toy/identty'; did you mean toy/identity"),
        ('tasks = ["toy/identity"]\nmethods = ["ppo+none"]\nmemory_gb = -1\n', "memory_gb must be a number"),
        ('tasks = ["toy/identity"]\nmethods = ["ppo+none"]\ncpus = inf\n', "cpus must be a number"),
        ('tasks = ["toy/identity"]\nmethods = ["ppo+none"]\nretries = nan\n', "retries must be a number"),
        ('tasks = ["toy/identity"]\nmethods = ["ppo+none"]\nvariants = ["a"]\n', "invalid variants: expected a table"),
        ("tasks = [", "Invalid value"),
        ("tasks = " + "[" * 20_000, "nested too deeply"),
    ],
)
def test_an_invalid_file_is_refused_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str, reason: str
) -> None:
    file = write_sweep(tmp_path / "night.toml", head)
    assert main(["sweep", str(file)]) == 2
    assert reason in capsys.readouterr().err


PATH_ESCAPE = pytest.mark.attack("the runs of a sweep stay inside its folder, whatever its names are")
TASK_AND_METHOD = 'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none"]\n'
INVALID_NAMES = ["x" * 256, "a\\nb", "a\\u0000b"]


@PATH_ESCAPE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("name", ["../../../x", "/tmp/x", "..", ".", "a/b", *INVALID_NAMES])  # noqa: S108
def test_variants_with_an_invalid_directory_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = write_sweep(tmp_path / "night.toml", TASK_AND_METHOD, f'{SHORT_SETTINGS}[variants."{name}"]\n')
    assert main(["sweep", str(file), "--dry-run"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("invalid directory name: expected one name")
    assert captured.err.count("\n") == 1


@PATH_ESCAPE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("name", INVALID_NAMES)
def test_tasks_with_an_invalid_directory_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = write_sweep(tmp_path / "night.toml", f'tasks = ["{name}:make"]\nmethods = ["drqv2+none"]\n')
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith("invalid directory name: expected one name")


@PATH_ESCAPE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("name", ["../../x", "..", "/x"])
def test_tasks_and_search_values_are_one_directory_name_each(tmp_path: Path, name: str) -> None:
    search = f'[search]\ntrials = 1\n[search.fields]\n"replay.directory" = ["{name}", "b"]\n'
    search_sweep = read_sweep(write_sweep(tmp_path / "a.toml", TASK_AND_METHOD, SHORT_SETTINGS + search))
    (trial,) = search_sweep.plan_trial({"replay.directory": name})
    task_sweep = read_sweep(write_sweep(tmp_path / "b.toml", f'tasks = ["{name}:make"]\nmethods = ["drqv2+none"]\n'))
    (planned_run,) = task_sweep.plan_runs()
    for run_dir, parts in ((trial.run_dir, 5), (planned_run.run_dir, 4)):
        assert len(run_dir.parts) == parts
        assert run_dir.parts[0] == "night"
        assert ".." not in run_dir.parts


@PATH_ESCAPE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("value", ["x" * 256, "a\0b"])
def test_search_values_with_an_invalid_directory_name_are_refused(tmp_path: Path, value: str) -> None:
    search = '[search]\ntrials = 1\n[search.fields]\n"replay.directory" = ["b"]\n'
    sweep = read_sweep(write_sweep(tmp_path / "night.toml", TASK_AND_METHOD, SHORT_SETTINGS + search))
    with pytest.raises(ValueError, match="invalid directory name"):
        sweep.plan_trial({"replay.directory": value})


def test_two_tasks_with_one_directory_are_refused(tmp_path: Path) -> None:
    file = write_sweep(tmp_path / "night.toml", 'tasks = ["a:b-c", "a-b:c"]\nmethods = ["drqv2+none"]\n')
    with pytest.raises(ValueError, match="two runs in one directory"):
        read_sweep(file).plan_runs()


def test_a_dry_run_lists_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_sweep(Path("night.toml"), 'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none", "sac+mem"]\n')
    assert main(["sweep", str(file), "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("2 runs in night: 2 not started")
    assert "night/toy-identity_continuous/sac+mem/seed1" in output


def test_runs_with_the_settings_of_an_earlier_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_sweep(Path("night.toml"), 'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none"]\n')
    (planned_run,) = read_sweep(file).plan_runs()
    RunDir(planned_run.run_dir).initialize(planned_run.config, {})
    assert main(["sweep", str(file), "--dry-run"]) == 0
    file.write_text(file.read_text() + '"replay.batch_size" = 3\n')
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert "seed1: the directory holds a run with other settings: replay.batch_size was" in capsys.readouterr().err


def start_sweep(directory: Path, file: Path) -> "subprocess.Popen[bytes]":
    """Start `manyview sweep` in a process that logs to `said.log`."""
    repository = Path(__file__).parents[3]
    with (directory / "said.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "manyview", "sweep", str(file)],
            cwd=directory,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "PYTHONPATH": str(repository),
                "CRASHED": str(directory / "crashed"),
                "OMP_NUM_THREADS": "1",
            },
        )


def read_records(run_dir: Path, kind: str) -> list[dict[str, object]]:
    """Return the records of a kind from the metrics file, or none without the file."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines() if (run_dir / "metrics.jsonl").exists() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


@pytest.mark.long
@pytest.mark.quality("L7")
@pytest.mark.xdist_group("ray")
def test_a_sweep_survives_crashes_of_its_runs_and_of_its_driver(tmp_path: Path) -> None:
    """One run crashes once, another always; the driver is killed and started again."""
    tasks = [
        "toy/identity_continuous",
        "tests.support.crashing_envs:make_env_crashing_once",
        "tests.support.crashing_envs:make_env_crashing_always",
    ]
    file = write_sweep(tmp_path / "night.toml", f'tasks = {json.dumps(tasks)}\nmethods = ["drqv2+none"]\nretries = 1\n')
    intact_run, run_crashing_once, run_crashing_always = (
        tmp_path / "night" / re.sub("[:/]", "-", task) / "drqv2+none" / "seed1" for task in tasks
    )
    driver, deadline_s = start_sweep(tmp_path, file), monotonic() + 200
    while not (intact_run / "checkpoints" / "000000100").exists():
        assert monotonic() < deadline_s, (tmp_path / "said.log").read_text()
        sleep(0.1)
    driver.send_signal(signal.SIGKILL)
    driver.wait(timeout=60)
    assert start_sweep(tmp_path, file).wait(timeout=300) == 1

    output = (tmp_path / "said.log").read_text()
    for run_dir in (intact_run, run_crashing_once):
        assert read_records(run_dir, "end")[-1]["state"] == "finished", output
        assert read_records(run_dir, "resume"), "it was begun from scratch"
    assert not read_records(run_crashing_always, "end")
    (error_line,) = [line for line in output.splitlines() if "given up after 2 attempts" in line]
    assert re.search(r"crashing_envs-make_env_crashing_always.*its process died; see night/.*seed1\.log", error_line)
    assert re.search(r"crashing_envs-make_env_crashing_always.*crashed \(1\), will be resumed", output)
    assert "Last result" not in output  # printed by Tune
    assert len(list((tmp_path / "night").glob(".tune*"))) == 1  # of the driver that was killed
