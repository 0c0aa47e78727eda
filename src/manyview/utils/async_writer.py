"""One thread that writes to the disk, in the order asked, while others go on."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

MAX_PENDING = 4
"""So many jobs may wait; who asks for more waits too. A disk that is too slow must not fill the memory."""


class AsyncWriter:
    """Jobs that meet an `OSError`, such as a full disk, are returned by `pop_failures`; anything else is our error
    and is raised at the next call. So is whatever `check` raises, which is called before each job.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="async-writer")
        self._jobs: deque[Future[None]] = deque()
        self._failures: deque[OSError] = deque()

    def submit(self, job: Callable[[], None]) -> None:
        while len(self._jobs) >= MAX_PENDING:
            self._jobs.popleft().result()
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()
        self._jobs.append(self._executor.submit(self._run, job))

    def wait(self) -> None:
        """Until everything asked for is done."""
        while self._jobs:
            self._jobs.popleft().result()

    def pop_failures(self) -> list[OSError]:
        """Those since the last call."""
        failures = []
        while self._failures:
            failures.append(self._failures.popleft())
        return failures

    def close(self) -> None:
        self._executor.shutdown()

    def _run(self, job: Callable[[], None]) -> None:
        self._check()
        try:
            job()
        except OSError as error:
            self._failures.append(error)
