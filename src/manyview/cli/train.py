"""`manyview train`: train an agent on a task, or resume a run."""

import atexit
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import EXIT_FAILED, EXIT_INTERRUPTED, print_line, report_error
from manyview.cli.display import make_display
from manyview.cli.settings import (
    AgentOption,
    BonusOption,
    ConfigOption,
    MethodOption,
    PresetOption,
    RepresentationOption,
    SeedOption,
    SetOption,
)
from manyview.cli.tail import stream_records
from manyview.config.overrides import to_plain
from manyview.config.resolve import resolve_config
from manyview.data import InsufficientSpaceError
from manyview.envs.contract import ContractError, EnvError
from manyview.train import RunConfig, RunDir
from manyview.train.dry_run import RunEstimate, estimate_run, format_estimate
from manyview.train.loggers import Logger
from manyview.train.resume import RunFinishedError, check_run
from manyview.train.run_dir import SaveFailedError, default_run_path
from manyview.train.runner import DivergedError, Runner, make_trainer
from manyview.train.signals import exit_on_sigterm
from manyview.train.trainer import EngineError, Trainer

EXIT_S = 4.0
"""Seconds that exit hooks of a tracker may take."""


def train(
    task: Positional[
        Annotated[str, arg(metavar="TASK", help="Task, such as dmc/hopper_hop; `manyview tasks` lists all.")]
    ],
    *,
    method: MethodOption = None,
    agent: AgentOption = None,
    representation: RepresentationOption = None,
    bonus: BonusOption = None,
    preset: PresetOption = None,
    seed: SeedOption = None,
    frames: Annotated[
        int | None,
        arg(
            metavar="N", help="Length of the run in simulator frames.", help_behavior_hint="(default: schedule.frames)"
        ),
    ] = None,
    views: Annotated[
        tuple[str, ...] | None,
        arg(metavar="NAME ...", help="Views of the agent.", help_behavior_hint="(default: env.views)"),
    ] = None,
    set: SetOption = (),  # noqa: A002
    config: ConfigOption = None,
    out: Annotated[
        Path | None,
        arg(metavar="DIRECTORY", help="Run directory.", help_behavior_hint="(default: runs/TASK/METHOD/seedN)"),
    ] = None,
    device: Annotated[
        str | None,
        arg(metavar="auto|cpu|cuda", help="Device of the networks.", help_behavior_hint="(default: compute.device)"),
    ] = None,
    actors: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Collect with N actor processes on Ray (extra `scale`).",
            help_behavior_hint="(default: everything in one process)",
        ),
    ] = None,
    replay_shards: Annotated[
        int | None,
        arg(
            metavar="N", help="With --actors: processes that hold the replay buffer.", help_behavior_hint="(default: 1)"
        ),
    ] = None,
    learners: Annotated[
        int | None,
        arg(
            metavar="N",
            help="With --actors: learner processes, each training on a part of every batch.",
            help_behavior_hint="(default: 1)",
        ),
    ] = None,
    address: Annotated[
        str | None,
        arg(
            metavar="HOST:PORT",
            help="With --actors: address of a Ray cluster.",
            help_behavior_hint="(default: a private cluster on this machine)",
        ),
    ] = None,
    fresh: Annotated[
        bool, FlagCreatePairsOff, arg(help="Start a new run. An existing run in the directory is renamed.")
    ] = False,
    accept_changes: Annotated[
        bool,
        FlagCreatePairsOff,
        arg(help="Resume even if versions or threads have changed; results are then not bit-identical."),
    ] = False,
    dry_run: Annotated[
        bool, FlagCreatePairsOff, arg(help="Only show the settings and the estimated time, memory and disk space.")
    ] = False,
) -> int:
    """Train an agent from several cameras.

    Repeat the command to resume a run from its newest checkpoint, however it ended.
    Ctrl-C, SIGTERM or SIGHUP save a checkpoint and exit.
    """
    scale_options = {"actors": actors, "replay_shards": replay_shards, "learners": learners}
    overrides: dict[str, Any] = {"scale": {name: n for name, n in scale_options.items() if n is not None}}
    if frames is not None:
        overrides["schedule"] = {"frames": frames}
    if views is not None:
        overrides["env"] = {"views": list(views)}
    if device is not None:
        overrides["compute"] = {"device": device}
    with exit_on_sigterm(), ExitStack() as engine:
        try:
            run_config = resolve_config(
                task,
                method=method,
                agent=agent,
                representation=representation,
                bonus=bonus,
                preset=preset,
                seed=seed,
                file=config,
                assignments=list(chain(*set)),
                overrides=overrides,
            )
            run_dir = RunDir(out or default_run_path(run_config))
            if dry_run:
                _print_estimate(estimate_run(run_config), run_dir)
                return 0
            display = make_display(run_config, run_dir)
            if run_config.scale.learners > 1:
                return _run_learners(run_config, run_dir, address, display, fresh=fresh, accept_changes=accept_changes)
            runner = Runner(
                run_config,
                run_dir,
                loggers=[display],
                fresh=fresh,
                accept_changes=accept_changes,
                build_trainer=_choose_trainer(run_config, address, engine),
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
    if run_config.logging.wandb:
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


def _print_estimate(estimate: RunEstimate, run_dir: RunDir) -> None:
    """Print the settings as JSON that `--config` accepts, then the estimate."""
    print(json.dumps(to_plain(estimate.config), indent=2))
    print()
    for line in format_estimate(estimate, run_dir):
        print_line(line)
