"""The newest picture of a camera that takes its time."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

READ_INTERVAL_S = 0.001
"""Between two reads: a camera that answers at once must not keep a core busy."""
RETRY_INTERVAL_S = 0.05
"""Before a camera that has just failed is asked again."""
CLOSE_TIMEOUT_S = 1.0
"""How long closing waits for a read that is under way."""


class _Slot:
    """What camera thread and reader share."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.stopped = threading.Event()
        self.num_results = 0
        self.result: Any = None
        self.fatal_error: BaseException | None = None
        """An interrupt or exit in the thread, which is no failure of a camera."""

    def put(self, result: Any) -> None:
        with self.condition:
            self.num_results, self.result = self.num_results + 1, result
            self.condition.notify_all()


def _keep_reading(read: Callable[[], Any], slot: _Slot) -> None:
    while not slot.stopped.is_set():
        result: Any
        try:
            image = read()
            # A copy: a driver may fill the same memory again.
            result = None if image is None else np.array(image)
        except Exception as error:  # whoever takes it raises it there
            result = error
        except BaseException as error:
            slot.fatal_error = error
            slot.put(None)
            return
        slot.put(result)
        slot.stopped.wait(READ_INTERVAL_S if isinstance(result, np.ndarray) else RETRY_INTERVAL_S)


class LatestFrame:
    """Calls `read` in a thread of its own and keeps its newest answer.

    `discard_stale` forgets what came before; `wait_for_frame` waits for what comes after. That a read failed is an
    answer too.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._slot = _Slot()
        self._num_discarded = 0
        self._thread = threading.Thread(target=_keep_reading, args=(read, self._slot), daemon=True)
        self._thread.start()
        weakref.finalize(self, self._slot.stopped.set)  # nobody closed it

    def discard_stale(self) -> None:
        self._num_discarded = self._slot.num_results

    def wait_for_frame(self, *, until_s: float) -> Any:
        """The newest answer; `TimeoutError` if none came until this moment of `time.monotonic`."""
        slot = self._slot
        with slot.condition:
            timeout_s = max(0.0, until_s - time.monotonic())
            has_result = slot.condition.wait_for(
                lambda: slot.num_results > self._num_discarded or slot.fatal_error, timeout=timeout_s
            )
            result = slot.result
        if slot.fatal_error is not None:
            raise slot.fatal_error
        if not has_result:
            raise TimeoutError("no new picture in time")
        if isinstance(result, Exception):
            raise result
        return result

    def stop(self) -> None:
        """No further read; returns at once."""
        self._slot.stopped.set()

    def close(self) -> None:
        """Stop, and wait for the read that is under way. One that never returns is left behind."""
        self.stop()
        self._thread.join(CLOSE_TIMEOUT_S)
