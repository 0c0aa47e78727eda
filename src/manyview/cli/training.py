"""Training from the command line: display, signals, Ray and the closing lines of a run."""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from shlex import quote
from threading import Event, Thread
from time import sleep

from manyview.cli.arguments import EXIT_FAILED, EXIT_INTERRUPTED, print_line, report_error
from manyview.cli.display import make_display
from manyview.cli.tail import stream_records
from manyview.data import InsufficientSpaceError
from manyview.envs.contract import ContractError, EnvError
from manyview.report.curves import read_curve
from manyview.report.runs import BrokenRunError, RunSummary, summarize_run
from manyview.training import RunConfig, RunDir
from manyview.training.checkpoint import list_checkpoints
from manyview.training.loggers import Logger
from manyview.training.resume import RunFinishedError, check_run
from manyview.training.run_dir import SaveFailedError
from manyview.training.runner import DivergedError, Runner, make_trainer
from manyview.training.signals import exit_on_sigterm
from manyview.training.trainer import EngineError, Trainer

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
    with exit_on_sigterm(), ExitStack() as engine:
        try:
            display = make_display(config, run_dir)
            if config.scale.learners > 1:
                return _run_learners(config, run_dir, address, display, fresh=fresh, accept_changes=accept_changes)
            runner = Runner(
                config,
                run_dir,
                loggers=[display],
                fresh=fresh,
                accept_changes=accept_changes,
                build_trainer=_choose_trainer(config, address, engine),
            )
        except RunFinishedError as finished:
            print_line(finished)
            return 0
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except EnvError as error:
            print(error, file=sys.stderr)
            return EXIT_FAILED
        except (ValueError, TypeError, ImportError, OSError, InsufficientSpaceError, EngineError) as error:
            return report_error(error)
        status = _run(runner)
    print_outcome(run_dir)
    if config.logging.wandb:
        _bound_exit(status)
    return status


def _choose_trainer(config: RunConfig, address: str | None, engine: ExitStack) -> Callable[[RunConfig], Trainer]:
    """Return the trainer factory: single-process, or with actors on a cluster that `engine` disconnects."""
    if config.scale.actors:
        return partial(_build_actor_trainer, address, engine)
    if address is not None:
        raise ValueError(f"--address needs actors: expected --actors of at least 1, got none for cluster {address}")
    return make_trainer


def _build_actor_trainer(address: str | None, engine: ExitStack, config: RunConfig) -> Trainer:
    from manyview.scale.cluster import check_resources, connect, count_cpus

    engine.enter_context(connect(address, cpus=count_cpus(config, spares=1)))
    check_resources("the run", cpus=count_cpus(config))
    engine.enter_context(exit_on_sigterm())  # Ray replaces the handler
    from manyview.scale.trainer import ActorLearnerTrainer

    return ActorLearnerTrainer(config)


def _run_learners(
    config: RunConfig, run_dir: RunDir, address: str | None, logger: Logger, *, fresh: bool, accept_changes: bool
) -> int:
    """Train with several learners and display the records they write to the run directory."""
    from manyview.scale.cluster import connect, count_cpus

    check_run(config, run_dir, fresh=fresh)
    with connect(address, cpus=count_cpus(config, spares=1)), exit_on_sigterm():
        from manyview.scale.learners import LearnersFailedError, train_distributed

        if run_dir.has_run and fresh:
            run_dir.move_aside()
        try:
            with stream_records(run_dir.metrics_file, logger):
                warn = partial(print, file=sys.stderr, flush=True)
                stop_signal = train_distributed(config, run_dir, accept_changes=accept_changes, warn=warn)
        except LearnersFailedError as error:
            print_line(error, file=sys.stderr)
            return EXIT_FAILED
    if run_dir.is_finished:
        return 0
    if stop_signal is None:
        return EXIT_FAILED
    return EXIT_INTERRUPTED if stop_signal == signal.SIGINT else 0


def _run(runner: Runner) -> int:
    try:
        finished = runner.run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (EnvError, ContractError) as error:
        print(f"{error}. The traceback is in {runner.run_dir.metrics_file}", file=sys.stderr)
        return EXIT_FAILED
    except (SaveFailedError, DivergedError, EngineError) as error:
        print_line(error, file=sys.stderr)
        return EXIT_FAILED
    finally:
        runner.close()
    return EXIT_INTERRUPTED if not finished and runner.stop_signal == signal.SIGINT else 0


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
    checkpoints = list_checkpoints(run_dir.checkpoints_dir)
    saved = f"saved in {path}, checkpoint {checkpoints[0].name}" if checkpoints else f"no checkpoint yet in {path}"
    yield f"{summary.state} at {summary.frames:,} of {summary.total_frames:,} frames, {saved}"
    with suppress(BrokenRunError):
        curve = read_curve(run_dir.path, "frames")
        if len(curve.x):
            best = curve.returns.argmax()
            yield f"return {curve.returns[-1]:.1f}, best {curve.returns[best]:.1f} at {curve.x[best]:,.0f} frames"
    if (video := run_dir.find_last_video()) is not None:
        yield f"video {quote(str(video))}"
    if summary.state == "finished":
        yield f"next: manyview evaluate {path}, or manyview extend {path} --frames {2 * summary.total_frames}"
    else:
        yield f"next: manyview resume {path}"
