"""`manyview views`: the sheet of a task, and its video."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image as PillowImage

from manyview.cli.main import main
from manyview.envs import MultiViewEnv, View
from manyview.envs.registration import SUITES, load_suite
from manyview.envs.views import Observation
from manyview.envs.wrappers.faults import FaultKind


class FaultyRobotEnv(MultiViewEnv):
    """Environment with a black front camera, an absent wrist camera and a warning."""

    def __init__(self) -> None:
        super().__init__([View("front", 16, 16), View("wrist", 16, 16)], spaces.Discrete(2))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        warnings.warn("the wrist camera does not answer: check its cable", stacklevel=1)
        return self.observe({"front": np.zeros((16, 16, 3), np.uint8), "wrist": None}), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        return self.observe({"front": np.zeros((16, 16, 3), np.uint8), "wrist": None}), 0.0, False, False, {}


def make_robot() -> gym.Env[Observation, Any]:
    """Return the environment that the command gets by name."""
    return FaultyRobotEnv()


def read_image_size(path: Path) -> tuple[int, int]:
    """Return the width and height of an image file."""
    with PillowImage.open(path) as image:
        image.load()
        return image.size


def test_the_command_writes_a_sheet_and_prints_its_views_and_path(tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    command = [sys.executable, "-m", "manyview", "views", "toy/hidden_goal", "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    column, row, cost, last_line = result.stdout.splitlines()
    assert column.split() == ["column", "20", "x", "20", "x", "1,", *column.split()[6:]]
    assert "brightness" in column
    assert row.startswith("row ")
    assert row.endswith("present 100%")
    assert "ms" in cost
    assert last_line == f"written to {out}"
    assert read_image_size(out)[0] > 6 * 160  # the first observation and five steps


def test_views_are_in_the_order_of_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["views", "toy/hidden_goal", "--out", str(tmp_path / "a.png"), "--views", "row", "column"]
    assert main(arguments) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:2]] == ["row", "column"]


def test_the_same_command_draws_the_same_sheet(tmp_path: Path) -> None:
    sheets = []
    for name in ("a.png", "b.png"):
        assert main(["views", "toy/identity", "--out", str(tmp_path / name), "--steps", "9"]) == 0
        sheets.append((tmp_path / name).read_bytes())
    assert sheets[0] == sheets[1]


def test_a_video_is_written_beside_the_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = tmp_path / "clip.mp4"
    assert main(["views", "toy/identity", "--out", str(tmp_path / "a.png"), "--video", str(video)]) == 0
    assert video.read_bytes()[4:8] == b"ftyp"
    assert capsys.readouterr().out.splitlines()[-1] == f"written to {video}"


def test_faults_are_drawn_below_the_views(tmp_path: Path) -> None:
    for name, options in (("plain.png", []), ("faults.png", ["--faults"])):
        assert main(["views", "toy/identity", "--out", str(tmp_path / name), *options]) == 0
    fault_height = read_image_size(tmp_path / "faults.png")[1] - read_image_size(tmp_path / "plain.png")[1]
    assert fault_height > len(get_args(FaultKind)) * 160


def test_warnings_and_absent_cameras_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "robot.png"
    assert main(["views", "tests.unit.cli.test_views:make_robot", "--out", str(out)]) == 0
    env_warning, black_warning, front_line, wrist_line, *_ = capsys.readouterr().out.splitlines()
    assert env_warning == "warning: the wrist camera does not answer: check its cable"
    assert black_warning.startswith("warning: tests.unit.cli.test_views:make_robot: view 'front' is black")
    assert front_line == "front  16 x 16 x 3, mean brightness 0 of 255, present 100%"
    assert wrist_line == "wrist  16 x 16 x 3, no image, present 0%"


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["dmc/cheetah_run", "--render-quality", "fast"], ["side", "back", "side_foreground"]),
        (["dmc/quadruped_run", "--image-size", "40", "--views", "3", "x"], ["egocentric", "x"]),
        (["procgen/bigfish", "--faults"], ["screen"]),
    ],
)
def test_simulated_tasks_are_drawn_without_warnings(arguments: list[str], names: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "manyview", "views", *arguments, "--out", str(tmp_path / "sheet.png")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.split()[0] for line in result.stdout.splitlines()[: len(names) + 1]] == [*names, "a"]
    assert read_image_size(tmp_path / "sheet.png")[0] > 6 * 160


def test_an_environment_in_the_working_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "my_robot.py").write_text("from manyview.envs.toy import Identity as make_env")
    # The console script starts with -P: without the working directory on the path.
    command = [sys.executable, "-P", "-m", "manyview", "views", "my_robot:make_env", "--out", "robot.png"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "robot.png").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["toy/deepsea"], "did you mean toy/deep_sea"),
        (["toy/identity", "--views", "top"], "unknown camera: expected one of 0 upright, 1 lying"),
        (["toy/identity", "--render-quality", "fast"], "state_stack, got render_quality"),
        (["toy/identity", "--render-scale", "2"], "state_stack, got render_scale"),
        (["toy/identity", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["no.such.module:make"], "cannot import no.such.module:make: expected a module 'no' in"),
    ],
)
def test_invalid_arguments_are_refused_with_a_reason(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sheet.png"
    assert main(["views", *arguments, "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.out == ""
    assert not out.exists()


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["views", "toy/identity", "--out", str(tmp_path / "sheet.nonsense")]) == 2
    assert ".nonsense" in capsys.readouterr().err
    assert main(["views", "toy/identity", "--out", str(tmp_path)]) == 2


@pytest.mark.parametrize("name", [name for name in SUITES if load_suite(name).packages])
def test_a_missing_simulator_names_the_command_that_installs_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = load_suite(name)
    monkeypatch.setattr("manyview.envs.suite.find_spec", lambda _: None)
    assert main(["views", next(iter(suite.tasks)), "--out", str(tmp_path / "sheet.png")]) == 2
    assert suite.install in capsys.readouterr().err


def test_the_output_names_the_available_state_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["views", "toy/told_goal", "--out", str(tmp_path / "views.png")]) == 0
    assert "state vectors on offer (env.state): goal, clock" in capsys.readouterr().out
    assert main(["views", "toy/cue", "--out", str(tmp_path / "views.png")]) == 0
    assert "state vectors" not in capsys.readouterr().out
