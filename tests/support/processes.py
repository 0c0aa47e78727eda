"""Cleanup of the processes that a test starts."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from benchmarks.processes import find_descendants


@contextmanager
def kill_on_exit(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill a process and all its descendants on exit; SIGKILL also ends stopped ones."""
    try:
        yield
    finally:
        descendants = list(find_descendants(process.pid))
        process.kill()
        process.wait(timeout=30)
        for pid in descendants:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
