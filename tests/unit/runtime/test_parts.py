"""Camera feeds, resizing, action limits and the action gate of the runtime."""

from typing import Any

import numpy as np
import pytest

from manyview.runtime import ActionLimits, CapturedFrame, Resize, ViewSpec
from manyview.runtime.action_gate import ActionGate
from manyview.runtime.cameras import CameraFeed
from tests.support.virtual_clock import FakeView, VirtualClock


def open_feed(clock: VirtualClock, read: Any, resize: Resize | None = None) -> CameraFeed:
    feed = CameraFeed(FakeView("front"), read, resize=resize, interval_s=0.01, clock=clock)
    clock.sleep(0.001)
    return feed


def make_image(size: int = 8) -> Any:
    return np.random.default_rng(0).integers(256, size=(size, size, 3), dtype=np.uint8)


def test_the_time_of_capture_is_the_start_of_the_read() -> None:
    clock = VirtualClock()
    start_s = clock.now()

    def read_slowly() -> Any:
        clock.time_s += 0.15
        return make_image()

    frame = open_feed(clock, read_slowly).newest
    assert frame is not None
    assert frame.captured_s == start_s


@pytest.mark.parametrize("ahead_s", [0.001, 1e9, float("nan")])
def test_a_time_of_capture_in_the_future_is_an_error(ahead_s: float) -> None:
    clock = VirtualClock()
    feed = open_feed(clock, lambda: CapturedFrame(make_image(), clock.now() + ahead_s))
    assert feed.newest is None
    assert "invalid time of capture" in str(feed.error)


def test_a_frame_is_a_copy_of_the_memory_of_the_driver() -> None:
    clock, memory = VirtualClock(), make_image()
    feed = open_feed(clock, lambda: memory)
    frame = feed.newest
    memory[:] = 0
    assert frame is not None
    assert (frame.image == make_image()).all()


@pytest.mark.parametrize("size", [(48, 64), (96, 128), (24, 32), (480, 638)])
def test_images_with_the_proportions_of_the_training_are_resized(size: tuple[int, int]) -> None:
    view = ViewSpec("front", 8, 8, 3, (48, 64))
    assert Resize((8,)).apply(np.zeros((*size, 3), np.uint8), view).shape == (8, 8, 3)


@pytest.mark.parametrize("size", [(64, 48), (64, 64), (48, 66), (6, 8)])
def test_images_that_show_another_part_of_the_scene_are_an_error(size: tuple[int, int]) -> None:
    view, image = ViewSpec("front", 8, 8, 3, (48, 64)), np.zeros((*size, 3), np.uint8)
    with pytest.raises(ValueError, match=rf"'front': expected 48 x 64 pixels .*, got {size[0]} x {size[1]}$"):
        Resize((8,)).apply(image, view)
    assert Resize((8,)).apply(image, ViewSpec("front", 8, 8, 3)).shape == (8, 8, 3)  # unknown: any size


def test_images_are_resized_only_if_the_training_did() -> None:
    resized = open_feed(VirtualClock(), lambda: make_image(16), Resize((8,))).newest
    assert resized is not None
    assert resized.image.shape == (8, 8, 3)
    feed = open_feed(VirtualClock(), lambda: make_image(16))
    assert feed.newest is None
    assert "expected 8 x 8 pixels, got 16 x 16" in str(feed.error)


@pytest.mark.parametrize(("action", "expected"), [(1.0, 0.1), (-1.0, -0.1), (0.05, 0.05), (-0.05, -0.05)])
def test_the_change_is_limited_in_both_directions(action: float, expected: float) -> None:
    limits = ActionLimits(max_change_per_s=5.0)
    limited = limits.apply(np.array([action], np.float32), np.zeros(1, np.float32), 0.02)
    assert limited.dtype == np.float32
    assert limited[0] == pytest.approx(expected)


@pytest.mark.parametrize("bound", [0.1, 0.3, 0.7, 1.1, 2.2])
def test_rounding_exceeds_no_bound(bound: float) -> None:
    limits = ActionLimits(low=-bound, high=bound)
    for action in (9.0, -9.0):
        limited = limits.apply(np.array([action], np.float32), np.zeros(1, np.float32), 0.02)
        assert limited.dtype == np.float32
        assert float(limited[0]) == pytest.approx(np.copysign(bound, action))
        assert -bound <= float(limited[0]) <= bound


def test_infinite_limits_are_null_in_a_trace() -> None:
    limits = ActionLimits(low=[-1.0, -np.inf], high=np.inf)
    assert limits.to_plain() == {"low": [-1.0, None], "high": None, "max_change_per_s": None}


def test_the_gate_is_stopped_if_the_safe_action_was_the_last() -> None:
    gate = ActionGate(lambda _: None, np.zeros(1), timeout_s=1.0, clock=VirtualClock())
    gate.send_safe()
    assert gate.is_stopped
    gate.send(np.ones(1))
    assert not gate.is_stopped
