"""Background thread that keeps the newest image of a slow camera."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

READ_INTERVAL_S = 0.001
"""Pause between two reads, so that a fast camera does not keep a core busy."""
RETRY_INTERVAL_S = 0.05
"""Pause after a failed read."""
CLOSE_TIMEOUT_S = 1.0
"""Maximum time that `close` waits for a running read."""


class LatestFrame:
    """Calls `read` repeatedly in a background thread and keeps its newest result.

    `discard_stale` drops the results so far; `wait_for_frame` waits for the next one. A failed read is a result too.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._slot = _Slot()
        self._num_discarded = 0
        self._thread = threading.Thread(target=_keep_reading, args=(read, self._slot), daemon=True)
        self._thread.start()
        weakref.finalize(self, self._slot.stopped.set)  # in case it is never closed

    def discard_stale(self) -> None:
        """Drop all results so far."""
        self._num_discarded = self._slot.num_results

    def wait_for_frame(self, *, until_s: float) -> Any:
        """Return the newest result, waiting until `until_s` of `time.monotonic` for it.

        Raises `TimeoutError` if there is none by then, and the exception of a failed read.
        """
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
            raise TimeoutError("no new image before the deadline")
        if isinstance(result, Exception):
            raise result
        return result

    def stop(self) -> None:
        """Request that reading stops; returns immediately."""
        self._slot.stopped.set()

    def close(self) -> None:
        """Stop and wait up to `CLOSE_TIMEOUT_S` for a running read; a hanging read is abandoned."""
        self.stop()
        self._thread.join(CLOSE_TIMEOUT_S)


class _Slot:
    """State that the camera thread and the reader share."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.stopped = threading.Event()
        self.num_results = 0
        self.result: Any = None
        self.fatal_error: BaseException | None = None
        """Interrupt or exit raised in the thread; not a camera failure."""

    def put(self, result: Any) -> None:
        with self.condition:
            self.num_results, self.result = self.num_results + 1, result
            self.condition.notify_all()


def _keep_reading(read: Callable[[], Any], slot: _Slot) -> None:
    while not slot.stopped.is_set():
        result: Any
        try:
            image = read()
            # A copy: a driver may reuse the memory.
            result = None if image is None else np.array(image)
        except Exception as error:  # raised by wait_for_frame
            result = error
        except BaseException as error:
            slot.fatal_error = error
            slot.put(None)
            return
        slot.put(result)
        slot.stopped.wait(READ_INTERVAL_S if isinstance(result, np.ndarray) else RETRY_INTERVAL_S)
