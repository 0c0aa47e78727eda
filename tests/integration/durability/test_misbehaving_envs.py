"""Environments that exit, raise, never end an episode or report invalid `info` give clear errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.kills import Case
from manyview.cli.main import main
from manyview.envs.contract import MAX_FRAMES, ContractError, validate_info
from manyview.report.metrics_file import read_records
from manyview.training import RunDir

FAILING_ENV = "an environment that raises or exits ends the run with status 1 and one line; the log has the traceback"
ENDLESS_EPISODE = "an environment that never ends an episode: evaluations and videos are cut, and the limit is named"
INVALID_INFO = "nonsense in an environment's info is refused with field and value, or made harmless"
TASK_MODULE = "tests.support.misbehaving_envs"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def train(run_dir: RunDir, task: str, *settings: str) -> int:
    return main([*Case(f"{TASK_MODULE}:{task}", "drqv2+mem").command(run_dir.path), "schedule.frames=60", *settings])


def list_records(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(run_dir.metrics_file) if record["kind"] == kind]


@pytest.mark.attack(FAILING_ENV)
@pytest.mark.quality("S11")
@pytest.mark.parametrize(
    ("task", "error"),
    [
        ("make_exiting_env", "SystemExit: 0"),
        ("make_raising_env", "ValueError: joint 3 is  [31mout of bounds Traceback"),
        ("make_env_raising_generator_exit", "GeneratorExit"),
    ],
)
def test_a_failing_step_prints_one_line_and_logs_its_traceback(
    task: str, error: str, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(run_dir, task) == 1
    captured = capsys.readouterr()
    line = f"{TASK_MODULE}:{task}: step raised {error} ("
    assert captured.err.startswith(line)
    assert captured.err.endswith(f". The traceback is in {run_dir.metrics_file}\n")
    assert "\x1b" not in captured.out + captured.err
    (end,) = list_records(run_dir, "end")
    assert (end["state"], end["reason"].startswith(line)) == ("failed", True)
    assert "misbehaving_envs.py" in end["traceback"]


@pytest.mark.attack(FAILING_ENV)
@pytest.mark.quality("S11")
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("ExitingResetEnv", "reset raised SystemExit: 0 ("),
        ("exit_on_construction", "the function raised SystemExit: 0 ("),
        ("raise_on_construction", "the function raised KeyError: 'no licence' ("),
    ],
)
def test_a_task_that_fails_before_the_run_prints_one_line(
    task: str, message: str, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(run_dir, task) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{TASK_MODULE}:{task}: {message}")
    assert len(error.splitlines()) == 1
    assert not run_dir.has_run


@pytest.mark.attack(FAILING_ENV)
@pytest.mark.quality("S11")
@pytest.mark.parametrize("name", ["make_exiting_env", "make_raising_env"])
def test_an_evaluation_of_a_failing_task_prints_one_line(
    name: str, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    train(run_dir, name)
    capsys.readouterr()
    task = f"{TASK_MODULE}:{name}"
    assert main(["evaluate", str(run_dir.path), "--own-task", task, "--episodes", "9"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{task}: step raised ")
    assert len(error.splitlines()) == 1


@pytest.mark.attack(ENDLESS_EPISODE)
@pytest.mark.quality("S11")
def test_evaluations_and_videos_of_an_episode_without_an_end_are_cut_and_counted(
    run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    limits = ("evaluation.max_steps=20", "evaluation.video=true", "evaluation.video_steps=5")
    assert train(run_dir, "EndlessEnv", *limits) == 0
    evaluations = list_records(run_dir, "evaluation")
    assert [(entry["returns"], entry["lengths"], entry["cut"]) for entry in evaluations] == [([20.0], [20], 1)] * 2
    warnings = [record["text"] for record in list_records(run_dir, "warning")]
    assert ["evaluation.video_steps" in warnings[0], "evaluation.max_steps" in warnings[1]] == [True, True]
    assert len(warnings) == 2  # one of each per run
    video = min(run_dir.videos_dir.iterdir())
    assert ffmpeg.count_frames_and_secs(str(video))[0] == 6  # the first image and one per step
    capsys.readouterr()
    command = ["evaluate", str(run_dir.path), "--own-task", f"{TASK_MODULE}:EndlessEnv", "--episodes", "2"]
    assert main(command) == 0
    assert "cut          2 episodes after 20 steps (evaluation.max_steps of the run)" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cut"] == 2


@pytest.mark.attack(INVALID_INFO)
@pytest.mark.quality("S11")
@pytest.mark.parametrize("frames", [0, -1, 0.5, float("nan"), "4", 10**30, MAX_FRAMES + 1, True, None, np.ones(2), [1]])
def test_frames_that_are_no_count_are_refused(frames: Any) -> None:
    with pytest.raises(ContractError, match=r'robot: info\["frames"\]: expected an integer from 1 to 10,000, got '):
        validate_info({"frames": frames}, "robot")


@pytest.mark.attack(INVALID_INFO)
@pytest.mark.quality("S11")
def test_errors_in_info_become_text_and_unknown_fields_are_dropped() -> None:
    info = {
        "frames": np.uint8(4),
        "physics_error": ValueError("bad\x1b[31m\n"),
        "camera_failures": {"side": RuntimeError("gone")},
        "episode": {"r": np.zeros(2)},
        "final_info": 3,
        "_frames": "x",
        "success": True,
    }
    assert validate_info(info, "robot") == {
        "frames": 4,
        "physics_error": "bad [31m ",
        "camera_failures": {"side": "gone"},
        "success": True,
    }
    assert type(validate_info(info, "robot")["frames"]) is int
    assert validate_info({"physics_error": None}, "robot") == {}
    for field, value in (("camera_failures", 3), ("blind", "no")):
        with pytest.raises(ContractError, match=rf'robot: info\["{field}"\]: expected '):
            validate_info({field: value}, "robot")


@pytest.mark.attack(INVALID_INFO)
@pytest.mark.quality("S11")
def test_a_run_accepts_numpy_frame_counts_and_rejects_invalid_ones_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valid_run, invalid_run = RunDir(tmp_path / "counted"), RunDir(tmp_path / "wrong")
    assert train(valid_run, "make_env_with_numpy_frames") == 0
    assert list_records(valid_run, "end")[0]["frames"] == 60
    episodes = list_records(valid_run, "episode")
    assert episodes
    assert all(record["length_frames"] == 2 * record["length"] for record in episodes)
    capsys.readouterr()
    assert train(invalid_run, "make_env_with_invalid_frames") == 1
    error = capsys.readouterr().err
    assert 'info["frames"]: expected an integer from 1 to 10,000, got int 10000000000' in error
    assert len(error.splitlines()) == 1
