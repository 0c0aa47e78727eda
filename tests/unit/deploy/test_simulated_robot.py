"""The simulated robot and its example."""

import re
import runpy
import time
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyview
from manyview.deploy.simulated_robot import CameraFault, SimulatedRobot
from manyview.runtime import ActionBounds

EXAMPLE = Path(__file__).parents[3] / "examples" / "simulated_robot.py"
TASK = "toy/hidden_goal_continuous"


def make_robot(*faults: CameraFault, **options: Any) -> SimulatedRobot:
    """Return a simulated robot with two cameras at 100 Hz."""
    options = {"cameras": ("column", "row"), "rate_hz": 100.0, "camera_hz": 100.0, **options}
    return SimulatedRobot(lambda: manyview.make(TASK, frame_stack=1), faults=faults, **options)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("front:freeze@5s", CameraFault("front", "freeze", 5.0)),
        ("front:die@0.5", CameraFault("front", "die", 0.5)),
        ("left wrist:lag@2s-4.5s", CameraFault("left wrist", "lag", 2.0, 4.5)),
    ],
)
def test_faults_are_parsed(text: str, fault: CameraFault) -> None:
    assert CameraFault.parse(text) == fault


def test_the_robot_moves_in_real_time_without_new_actions() -> None:
    robot = make_robot()
    start_steps, start_s = robot.num_steps, time.monotonic()
    time.sleep(0.5)
    rate_hz = (robot.num_steps - start_steps) / (time.monotonic() - start_s)
    robot.close()
    assert 30 < rate_hz < 110
    assert robot.first_action_s == inf


def test_the_safe_action_stands_still_in_the_units_of_the_policy() -> None:
    bounds = ActionBounds(low=(10.0, -2.0), high=(20.0, 4.0))
    robot = make_robot(bounds=bounds)
    idle_action = robot._action
    robot.send_action(robot.safe_action)
    sent_action = robot._action
    robot.close()
    np.testing.assert_allclose(robot.safe_action, [15.0, 1.0])
    np.testing.assert_allclose(sent_action, idle_action, atol=1e-6)


def test_images_differ_by_noise_and_have_their_time_of_capture() -> None:
    robot = make_robot()
    frames = [robot.cameras["row"].read() for _ in range(3)]
    robot.close()
    for frame, other in pairwise(frames):
        assert frame is not None
        assert other is not None
        assert not np.array_equal(np.asarray(frame.image), np.asarray(other.image))
        assert frame.captured_s <= other.captured_s <= time.monotonic()


def test_a_lagging_camera_returns_old_images_with_their_time() -> None:
    robot = make_robot(CameraFault("row", "lag", 0.0, lag_s=0.2))
    robot.send_action(np.zeros(2, np.float32))
    for _ in range(40):
        frame = robot.cameras["row"].read()
    robot.close()
    assert frame is not None
    assert 0.15 < time.monotonic() - frame.captured_s < 0.6


def test_an_error_of_the_environment_reaches_the_control_loop() -> None:
    robot = make_robot()
    robot._action = "not an action"
    time.sleep(0.2)
    with pytest.raises(RuntimeError, match="simulation failed"):
        robot.send_action(np.zeros(2, np.float32))
    robot.close()


def test_the_example_is_short_and_masks_both_cameras(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 80
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    output = capsys.readouterr().out
    assert "masked {'column': 'frozen'}" in output
    assert "masked {'row': 'stale'}" in output
    assert "masked nothing" in output
    assert re.search(r"replay: \d+ actions, 0 differ", output)
