"""Environments that end the process, raise, never end an episode or tell nonsense: refused or cut in words."""

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

FAILS = "an environment that raises or exits ends the run with status 1 and one line; the log has the traceback"
NEVER_ENDS = "an environment that never ends an episode: evaluations and videos are cut, and the limit is named"
NONSENSE = "nonsense in an environment's info is refused with field and value, or made harmless"
TASKS = "tests.support.misbehaving_envs"


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def train(folder: RunDir, task: str, *settings: str) -> int:
    return main([*Case(f"{TASKS}:{task}", "drqv2+mem").command(folder.path), "schedule.frames=60", *settings])


def of_kind(folder: RunDir, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(folder.metrics_file) if record["kind"] == kind]


@pytest.mark.attack(FAILS)
@pytest.mark.quality("S11")
@pytest.mark.parametrize(
    ("task", "raised"),
    [
        ("make_exiting_env", "SystemExit: 0"),
        ("make_raising_env", "ValueError: joint 3 is  [31mout of bounds Traceback"),
        ("make_env_raising_generator_exit", "GeneratorExit"),
    ],
)
def test_a_step_that_fails_is_a_line_and_its_traceback_is_in_the_log(
    task: str, raised: str, folder: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, task) == 1
    shown = capsys.readouterr()
    line = f"{TASKS}:{task}: step raised {raised} ("
    assert shown.err.startswith(line)
    assert shown.err.endswith(f". The traceback is in {folder.metrics_file}\n")
    assert "\x1b" not in shown.out + shown.err
    (end,) = of_kind(folder, "end")
    assert (end["state"], end["reason"].startswith(line)) == ("failed", True)
    assert "misbehaving_envs.py" in end["traceback"]


@pytest.mark.attack(FAILS)
@pytest.mark.quality("S11")
@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("ExitingResetEnv", "reset raised SystemExit: 0 ("),
        ("exit_on_construction", "the function raised SystemExit: 0 ("),
        ("raise_on_construction", "the function raised KeyError: 'no licence' ("),
    ],
)
def test_a_task_that_fails_before_the_run_begins_is_a_line(
    task: str, said: str, folder: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(folder, task) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{TASKS}:{task}: {said}")
    assert len(error.splitlines()) == 1
    assert not folder.has_run


@pytest.mark.attack(FAILS)
@pytest.mark.quality("S11")
@pytest.mark.parametrize("how", ["make_exiting_env", "make_raising_env"])
def test_an_evaluation_of_such_a_task_fails_in_a_line(
    how: str, folder: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    train(folder, how)
    capsys.readouterr()
    task = f"{TASKS}:{how}"
    assert main(["evaluate", str(folder.path), "--own-task", task, "--episodes", "9"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{task}: step raised ")
    assert len(error.splitlines()) == 1


@pytest.mark.attack(NEVER_ENDS)
@pytest.mark.quality("S11")
def test_evaluations_and_videos_of_an_episode_without_an_end_are_cut_and_counted(
    folder: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    limits = ("evaluation.max_steps=20", "evaluation.video=true", "evaluation.video_steps=5")
    assert train(folder, "EndlessEnv", *limits) == 0
    evaluations = of_kind(folder, "evaluation")
    assert [(found["returns"], found["lengths"], found["cut"]) for found in evaluations] == [([20.0], [20], 1)] * 2
    warnings = [record["text"] for record in of_kind(folder, "warning")]
    assert ["evaluation.video_steps" in warnings[0], "evaluation.max_steps" in warnings[1]] == [True, True]
    assert len(warnings) == 2  # each once in a run
    video = min(folder.videos_dir.iterdir())
    assert ffmpeg.count_frames_and_secs(str(video))[0] == 6  # the begin, and what each step led to
    capsys.readouterr()
    command = ["evaluate", str(folder.path), "--own-task", f"{TASKS}:EndlessEnv", "--episodes", "2"]
    assert main(command) == 0
    assert "cut          2 episodes after 20 steps (evaluation.max_steps of the run)" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cut"] == 2


@pytest.mark.attack(NONSENSE)
@pytest.mark.quality("S11")
@pytest.mark.parametrize("frames", [0, -1, 0.5, float("nan"), "4", 10**30, MAX_FRAMES + 1, True, None, np.ones(2), [1]])
def test_frames_that_are_no_count_are_refused(frames: Any) -> None:
    with pytest.raises(ContractError, match=r'robot: info\["frames"\]: expected an integer from 1 to 10,000, got '):
        validate_info({"frames": frames}, "robot")


@pytest.mark.attack(NONSENSE)
@pytest.mark.quality("S11")
def test_what_info_says_of_errors_is_text_and_what_is_not_ours_is_left_out() -> None:
    said = {
        "frames": np.uint8(4),
        "physics_error": ValueError("bad\x1b[31m\n"),
        "camera_failures": {"side": RuntimeError("gone")},
        "episode": {"r": np.zeros(2)},
        "final_info": 3,
        "_frames": "x",
        "success": True,
    }
    assert validate_info(said, "robot") == {
        "frames": 4,
        "physics_error": "bad [31m ",
        "camera_failures": {"side": "gone"},
        "success": True,
    }
    assert type(validate_info(said, "robot")["frames"]) is int
    assert validate_info({"physics_error": None}, "robot") == {}
    for field, value in (("camera_failures", 3), ("blind", "no")):
        with pytest.raises(ContractError, match=rf'robot: info\["{field}"\]: expected '):
            validate_info({field: value}, "robot")


@pytest.mark.attack(NONSENSE)
@pytest.mark.quality("S11")
def test_a_run_counts_frames_by_numpy_and_refuses_what_is_no_count_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted, wrong = RunDir(tmp_path / "counted"), RunDir(tmp_path / "wrong")
    assert train(counted, "make_env_with_numpy_frames") == 0
    assert of_kind(counted, "end")[0]["frames"] == 60
    episodes = of_kind(counted, "episode")
    assert episodes
    assert all(found["length_frames"] == 2 * found["length"] for found in episodes)
    capsys.readouterr()
    assert train(wrong, "make_env_with_invalid_frames") == 1
    error = capsys.readouterr().err
    assert 'info["frames"]: expected an integer from 1 to 10,000, got int 10000000000' in error
    assert len(error.splitlines()) == 1
