"""`manyview train`: settings, dry runs, errors and the two displays."""

import json
import re
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from manyview.cli.main import main
from manyview.report.display import LiveDisplay, PlainDisplay, draw_sparkline
from manyview.training import RunDir
from tests.support.runs import make_short_config

TASK = "toy/hidden_goal_continuous"
SHORT_SETTINGS = [
    "schedule.frames=60",
    "schedule.seed_frames=30",
    "replay.batch_size=8",
    "evaluation.every_frames=30",
    "evaluation.episodes=2",
    "evaluation.video=false",
    "logging.every_steps=5",
    "logging.tensorboard=false",
]


def test_a_run_without_a_terminal_prints_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", TASK, "--out", str(tmp_path / "run"), "--set", *SHORT_SETTINGS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{TASK}  drqv2+mem  seed 1  preset minute")
    assert [bool(re.search(r"frames  return \d", line)) for line in lines].count(True) == 3
    assert lines[-4].endswith("60 frames  finished")
    assert lines[-3].startswith("finished at 60 of 60 frames, saved in ")
    assert re.fullmatch(r"return \S+, best \S+ at \d+ frames", lines[-2])
    assert lines[-1].startswith("next: manyview evaluate ")
    assert not any("\x1b" in line for line in lines)


def test_settings_reach_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert (
        main(
            [
                "train",
                TASK,
                "--method",
                "sac+re3",
                "--seed",
                "5",
                "--out",
                str(out),
                "--set",
                *SHORT_SETTINGS,
                "bonus.k=5",
            ]
        )
        == 0
    )
    config = RunDir(out).read_config()
    assert (config.method, config.seed, config.bonus.k, config.replay.batch_size) == ("sac+re3", 5, 5, 8)


def test_flags_of_settings_reach_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ["--replay.batch-size=9", "--env.views", "column", "row", "--no-logging.tensorboard", "--replay.prefetch"]
    settings = [
        setting for setting in SHORT_SETTINGS if not setting.startswith(("replay.batch_size", "logging.tensorboard"))
    ]
    assert main(["train", TASK, *flags, "--out", str(out), "--set", *settings]) == 0
    config = RunDir(out).read_config()
    assert (config.replay.batch_size, config.env.views, config.replay.prefetch) == (9, ("column", "row"), True)
    assert not config.logging.tensorboard


def test_a_saved_config_reproduces_its_run(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    options = ["--method", "sac+re3", "--seed", "3"]
    assert main(["train", TASK, *options, "--out", str(first), "--set", *SHORT_SETTINGS]) == 0
    arguments = ["train", TASK, "--out", str(second), "--config", str(first / "config.json")]
    assert main(arguments) == 0
    assert RunDir(first).read_config() == RunDir(second).read_config()
    losses = [
        [json.loads(line).get("critic_loss") for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (first, second)
    ]
    assert losses[0] == losses[1]


def test_a_dry_run_prints_estimates_and_leaves_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", TASK, "--out", str(out), "--dry-run", "--set", *SHORT_SETTINGS]) == 0
    text = capsys.readouterr().out
    estimates, _, settings = text.partition("\n\n")
    assert "will be refused" not in estimates
    assert json.loads(settings)["replay"]["batch_size"] == 8
    for name in (
        "views",
        "parameters",
        "replay",
        "other memory",
        "free memory",
        "step time",
        "update time",
        "duration",
    ):
        assert re.search(rf"^{name} +\S", estimates, re.MULTILINE), name
    assert not out.exists()


def test_a_dry_run_says_that_the_run_will_be_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    too_large = "replay.capacity=1000000000000"
    assert main(["train", TASK, "--out", str(tmp_path / "run"), "--dry-run", "--set", *SHORT_SETTINGS, too_large]) == 2
    last_line = capsys.readouterr().out.partition("\n\n")[0].splitlines()[-1]
    assert last_line.startswith("will be refused: a replay buffer of 1,000,000,000,000 steps needs ")
    assert re.search(r"and [\d.]+ GB are free: at most [\d,]+ steps fit\. Lower the capacity", last_line)
    cluster_options = ["--actors", "2", "--address", "ray://cluster:10001", "--set", *SHORT_SETTINGS, too_large]
    assert main(["train", TASK, "--out", str(tmp_path / "run"), "--dry-run", *cluster_options]) == 0
    assert "will be refused" not in capsys.readouterr().out  # the memory of the cluster is unknown here
    options_without_actors = ["--address", "ray://cluster:10001", "--set", *SHORT_SETTINGS, too_large]
    assert main(["train", TASK, "--out", str(tmp_path / "run"), "--dry-run", *options_without_actors]) == 2
    assert capsys.readouterr().err.startswith("--address needs actors: ")


def test_a_cluster_that_is_too_small_for_the_learners_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("manyview.scale.cluster.connect", lambda *_, **__: nullcontext())
    cluster = SimpleNamespace(cluster_resources=lambda: {"CPU": 3.0})
    monkeypatch.setattr("manyview.scale.ray_runtime.ray", cluster)
    out, device = tmp_path / "run", ["--device", "cpu"]
    assert (
        main(["train", TASK, "--actors", "1", "--learners", "2", *device, "--out", str(out), "--set", *SHORT_SETTINGS])
        == 2
    )
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "too few CPUs in the cluster: the run needs 4, got 3"
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "dqn+mem"], "unknown agent 'dqn': expected one of drqv2, ppo, sac"),
        (["--method", "drqv2"], "invalid method 'drqv2': expected <agent>+<representation>+<bonus>"),
        (["--method", "drqv2+re3+mem"], "unknown representation 're3'"),
        (["--method", "drqv2+ride"], "bonus=ride learns from rollout data, drqv2 from replay data: expected agent ppo"),
        (["--method", "drqv2+mem", "--bonus", "ride"], "expected agent ppo, got drqv2"),
        (["--preset", "gpu"], "unknown preset 'gpu'"),
        (["--set", "replay.size=3"], "unknown setting replay.size"),
        (["--set", "replay.batch_size=many"], "replay.batch_size must be"),
        (["--set", "replay.batch_size"], "invalid assignment of --set: expected NAME=VALUE"),
        (["--set", "replay.capacity=1000000000000"], "a replay buffer of 1,000,000,000,000 steps needs"),
        (["--set", "schedule.frames=abc"], "schedule.frames must be int, got 'abc'"),
        (["--set", "replay.batch_size=0"], "replay.batch_size: expected at least 1, got 0"),
        (["--set", "agent.std_steps=0"], "agent.std_steps: expected at least 1, got 0"),
        (["--seed", "-1"], "seed: expected at least 0"),
        (["--device", "cuda:77"], "device 'cuda:77' cannot be used here"),
        (
            ["--device", "cdua"],
            "device 'cdua' cannot be used here: expected auto, cpu, cuda or another device type of torch",
        ),
        (["--views", "colum"], "; did you mean column?"),
        (["--config", "nowhere.json"], "nowhere.json"),
        (["--config", __file__], "test_train.py: Extra data"),
        (["--set", "compute.threads=0"], "compute.threads: expected at least 1, got 0"),
        (
            ["--agent", "sac", "--set", "agent.init_temperature=0"],
            "agent.init_temperature: expected more than 0, got 0",
        ),
        (["--bonus", "re3", "--set", "bonus.k=0"], "bonus.k: expected at least 1, got 0"),
        (["--agent", "ppo", "--agent.clip-coef", "-0.2"], "agent.clip_coef: expected more than 0, got -0.2"),
        (["--agent", "ppo", "--agent.discount=1.5"], "agent.discount: expected 0 to 1, got 1.5"),
        (["--method", "ppo+ride", "--set", "bonus.kernel=0"], "bonus.kernel: expected more than 0, got 0"),
        (["--method", "ppo+ride", "--set", "bonus.forward_coef=-1"], "bonus.forward_coef: expected at least 0, got -1"),
        (["--method", "sac+curl", "--set", "representation.tau=5"], "representation.tau: expected 0 to 1, got 5"),
        (["--method", "sac+curl", "--representation.shift-pixels", "-1"], "shift_pixels: expected at least 0, got -1"),
        (["--set", "schedule.random_steps=-5"], "schedule.random_steps: expected at least 0, got -5"),
        (["--set", "env.image_size=-3"], "env.image_size: expected at least 1, got -3"),
        (
            ["--actors", "1", "--set", "scale.deadline_s=NaN"],
            "scale.deadline_s: expected a finite number above 0, got nan",
        ),
        (["--actors", "1", "--set", "scale.reward_low=NaN"], "scale.reward_low: expected at most scale.reward_high"),
        (["--set", "evaluation.episodes=-1"], "evaluation.episodes: expected at least 0, got -1"),
        (["--agent", "ppo", "--set", "agent.batch_size=1"], "agent.batch_size: expected at least 2, got 1"),
        (["--set", "agent.lr=-1"], "agent.lr: expected more than 0, got -1"),
        (["--agent", "sac", "--set", "agent.critic_tau=2"], "agent.critic_tau: expected 0 to 1, got 2"),
        (["--set", "bonus.unit=rollout"], "bonus.unit must be agent_steps or episodes or"),
        (["--set", "env.views=3.5"], "env.views must be a list or None, got 3.5"),
        (["--set", "env.views=[null]"], "env.views must be a list or None, got [None]"),
        (["--replay.size", "3"], "unknown setting replay.size"),
        (["--log.every-steps", "3"], "unknown setting log: expected one of agent, "),
        (["--set", "env.augmented_view=grayscal"], "got 'grayscal'; did you mean grayscale?"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", TASK, "--out", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_a_directory_with_an_invalid_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").touch()
    assert main(["train", TASK, "--out", str(tmp_path)]) == 2
    assert f"{tmp_path / 'config.json'}: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_task_with_discrete_actions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy/deep_sea", "--out", str(tmp_path / "run")]) == 2
    assert "drqv2 expected a Box with one dimension" in capsys.readouterr().err


RECORDS = [
    {"kind": "start", "frames": 0, "steps": 0, "updates": 0, "seconds": 0.0},
    {"kind": "evaluation", "frames": 0, "steps": 0, "updates": 0, "seconds": 1.0, "return": 1.5, "returns": [1.0, 2.0]},
    {"kind": "episode", "frames": 30, "steps": 30, "updates": 1, "seconds": 4.0, "return": 3.25},
    {
        "kind": "train",
        "frames": 40,
        "steps": 40,
        "updates": 10,
        "seconds": 40.0,
        "beta": 0.04,
        "reward_int": 0.5,
        "critic_loss": 0.125,
        "share/row": 0.5,
        "share/column": 0.25,
        "health": "healthy: every view varies.",
    },
    {"kind": "warning", "frames": 41, "steps": 41, "updates": 11, "seconds": 41.0, "text": "update skipped"},
    {"kind": "end", "frames": 60, "steps": 60, "updates": 30, "seconds": 60.0, "state": "finished"},
]


def test_the_panel_shows_progress_return_bonus_losses_and_health(tmp_path: Path) -> None:
    console = Console(force_terminal=True, width=120, record=True, file=StringIO())
    display = LiveDisplay(make_short_config(), RunDir(tmp_path), console)
    for record in RECORDS:
        display.record(record)
    display.close()
    text = console.export_text()
    for expected in (
        "60/60",
        "1.5",
        "3.25",
        "0.04",
        "row 50%",
        "column 25%",
        "critic_loss 0.125",
        "healthy",
        "skipped",
    ):
        assert expected in text, expected


def test_plain_lines_name_speed_and_time_left(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    display = PlainDisplay(make_short_config(), RunDir(tmp_path))
    for record in RECORDS:
        display.record(record)
    display.close()
    text = capsys.readouterr().out
    assert "1 frames/s  0:00:20 left" in text
    assert "warning: update skipped" in text
    assert "r̂ 0.5 " in text


def test_a_bonus_is_shown_before_its_scale(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    display = PlainDisplay(make_short_config(), RunDir(tmp_path))
    display.record({**RECORDS[3], "reward_int": 1e-8, "reward_mean": 0.75})
    assert "r̂ 0.75 " in capsys.readouterr().out


def test_returns_are_drawn_as_a_line_of_bars() -> None:
    assert draw_sparkline([0.0, 5.0, 10.0]) == "▁▅█"
    assert draw_sparkline([3.0]) == "▁"
    assert draw_sparkline([]) == ""
