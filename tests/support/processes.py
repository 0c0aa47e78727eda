"""Commands whose processes are gone after a test, however it ended."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from benchmarks.processes import find_descendants


@contextmanager
def ending(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill a command that still runs and all that it has started: stopped ones would stay for ever."""
    try:
        yield
    finally:
        family = list(find_descendants(process.pid))
        process.kill()
        process.wait(timeout=30)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
