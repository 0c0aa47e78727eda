"""`manyview train`: one command from a task to a trained agent."""

import atexit
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Annotated, Any

import torch
from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg

from manyview.cli.arguments import EXIT_FAILED, EXIT_INTERRUPTED, print_line, report_error
from manyview.cli.display import make_display
from manyview.cli.tail import stream_records
from manyview.config.overrides import apply_overrides, from_plain, nest_overrides, to_plain
from manyview.config.presets import PRESETS, choose_preset
from manyview.data import InsufficientSpaceError
from manyview.envs.contract import ContractError, EnvError
from manyview.train import RunConfig, RunDir, load_preset
from manyview.train.dry_run import RunEstimate, estimate_run, format_estimate
from manyview.train.loggers import Logger
from manyview.train.resume import RunFinishedError, check_run
from manyview.train.run_dir import SaveFailedError, default_run_path
from manyview.train.runner import DivergedError, Runner, make_trainer
from manyview.train.signals import exit_on_sigterm
from manyview.train.trainer import EngineError, Trainer
from manyview.utils.json_io import read_json

EXIT_S = 4.0


def train(
    task: Positional[Annotated[str, arg(metavar="TASK", help="Such as dmc/hopper_hop; `manyview tasks` lists all.")]],
    *,
    method: Annotated[
        str | None,
        arg(
            metavar="AGENT+METHOD",
            help="drqv2, sac or ppo, with mem, re3, curl or none; ppo also with ride.",
            help_behavior_hint=f"(default: {RunConfig.method})",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        arg(
            metavar="NAME[,NAME]",
            help=f"{'; '.join(f'{name}: {preset.summary}' for name, preset in PRESETS.items())}.",
            help_behavior_hint="(default: the paper's with an accelerator, otherwise minute for toys and cpu)",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        arg(metavar="N", help="Of everything that is random.", help_behavior_hint=f"(default: {RunConfig.seed})"),
    ] = None,
    set: Annotated[  # noqa: A002
        UseAppendAction[tuple[tuple[str, ...], ...]],
        arg(metavar="NAME=VALUE ...", help="Any setting that --dry-run shows, such as replay.batch_size=128."),
    ] = (),
    config: Annotated[
        Path | None, arg(metavar="JSON", help="A config.json of an earlier run, instead of a preset.")
    ] = None,
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: runs/TASK/METHOD/seedN)")] = None,
    device: Annotated[str | None, arg(metavar="auto|cpu|cuda", help="Where the networks compute.")] = None,
    actors: Annotated[
        int | None,
        arg(
            metavar="N",
            help="Act in N processes that feed a replay, on Ray (extra `scale`).",
            help_behavior_hint="(default: all in one process)",
        ),
    ] = None,
    replay_shards: Annotated[
        int | None,
        arg(metavar="N", help="With --actors: so many processes hold the replay.", help_behavior_hint="(default: 1)"),
    ] = None,
    learners: Annotated[
        int | None,
        arg(
            metavar="N",
            help="With --actors: so many processes learn, each from its part of a batch.",
            help_behavior_hint="(default: 1)",
        ),
    ] = None,
    address: Annotated[
        str | None,
        arg(
            metavar="HOST:PORT",
            help="With --actors: of a Ray cluster.",
            help_behavior_hint="(default: one of its own on this machine, which only you reach)",
        ),
    ] = None,
    fresh: Annotated[
        bool, FlagCreatePairsOff, arg(help="Begin again. The run that is in the folder gets another name.")
    ] = False,
    accept_changes: Annotated[
        bool,
        FlagCreatePairsOff,
        arg(help="Resume although versions or threads have changed, so no longer bit for bit."),
    ] = False,
    dry_run: Annotated[
        bool, FlagCreatePairsOff, arg(help="Only show the settings and what the run will take.")
    ] = False,
) -> int:
    """Train an agent from several cameras.

    The same command again goes on where the run was, however it ended.
    Ctrl-C, SIGTERM or SIGHUP save it and leave.
    """
    scale_options = {"actors": actors, "replay_shards": replay_shards, "learners": learners}
    scale = {name: value for name, value in scale_options.items() if value is not None}
    with exit_on_sigterm(), ExitStack() as engine:
        try:
            run_config = _resolve_config(task, method, preset, seed, config, list(chain(*set)), device)
            run_config = apply_overrides(run_config, {"scale": scale})
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
    if run_config.log.wandb:
        _bound_exit(status)
    return status


def _choose_trainer(config: RunConfig, address: str | None, engine: ExitStack) -> Callable[[RunConfig], Trainer]:
    """What trains it: this process alone or, with actors, also a cluster that `engine` will leave."""
    if config.scale.actors:
        return partial(_build_actor_trainer, address, engine)
    if address is not None:
        raise ValueError("--address is of a cluster for actors: say how many with --actors")
    return make_trainer


def _build_actor_trainer(address: str | None, engine: ExitStack, config: RunConfig) -> Trainer:
    from manyview.scale.cluster import check_resources, connect, count_cpus

    engine.enter_context(connect(address, cpus=count_cpus(config, spares=1)))
    check_resources("the run", cpus=count_cpus(config))
    engine.enter_context(exit_on_sigterm())  # Ray has a handler of its own
    from manyview.scale.trainer import ActorLearnerTrainer

    return ActorLearnerTrainer(config)


def _run_learners(
    config: RunConfig, run_dir: RunDir, address: str | None, logger: Logger, *, fresh: bool, accept_changes: bool
) -> int:
    """By several learners, whose records are shown as they appear in the folder."""
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
        print(f"{error}; the traceback is in {runner.run_dir.metrics_file}", file=sys.stderr)
        return EXIT_FAILED
    except (SaveFailedError, DivergedError, EngineError) as error:
        print_line(error, file=sys.stderr)
        return EXIT_FAILED
    finally:
        runner.close()
    return EXIT_INTERRUPTED if not finished and runner.stop_signal == signal.SIGINT else 0


def _bound_exit(status: int) -> None:
    """Let the process end within seconds: exit hooks of a tracker may wait for its server."""
    exiting = Event()

    def end() -> None:
        exiting.wait()
        sleep(EXIT_S)
        os._exit(status)

    Thread(target=end, daemon=True).start()  # now: at its exit a process may not start threads
    atexit.register(exiting.set)


def _resolve_config(
    task: str,
    method: str | None,
    preset: str | None,
    seed: int | None,
    file: Path | None,
    assignments: Sequence[str],
    device: str | None,
) -> RunConfig:
    if file is None:
        accelerator = torch.accelerator.is_available() and device != "cpu"
        method, seed = method or RunConfig.method, RunConfig.seed if seed is None else seed
        name = preset or choose_preset(task, method, accelerator=accelerator)
        config = load_preset(name, task=task, method=method, seed=seed)
    elif preset is not None:
        raise ValueError("--config already holds every setting: give it or --preset, not both")
    else:
        loaded = _read_config(file)
        config = replace(loaded, task=task, method=method or loaded.method, seed=loaded.seed if seed is None else seed)
    config = apply_overrides(config, nest_overrides(_parse_assignment(assignment) for assignment in assignments))
    return config if device is None else apply_overrides(config, {"machine": {"device": device}})


def _read_config(file: Path) -> RunConfig:
    try:
        return from_plain(RunConfig, read_json(file))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _parse_assignment(assignment: str) -> tuple[str, Any]:
    """`replay.batch_size=128`, as its name and value."""
    name, equals, text = assignment.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, such as replay.batch_size=128; got {assignment!r}")
    try:
        return name, json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return name, text


def _print_estimate(estimate: RunEstimate, run_dir: RunDir) -> None:
    """Print the settings as JSON that `--config` takes, then the estimate."""
    print(json.dumps(to_plain(estimate.config), indent=2))
    print()
    for line in format_estimate(estimate, run_dir):
        print_line(line)
