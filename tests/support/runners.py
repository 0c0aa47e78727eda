"""Sessions in this process that die in the midst of something, and small runs for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.file_operations import Operation, intercept_operations
from manyview.config.overrides import merge_overrides
from manyview.report.metrics_file import read_records
from manyview.training import RunConfig, RunDir
from manyview.training.runner import Runner
from tests.support.runs import short_run

QUICK: dict[str, Any] = {
    "schedule": {"frames": 60, "random_steps": 30, "seed_frames": 56},
    "replay": {"capacity": 25},
    "evaluation": {"every_frames": 60, "episodes": 1},
    "logging": {"checkpoint_every_frames": 20, "keep_replay": True, "every_steps": 2},
}
"""A replay that wraps, four saves with segments between them, and updates only at the end: they take the time."""


def quick_run(**changes: Any) -> RunConfig:
    return short_run(**merge_overrides(QUICK, changes))


class Crash(BaseException):
    """What a dead process does: nothing more, and no `except` helps."""


def abandon(session: Runner) -> None:
    """What the system does for a process that is gone."""
    session.writer._executor.shutdown()
    with suppress(Crash, OSError):
        session.loggers.close()
    session.evaluator.close()
    session.trainer.close()
    session.lock.close()


@contextmanager
def opened(config: RunConfig, folder: RunDir, *, at: int) -> Iterator[Runner]:
    """A session that has come to these frames, closed however this ends."""
    session = Runner(config, folder)
    try:
        advance_to(session, at)
        yield session
    finally:
        session.close()


def advance_to(session: Runner, frames: int) -> None:
    """As `play` does, and as if it was killed there, when everything before is written."""
    session._log_start()
    session._run_pending_jobs()
    while session.trainer.counters.frames < frames:
        session.advance()
    session.writer.wait()


@contextmanager
def dying(folder: Path, dies: Callable[[Operation], bool], *, torn: bool) -> Iterator[None]:
    """Crash at the first operation below a folder of which `dies` says so, or in its middle; nothing works after it."""
    dead: list[Operation] = []

    def die() -> None:
        raise Crash

    def meet(operation: Operation) -> Callable[[], None] | None:
        if dead:
            raise Crash
        if not dies(operation):
            return None
        dead.append(operation)
        if not torn:
            raise Crash
        return die

    with intercept_operations([folder], meet):
        yield


def warnings_of(folder: RunDir) -> list[str]:
    return [record["text"] for record in read_records(folder.metrics_file) if record["kind"] == "warning"]
