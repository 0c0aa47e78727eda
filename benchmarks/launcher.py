"""Fork processes that run the command `manyview` and can be killed in the middle of a file operation.

`python -m benchmarks.launcher` is the parent. It imports everything once, so that the children save the import time.
It reads one `Request` per line and answers with two lines: the pid of the child, then its exit status.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from select import select
from time import monotonic, sleep
from types import TracebackType

from benchmarks.file_operations import WRITES, Operation, intercept_operations

COUNT_ONLY, COUNTED = 0, "file operations"
"""Value of `Request.kill_at` that only counts, and the unit printed after the count."""
READY = "ready"
START_S, ANSWER_S, CHILD_S = 180.0, 300.0, 600
"""Time limits in seconds: start of the launcher, end of a child that is waited for, lifetime of a child."""


def read_line(process: "subprocess.Popen[bytes]", *, at_most_s: float) -> str:
    """Return the next line that a process writes to an unbuffered pipe.

    Raises TimeoutError if it writes none in time, ChildProcessError if it has ended.
    """
    assert process.stdout
    line, end_s = b"", monotonic() + at_most_s
    while not line.endswith(b"\n"):
        if not select([process.stdout], [], [], max(0.0, end_s - monotonic()))[0]:
            raise TimeoutError(f"no line from {process.args!r} in {at_most_s} s")
        byte = os.read(process.stdout.fileno(), 1)
        if not byte:
            raise ChildProcessError(f"{process.args!r} ended, status {process.poll()}, before it wrote a line")
        line += byte
    return line.decode().removesuffix("\n")


@dataclass(frozen=True)
class Request:
    arguments: list[str]
    """Arguments of the command `manyview`."""
    output: str
    """File that receives stdout and stderr."""
    watched_dirs: list[str]
    """Directories in which file operations count."""
    kill_at: int | None = None
    """Number of the operation that SIGKILL prevents, or interrupts halfway if it is a write."""
    patches: str | None = None
    """Function to call before the command, as `module:name`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables in addition to the launcher's."""


class ExitResult:
    """Exit status, negative if a signal ended the process, and output."""

    def __init__(self, status: int, output: Path) -> None:
        self.status, self.output = status, output.read_text()

    @property
    def was_killed(self) -> bool:
        return self.status == -signal.SIGKILL


class ChildProcess:
    """Running child of the launcher."""

    def __init__(self, pid: int, output: Path, status: Callable[[float], int]) -> None:
        self.pid, self.output, self._status = pid, output, status
        self._ended: int | None = None

    def wait_for(self, seen: Callable[[], bool], *, at_most_s: float = 60) -> None:
        """Wait until `seen` returns true or the process has ended; kill it and raise TimeoutError after a timeout."""
        end_s = monotonic() + at_most_s
        while not seen() and self._is_running():
            if monotonic() > end_s:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"condition not met within {at_most_s} s; output: {self.output.read_text()!r}")
            sleep(0.005)

    def wait_for_output(self, text: str = "") -> None:
        self.wait_for(
            lambda: self.output.exists() and (text in self.output.read_text() if text else self._has_output())
        )

    def send(self, number: signal.Signals) -> None:
        if self._is_running():
            os.kill(self.pid, number)

    def wait(self, *, at_most_s: float = ANSWER_S) -> ExitResult:
        if self._ended is None:
            try:
                self._ended = self._status(at_most_s)
            except TimeoutError:
                self.kill()
                raise TimeoutError(f"still running after {at_most_s} s; output: {self.output.read_text()!r}") from None
        return ExitResult(self._ended, self.output)

    def kill(self) -> None:
        """Kill the process if it is running and read its status: the next line belongs to another process."""
        if self._ended is None:
            self.send(signal.SIGKILL)
            self._ended = self._status(ANSWER_S)

    def _has_output(self) -> bool:
        return self.output.stat().st_size > 0

    def _is_running(self) -> bool:
        # An ended process stays in the table as a zombie until its parent reads its status.
        try:
            return "\nState:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:
            return False


class Launcher:
    """Context manager around the parent process that forks the children."""

    def __enter__(self) -> "Launcher":
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
        )
        self._running: ChildProcess | None = None
        assert read_line(self._process, at_most_s=START_S) == READY
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._end_last()
            self._process.wait(timeout=30)
        except (subprocess.TimeoutExpired, TimeoutError, ChildProcessError):
            self._process.kill()
            self._process.wait(timeout=30)
        self._process.stdout.close()

    def start(self, request: Request) -> ChildProcess:
        """Start a child; a previous child that still runs is killed first."""
        assert self._process.stdin
        self._end_last()
        Path(request.output).unlink(missing_ok=True)
        self._process.stdin.write((json.dumps(asdict(request)) + "\n").encode())
        pid = int(read_line(self._process, at_most_s=ANSWER_S))
        self._running = ChildProcess(
            pid, Path(request.output), lambda at_most_s: int(read_line(self._process, at_most_s=at_most_s))
        )
        return self._running

    def _end_last(self) -> None:
        """Kill the last child if it runs: a failed test may have left it."""
        if self._running is not None:
            self._running.kill()


def serve() -> None:
    _import_everything()
    print(READY, flush=True)
    for line in sys.stdin:
        request = Request(**json.loads(line))
        child = os.fork()
        if child == 0:
            sys.exit(_run(request))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _import_everything() -> None:
    from manyview.training import load_preset
    from manyview.training.off_policy import OffPolicyTrainer

    for name in ("manyview.cli.train", "dm_control.suite", "imageio.v2", "imageio_ffmpeg"):
        with suppress(ImportError):
            import_module(name)

    # Building a trainer triggers the lazy imports.
    OffPolicyTrainer(load_preset("minute", task="toy/hidden_goal_continuous", method="drqv2+mem", seed=1)).close()


def _run(request: Request) -> int:
    from manyview.cli.main import main

    os.setsid()
    signal.alarm(CHILD_S)  # the parent may have ended
    for number in (signal.SIGTERM, signal.SIGHUP):  # the test process may ignore them
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    devnull = os.open(os.devnull, os.O_RDONLY)
    for descriptor, file in enumerate((devnull, output, output)):
        os.dup2(file, descriptor)
    os.environ.update(request.environment)
    if request.patches is not None:
        module, name = request.patches.split(":")
        getattr(import_module(module), name)()
    with _kill_or_count(request):
        return main(request.arguments)


@contextmanager
def _kill_or_count(request: Request) -> Iterator[None]:
    """Kill this process at operation `kill_at`, or print the number of operations at the end."""
    if request.kill_at is None:
        yield
        return
    operations: list[Operation] = []

    def handle(operation: Operation) -> Callable[[], None] | None:
        operations.append(operation)
        if len(operations) != request.kill_at:
            return None
        if operation.name not in WRITES:
            kill_self()
        return kill_self

    with intercept_operations([Path(path) for path in request.watched_dirs], handle):
        yield
    print(f"{len(operations)} {COUNTED}", flush=True)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve()
