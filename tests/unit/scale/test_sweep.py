"""Sweeps: what a file means, and what becomes of its runs on Ray when they, or the driver, die."""

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

SHORT = """
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


def written(path: Path, head: str, rest: str = SHORT) -> Path:
    path.write_text(head + rest)
    return path


def test_every_combination_is_a_run_with_the_settings_of_all_and_of_its_variant(tmp_path: Path) -> None:
    file = written(
        tmp_path / "night.toml",
        'tasks = ["toy/identity_continuous", "toy/deep_sea_continuous"]\nmethods = ["drqv2+mem", "sac+none"]\n'
        "seeds = [3, 1]\n",
        SHORT + '[variants.joint]\n"bonus.mem.entropy" = "joint"\n[variants.plain]\n',
    )
    planned = read_sweep(file).plan_runs()
    assert len(planned) == len({one.run_dir for one in planned}) == 16
    first = planned[0]
    assert first.run_dir == Path("night/toy-identity_continuous/drqv2+mem/joint/seed3")
    assert (first.config.bonus.entropy, first.config.schedule.frames) == ("joint", 400)
    assert planned[1].config.bonus.entropy == "marginal"
    assert [one.config.seed for one in planned] == [3] * 8 + [1] * 8


def test_conditions_give_some_runs_a_preset_and_settings_and_later_ones_win(tmp_path: Path) -> None:
    file = written(
        tmp_path / "night.toml",
        'tasks = ["toy/identity_continuous", "toy/deep_sea_continuous"]\nmethods = ["drqv2+mem", "sac+none"]\n',
        SHORT + '[[where]]\nmethods = ["sac+none"]\npreset = "cpu"\n"replay.n_step" = 2\n"schedule.frames" = 800\n'
        '[[where]]\ntasks = ["toy/deep_sea_continuous"]\n"replay.n_step" = 4\n'
        '[variants.long]\n"schedule.frames" = 900\n[variants.short]\n',
    )
    planned = {
        (run.config.task[4:8], run.config.method, run.variant): run.config for run in read_sweep(file).plan_runs()
    }
    shown = {key: (config.preset, config.replay.n_step, config.schedule.frames) for key, config in planned.items()}
    assert shown == {
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
def test_conditions_that_are_wrong_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], condition: str, reason: str
) -> None:
    file = written(tmp_path / "night.toml", f"{OWN}{condition}\n")
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert reason in capsys.readouterr().err


def test_the_sweep_of_the_docs_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "sweeps.md").read_text()
    (tmp_path / "night.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    planned = read_sweep(tmp_path / "night.toml").plan_runs()
    assert f"{len(planned)} runs in runs/night" in page
    assert str(planned[0].run_dir) in page


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
def test_a_file_that_is_wrong_is_refused_before_anything_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str, reason: str
) -> None:
    file = written(tmp_path / "night.toml", head)
    assert main(["sweep", str(file)]) == 2
    assert reason in capsys.readouterr().err


STAYS_INSIDE = pytest.mark.attack("the runs of a sweep stay inside its folder, whatever its names are")
OWN = 'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none"]\n'
NO_NAMES = ["x" * 256, "a\\nb", "a\\u0000b"]


@STAYS_INSIDE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("name", ["../../../x", "/tmp/x", "..", ".", "a/b", *NO_NAMES])  # noqa: S108
def test_no_variant_leads_out_of_the_folder_of_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = written(tmp_path / "night.toml", OWN, f'{SHORT}[variants."{name}"]\n')
    assert main(["sweep", str(file), "--dry-run"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("invalid directory name: expected one name")
    assert shown.err.count("\n") == 1


@STAYS_INSIDE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("name", NO_NAMES)
def test_a_task_that_no_folder_can_be_named_by_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = written(tmp_path / "night.toml", f'tasks = ["{name}:make"]\nmethods = ["drqv2+none"]\n')
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith("invalid directory name: expected one name")


@STAYS_INSIDE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("name", ["../../x", "..", "/x"])
def test_tasks_and_values_of_a_search_are_one_name_each(tmp_path: Path, name: str) -> None:
    search = f'[search]\ntrials = 1\n[search.fields]\n"replay.directory" = ["{name}", "b"]\n'
    sweep = read_sweep(written(tmp_path / "a.toml", OWN, SHORT + search))
    (trial,) = sweep.plan_trial({"replay.directory": name})
    own = read_sweep(written(tmp_path / "b.toml", f'tasks = ["{name}:make"]\nmethods = ["drqv2+none"]\n'))
    (planned,) = own.plan_runs()
    for folder, parts in ((trial.run_dir, 5), (planned.run_dir, 4)):
        assert len(folder.parts) == parts
        assert folder.parts[0] == "night"
        assert ".." not in folder.parts


@STAYS_INSIDE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("value", ["x" * 256, "a\0b"])
def test_values_of_a_search_that_no_folder_can_be_named_by_are_refused(tmp_path: Path, value: str) -> None:
    search = '[search]\ntrials = 1\n[search.fields]\n"replay.directory" = ["b"]\n'
    sweep = read_sweep(written(tmp_path / "night.toml", OWN, SHORT + search))
    with pytest.raises(ValueError, match="invalid directory name"):
        sweep.plan_trial({"replay.directory": value})


def test_two_tasks_of_one_folder_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "night.toml", 'tasks = ["a:b-c", "a-b:c"]\nmethods = ["drqv2+none"]\n')
    with pytest.raises(ValueError, match="two runs in one directory"):
        read_sweep(file).plan_runs()


def test_a_dry_run_lists_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(Path("night.toml"), 'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none", "sac+mem"]\n')
    assert main(["sweep", str(file), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 runs in night: 2 not started")
    assert "night/toy-identity_continuous/sac+mem/seed1" in said


def test_runs_of_an_earlier_version_of_the_file_are_not_taken_for_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(Path("night.toml"), 'tasks = ["toy/identity_continuous"]\nmethods = ["drqv2+none"]\n')
    (planned,) = read_sweep(file).plan_runs()
    RunDir(planned.run_dir).initialize(planned.config, {})
    assert main(["sweep", str(file), "--dry-run"]) == 0
    file.write_text(file.read_text() + '"replay.batch_size" = 3\n')
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert "seed1: the directory holds a run with other settings: replay.batch_size was" in capsys.readouterr().err


def started(folder: Path, file: Path) -> "subprocess.Popen[bytes]":
    """`manyview sweep` in a process of its own; what it says goes into a file."""
    here = Path(__file__).parents[3]
    with (folder / "said.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "manyview", "sweep", str(file)],
            cwd=folder,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(here), "CRASHED": str(folder / "crashed"), "OMP_NUM_THREADS": "1"},
        )


def records(folder: Path, kind: str) -> list[dict[str, object]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


@pytest.mark.long
@pytest.mark.quality("L7")
@pytest.mark.xdist_group("ray")
def test_a_sweep_survives_its_runs_and_its_runs_survive_it(tmp_path: Path) -> None:
    """One run crashes once, one always; the driver is killed in the middle and started again."""
    tasks = [
        "toy/identity_continuous",
        "tests.support.crashing_envs:make_env_crashing_once",
        "tests.support.crashing_envs:make_env_crashing_always",
    ]
    file = written(tmp_path / "night.toml", f'tasks = {json.dumps(tasks)}\nmethods = ["drqv2+none"]\nretries = 1\n')
    whole, once, always = (tmp_path / "night" / re.sub("[:/]", "-", task) / "drqv2+none" / "seed1" for task in tasks)
    driver, deadline_s = started(tmp_path, file), monotonic() + 200
    while not (whole / "checkpoints" / "000000100").exists():
        assert monotonic() < deadline_s, (tmp_path / "said.log").read_text()
        sleep(0.1)
    driver.send_signal(signal.SIGKILL)
    driver.wait(timeout=60)
    assert started(tmp_path, file).wait(timeout=300) == 1

    said = (tmp_path / "said.log").read_text()
    for folder in (whole, once):
        assert records(folder, "end")[-1]["state"] == "finished", said
        assert records(folder, "resume"), "it was begun from scratch"
    assert not records(always, "end")
    (given_up,) = [line for line in said.splitlines() if "given up after 2 attempts" in line]
    assert re.search(r"crashing_envs-make_env_crashing_always.*its process died; see night/.*seed1\.log", given_up)
    assert re.search(r"crashing_envs-make_env_crashing_always.*crashed \(1\), will be resumed", said)
    assert "Last result" not in said  # Tune's own words
    assert len(list((tmp_path / "night").glob(".tune*"))) == 1  # of the driver that was killed
