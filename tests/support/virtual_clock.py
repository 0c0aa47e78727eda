"""A clock whose time advances only in `sleep`, and fake cameras and policies."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyview.runtime import CapturedFrame, Resize
from manyview.runtime.clock import Step


class VirtualWorker:
    """Worker that `VirtualClock` runs."""

    def __init__(self, name: str, step: Step, finish: Callable[[], None] | None) -> None:
        self.name, self.step, self.finish = name, step, finish
        self.stopped = self.joined = False

    def stop(self) -> None:
        self.stopped = True

    def join(self, timeout_s: float) -> bool:
        del timeout_s
        if not self.joined and self.finish is not None:
            self.finish()
        self.joined = True
        return True


class VirtualClock:
    """Clock that runs the steps of workers in order of time, within `sleep_until`."""

    def __init__(self, start_s: float = 100.0) -> None:
        self.time_s = start_s
        self.hang_times_s: dict[str, float] = {}
        """Time from which a worker hangs, by worker name."""
        self.workers: list[VirtualWorker] = []
        self._events: list[tuple[float, int, VirtualWorker]] = []
        self._order = count()

    def now(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.sleep_until(self.time_s + seconds)

    def sleep_until(self, time_s: float) -> None:
        while self._events and self._events[0][0] <= time_s:
            event_s, _, worker = heapq.heappop(self._events)
            if worker.stopped or event_s >= self.hang_times_s.get(worker.name, np.inf):
                continue
            self.time_s = max(self.time_s, event_s)
            pause_s = worker.step()
            if pause_s is not None:
                heapq.heappush(self._events, (self.time_s + pause_s, next(self._order), worker))
        self.time_s = max(self.time_s, time_s)

    def jump(self, seconds: float) -> None:
        """Shift the time, also backwards, without running workers.

        Their next steps shift by the same amount.
        """
        self.time_s += seconds
        self._events = [(event_s + seconds, order, worker) for event_s, order, worker in self._events]

    def start_worker(self, name: str, step: Step, finish: Callable[[], None] | None = None) -> VirtualWorker:
        worker = VirtualWorker(name, step, finish)
        self.workers.append(worker)
        heapq.heappush(self._events, (self.time_s, next(self._order), worker))
        return worker


class FakeCamera:
    """Camera at `hz` images per second whose pixel values count the images.

    `faults` maps a kind of fault to its start, in seconds from now.
    """

    def __init__(
        self, clock: VirtualClock, faults: Mapping[str, float] | None = None, *, size: int = 8, hz: float = 30.0
    ) -> None:
        self._clock, self._size, self._hz, self._start_s = clock, size, hz, clock.now()
        self.faults = {kind: clock.now() + start_s for kind, start_s in (faults or {}).items()}
        self.closed = False

    def has_fault(self, kind: str) -> bool:
        return self._clock.now() >= self.faults.get(kind, np.inf)

    def read(self) -> Any:
        if self.has_fault("die"):
            raise OSError("unplugged")
        if self.has_fault("exit"):
            raise SystemExit
        now = self._clock.now()
        if self.has_fault("lag"):
            now = max(self._start_s, now - 1.0)
        number = int((now - self._start_s) * self._hz)
        captured_s = self._start_s + number / self._hz
        if self.has_fault("freeze"):
            number = int((self.faults["freeze"] - self._start_s) * self._hz)
        image = np.full((self._size, self._size, 3), number % 251, np.uint8)
        for kind, invalid_image in {"none": None, "dtype": image.astype(np.float32), "shape": image[..., :2]}.items():
            if self.has_fault(kind):
                return invalid_image
        return CapturedFrame(image, captured_s)

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class FakeView:
    """View of a policy specification."""

    name: str
    height: int = 8
    width: int = 8
    channels: int = 3
    camera_size: None = None


@dataclass(frozen=True)
class FakeVector:
    """State vector of a policy specification."""

    name: str
    size: int


@dataclass(frozen=True)
class FakeSpec:
    """Specification of the inputs of a policy."""

    views: tuple[FakeView, ...] = (FakeView("front"), FakeView("wrist"))
    vectors: tuple[FakeVector, ...] = ()
    resize: Resize | None = field(default_factory=lambda: Resize((8,)))


class FakePolicy:
    """Policy on the means of the views and the sum of the state vectors.

    A masked view counts as -1. An action also depends on the previous observation.
    """

    def __init__(self, spec: FakeSpec | None = None, *, on_act: Callable[[int], None] | None = None) -> None:
        self.spec = spec or FakeSpec()
        self.num_acts = 0
        self._on_act = on_act
        self._previous = np.zeros(3, np.float32)

    def reset(self) -> None:
        self._previous = np.zeros(3, np.float32)

    def act(self, observation: Mapping[str, NDArray[Any] | None]) -> NDArray[np.float32]:
        self.num_acts += 1
        if self._on_act is not None:
            self._on_act(self.num_acts)
        views = [observation[view.name] for view in self.spec.views]
        means = [-1.0 if view is None else float(view.mean()) / 255 for view in views]
        vectors = [np.asarray(observation[vector.name]).sum() for vector in self.spec.vectors]
        new = np.array([means[0], means[-1], sum(vectors)], np.float32)
        action = new + np.float32(0.3) * self._previous
        self._previous = new
        return action
