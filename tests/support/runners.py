"""Runners that are abandoned or crash, and small configs for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.file_operations import Operation, intercept_operations
from manyview.config.overrides import merge_overrides
from manyview.report.metrics_file import read_records
from manyview.training import RunConfig, RunDir
from manyview.training.runner import Runner
from tests.support.runs import make_short_config

QUICK_SETTINGS: dict[str, Any] = {
    "schedule": {"frames": 60, "random_steps": 30, "seed_frames": 56},
    "replay": {"capacity": 25},
    "evaluation": {"every_frames": 60, "episodes": 1},
    "logging": {"checkpoint_every_frames": 20, "keep_replay": True, "every_steps": 2},
}
"""A replay buffer that wraps around, four checkpoints with segments between them, and few updates, which are slow."""


def make_quick_config(**changes: Any) -> RunConfig:
    """Return a run config with `QUICK_SETTINGS` and changes."""
    return make_short_config(**merge_overrides(QUICK_SETTINGS, changes))


class SimulatedCrash(BaseException):
    """Simulated death of the process, which `except Exception` does not catch."""


def abandon_runner(runner: Runner) -> None:
    """Release the resources of a runner as the system does after its process died."""
    runner.writer._executor.shutdown()
    with suppress(SimulatedCrash, OSError):
        runner.loggers.close()
    runner.evaluator.close()
    runner.trainer.close()
    runner.lock.close()


@contextmanager
def open_runner(config: RunConfig, run_dir: RunDir, *, frames: int) -> Iterator[Runner]:
    """Run to `frames` and close the runner on exit."""
    runner = Runner(config, run_dir)
    try:
        advance_to(runner, frames)
        yield runner
    finally:
        runner.close()


def advance_to(runner: Runner, frames: int) -> None:
    """Run to `frames` as `Runner.run` does, and wait until everything is written."""
    runner._log_start()
    runner._run_pending_jobs()
    while runner.trainer.counters.frames < frames:
        runner.advance()
    runner.writer.wait()


@contextmanager
def simulate_crash(directory: Path, should_crash: Callable[[Operation], bool], *, torn: bool) -> Iterator[None]:
    """Crash at the first file operation for which `should_crash` returns true.

    Only operations in `directory` count, and all later ones crash too.
    With `torn`, crash halfway through the operation.
    """
    crashed_at: list[Operation] = []

    def crash() -> None:
        raise SimulatedCrash

    def handle(operation: Operation) -> Callable[[], None] | None:
        if crashed_at:
            raise SimulatedCrash
        if not should_crash(operation):
            return None
        crashed_at.append(operation)
        if not torn:
            raise SimulatedCrash
        return crash

    with intercept_operations([directory], handle):
        yield


def read_warnings(run_dir: RunDir) -> list[str]:
    """Return the texts of the warnings in the metrics file."""
    return [record["text"] for record in read_records(run_dir.metrics_file) if record["kind"] == "warning"]
