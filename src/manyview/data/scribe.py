"""One thread that writes to the disk, in the order asked, while others go on."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

WAITING = 4
"""So many jobs may wait; who asks for more waits too. A disk that is too slow must not fill the memory."""


class Scribe:
    """Jobs that meet an `OSError`, such as a full disk, are told of by `failures`; anything else is an error of ours
    and is raised at the next call. So is whatever `check` raises, which is called before each job.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scribe")
        self._jobs: deque[Future[None]] = deque()
        self._failures: deque[OSError] = deque()

    def ask(self, job: Callable[[], None]) -> None:
        while len(self._jobs) >= WAITING:
            self._jobs.popleft().result()
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()
        self._jobs.append(self._thread.submit(self._do, job))

    def wait(self) -> None:
        """Until everything asked for is done."""
        while self._jobs:
            self._jobs.popleft().result()

    def failures(self) -> list[OSError]:
        """Those since the last call."""
        found = []
        while self._failures:
            found.append(self._failures.popleft())
        return found

    def close(self) -> None:
        self._thread.shutdown()

    def _do(self, job: Callable[[], None]) -> None:
        self._check()
        try:
            job()
        except OSError as error:
            self._failures.append(error)
