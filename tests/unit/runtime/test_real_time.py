"""The control loop with real threads and the real clock."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyview.runtime import PolicyRunner, read_trace
from tests.support.virtual_clock import FakePolicy, FakeSpec, FakeView

SAFE = np.zeros(3, np.float32)
MAX_AGE_S, PERIOD_S = 0.2, 0.02
SLACK_S = 0.1
"""Tolerance for other work on the machine."""


class Camera:
    """Camera with 30 images per second and a fault that starts at `fault_s`."""

    def __init__(self, fault: str = "", start_s: float = 0.5) -> None:
        self._rng, self._fault = np.random.default_rng(0), fault
        self.fault_s = time.monotonic() + start_s
        self.release = threading.Event()
        self._frozen = self._draw()

    def _draw(self) -> Any:
        return self._rng.integers(256, size=(48, 64, 3), dtype=np.uint8)

    def read(self) -> Any:
        time.sleep(1 / 30)
        fault = self._fault if time.monotonic() >= self.fault_s else ""
        if fault == "die":
            raise OSError("unplugged")
        if fault == "exit":
            raise SystemExit
        if fault == "hang":
            self.release.wait(30)
        if fault == "lag":
            time.sleep(0.5)
        return self._frozen if fault == "freeze" else self._draw()


@pytest.mark.parametrize("fault", ["die", "exit", "hang", "freeze", "lag"])
def test_a_faulty_camera_is_masked_in_time(tmp_path: Path, fault: str) -> None:
    cameras = {"front": Camera(fault), "wrist": Camera()}
    trace, sent = tmp_path / "run.jsonl", list[Any]()
    with PolicyRunner(
        FakePolicy(), cameras=cameras, send_action=sent.append, safe_action=SAFE, trace=trace, close_timeout_s=1.0
    ) as runner:
        summary = runner.run(1.2)
        start_s = time.monotonic()
    assert time.monotonic() - start_s < 1.0 + SLACK_S
    assert runner.hanging == (["front"] if fault == "hang" else [])
    cameras["front"].release.set()
    assert summary.reason == "finished"
    assert (sent[-1] == SAFE).all()
    ticks = read_trace(trace)[1:-1]
    assert len(ticks) > 30
    for tick in ticks:
        assert all(0 <= tick["ages_s"][name] <= MAX_AGE_S for name in tick["frames"])
        if tick["time_s"] > cameras["front"].fault_s + 1 / 30 + MAX_AGE_S + PERIOD_S + SLACK_S and fault != "lag":
            assert "front" in tick["masked"]
    first_s = next(tick["time_s"] for tick in ticks if "front" in tick["masked"])
    assert first_s <= cameras["front"].fault_s + 1 / 30 + MAX_AGE_S + PERIOD_S + SLACK_S


def test_the_watchdog_stops_the_robot_during_a_hanging_policy() -> None:
    sent, times = list[Any](), list[float]()

    def send(action: Any) -> None:
        sent.append(action)
        times.append(time.monotonic())

    policy = FakePolicy(on_act=lambda count: time.sleep(1.0) if count == 10 else None)
    cameras = {"front": Camera(), "wrist": Camera()}
    with PolicyRunner(
        policy, cameras=cameras, send_action=send, safe_action=np.ones(3, np.float32) * 7, watchdog_s=0.2
    ) as runner:
        summary = runner.run(5.0)
    assert summary.reason == "watchdog"
    first_stop = next(index for index, action in enumerate(sent) if (action == 7).all())
    assert times[first_stop] - times[first_stop - 1] < 0.2 * 1.25 + SLACK_S
    assert all((action == 7).all() for action in sent[first_stop:])


def test_large_images_are_resized_in_the_threads_of_the_cameras() -> None:
    threads = set()

    def read() -> Any:
        threads.add(threading.current_thread().name)
        time.sleep(1 / 30)
        return np.random.default_rng().integers(256, size=(480, 640, 3), dtype=np.uint8)

    shapes = list[Any]()
    spec = FakeSpec(views=(FakeView("front"),))
    with PolicyRunner(FakePolicy(spec), cameras={"front": read}, send_action=list, safe_action=SAFE) as runner:  # type: ignore[arg-type]
        runner.run(0.3, on_tick=lambda tick: shapes.extend(frame.image.shape for frame in tick.frames.values()))
    assert set(shapes) == {(8, 8, 3)}
    assert threads == {"camera-front"}
