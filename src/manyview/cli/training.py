"""Training from the command line: display, signals, Ray and the closing lines of a run."""

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shlex import quote
from threading import Event, Thread
from time import sleep

from manyview.cli.arguments import EXIT_FAILED, EXIT_INTERRUPTED, CommandFailedError, report_error
from manyview.data import InsufficientSpaceError
from manyview.envs.contract import ContractError, EnvError
from manyview.report.curves import read_curve
from manyview.report.display import make_display
from manyview.report.runs import BrokenRunError, RunSummary, summarize_run
from manyview.session import TrainingSession
from manyview.training import RunConfig, RunDir
from manyview.training.checkpoint import list_checkpoints
from manyview.training.resume import RunFinishedError
from manyview.training.run_dir import SaveFailedError
from manyview.training.runner import DivergedError
from manyview.training.trainer import EngineError
from manyview.utils.text import print_line

EXIT_S = 4.0
"""Seconds that exit hooks of a tracker may take."""


def train_in_terminal(
    config: RunConfig,
    run_dir: RunDir,
    *,
    address: str | None = None,
    fresh: bool = False,
    accept_changes: bool = False,
) -> int:
    """Start or resume a run with a display, print how it ended, and return the exit status."""
    try:
        with report_invalid_run():
            display = make_display(config, run_dir)
            session = TrainingSession(
                config, run_dir, loggers=[display], address=address, fresh=fresh, accept_changes=accept_changes
            )
    except RunFinishedError as finished:
        print_line(finished)
        return 0
    with session:
        status = _run(session)
    print_outcome(run_dir)
    if config.logging.wandb or config.logging.trackio:
        _bound_exit(status)
    return status


@contextmanager
def report_invalid_run() -> Iterator[None]:
    """Print why a run cannot start and raise `CommandFailedError`."""
    try:
        yield
    except KeyboardInterrupt:
        print_line("interrupted before the training started", file=sys.stderr)
        raise CommandFailedError(EXIT_INTERRUPTED) from None
    except EnvError as error:
        print(error, file=sys.stderr)
        raise CommandFailedError(EXIT_FAILED) from None
    except (ValueError, TypeError, ImportError, OSError, InsufficientSpaceError, EngineError) as error:
        raise CommandFailedError(report_error(error)) from None


def _run(session: TrainingSession) -> int:
    try:
        finished = session.run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (EnvError, ContractError) as error:
        print(f"{error}. The traceback is in {session.run_dir.metrics_file}", file=sys.stderr)
        return EXIT_FAILED
    except (SaveFailedError, DivergedError, EngineError) as error:
        print_line(error, file=sys.stderr)
        return EXIT_FAILED
    if not finished and session.stop_signal is None:  # learners that ended without a reason
        return EXIT_FAILED
    return EXIT_INTERRUPTED if not finished and session.stop_signal == signal.SIGINT else 0


def _bound_exit(status: int) -> None:
    """Force the process to end within seconds: exit hooks of a tracker may wait for its server."""
    exiting = Event()

    def force_exit() -> None:
        exiting.wait()
        sleep(EXIT_S)
        os._exit(status)

    Thread(target=force_exit, daemon=True).start()  # threads cannot be started during exit
    atexit.register(exiting.set)


def print_outcome(run_dir: RunDir) -> None:
    """Print the closing lines of a run that this process has trained."""
    for line in format_outcome(run_dir, summarize_run(run_dir.path)):
        print_line(line)


def format_outcome(run_dir: RunDir, summary: RunSummary) -> Iterator[str]:
    """Yield the closing lines; none for a run without a record."""
    if summary.frames is None or summary.total_frames is None:
        return
    path = quote(str(run_dir.path))
    run = f"{path} --own-task {quote(summary.task)}" if summary.task and ":" in summary.task else path
    checkpoints = list_checkpoints(run_dir.checkpoints_dir)
    saved = f"saved in {path}, checkpoint {checkpoints[0].name}" if checkpoints else f"no checkpoint yet in {path}"
    yield f"{summary.state} at {summary.frames:,} of {summary.total_frames:,} frames, {saved}"
    with suppress(BrokenRunError):
        curve = read_curve(run_dir.path, "frames")
        if len(curve.x):
            best = curve.returns.argmax()
            yield f"return {curve.returns[-1]:z.1f}, best {curve.returns[best]:z.1f} at {curve.x[best]:,.0f} frames"
    if (video := run_dir.find_last_video()) is not None:
        yield f"video {quote(str(video))}"
    if summary.state == "finished":
        yield f"next: manyview evaluate {run}, or manyview extend {run} --frames {2 * summary.total_frames}"
    elif checkpoints:
        yield f"next: manyview resume {run}"
    else:
        yield "next: repeat the command; nothing was saved"
