"""Background thread for disk writes, which run in the order of submission."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

MAX_PENDING = 4
"""Maximum number of pending jobs; `submit` blocks beyond it, so that a slow disk does not fill the memory."""


class AsyncWriter:
    """Runs write jobs in a background thread.

    An `OSError` in a job, such as a full disk, is returned by `pop_failures`. Any other exception, and any exception of
    `check`, which runs before each job, is raised by a later `submit` or `wait`.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="async-writer")
        self._jobs: deque[Future[None]] = deque()
        self._failures: deque[OSError] = deque()

    def submit(self, job: Callable[[], None]) -> None:
        """Add a job; blocks while `MAX_PENDING` jobs are pending."""
        while len(self._jobs) >= MAX_PENDING:
            self._jobs.popleft().result()
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()
        self._jobs.append(self._executor.submit(self._run, job))

    def wait(self) -> None:
        """Block until all submitted jobs are done."""
        while self._jobs:
            self._jobs.popleft().result()

    def pop_failures(self) -> list[OSError]:
        """Return the failures since the last call."""
        failures = []
        while self._failures:
            failures.append(self._failures.popleft())
        return failures

    def close(self) -> None:
        """Finish all jobs and stop the thread."""
        self._executor.shutdown()

    def _run(self, job: Callable[[], None]) -> None:
        self._check()
        try:
            job()
        except OSError as error:
            self._failures.append(error)
