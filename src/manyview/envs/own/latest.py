"""The newest picture of a camera that takes its time."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

PAUSE_S = 0.001
"""Between two reads: a camera that answers at once must not keep a core busy."""
RETRY_S = 0.05
"""Before a camera that has just failed is asked again."""
CLOSE_S = 1.0
"""How long closing waits for a read that is under way."""


class _Slot:
    """What camera thread and reader share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stopped = threading.Event()
        self.answers = 0
        self.answer: Any = None
        self.broken_by: BaseException | None = None
        """An interrupt or exit in the thread, which is no failure of a camera."""

    def put(self, answer: Any) -> None:
        with self.changed:
            self.answers, self.answer = self.answers + 1, answer
            self.changed.notify_all()


def _keep_reading(read: Callable[[], Any], slot: _Slot) -> None:
    while not slot.stopped.is_set():
        answer: Any
        try:
            picture = read()
            # A copy: a driver may fill the same memory again.
            answer = None if picture is None else np.array(picture)
        except Exception as error:  # whoever takes it raises it there
            answer = error
        except BaseException as error:
            slot.broken_by = error
            slot.put(None)
            return
        slot.put(answer)
        slot.stopped.wait(PAUSE_S if isinstance(answer, np.ndarray) else RETRY_S)


class LatestFrame:
    """Calls `read` in a thread of its own and keeps its newest answer.

    `expect` forgets what came before; `take` waits for what comes after. That a read failed is an answer too.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._slot = _Slot()
        self._expected = 0
        self._thread = threading.Thread(target=_keep_reading, args=(read, self._slot), daemon=True)
        self._thread.start()
        weakref.finalize(self, self._slot.stopped.set)  # nobody closed it

    def expect(self) -> None:
        self._expected = self._slot.answers

    def take(self, *, until_s: float) -> Any:
        """The newest answer; `TimeoutError` if none came until this moment of `time.monotonic`."""
        slot = self._slot
        with slot.changed:
            patience_s = max(0.0, until_s - time.monotonic())
            there = slot.changed.wait_for(lambda: slot.answers > self._expected or slot.broken_by, timeout=patience_s)
            answer = slot.answer
        if slot.broken_by is not None:
            raise slot.broken_by
        if not there:
            raise TimeoutError("no new picture in time")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        """No further read; returns at once."""
        self._slot.stopped.set()

    def close(self) -> None:
        """Stop, and wait for the read that is under way. One that never returns is left behind."""
        self.stop()
        self._thread.join(CLOSE_S)
