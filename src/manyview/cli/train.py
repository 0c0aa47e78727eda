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

from manyview.cli.arguments import FAILED, INTERRUPTED, refuse, say
from manyview.cli.display import display_for
from manyview.cli.following import shown
from manyview.cli.planned import print_plan
from manyview.data import NoRoomError
from manyview.envs.layers.boundary import ContractError, EnvError
from manyview.train import RunConfig, RunFolder, preset_config
from manyview.train.folder import default_folder
from manyview.train.opening import FinishedError, begin, check, trainer_for
from manyview.train.plan import plan
from manyview.train.presets import PRESETS, preset_for
from manyview.train.records import Listener
from manyview.train.session import DivergedError, NotSavedError, Session
from manyview.train.stopping import ended_by_sigterm
from manyview.train.trainer import EngineError, Trainer
from manyview.train.tree import changed, from_plain, nested
from manyview.utils.json_io import read_object

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
    asked = {"actors": actors, "replay_shards": replay_shards, "learners": learners}
    scale = {name: value for name, value in asked.items() if value is not None}
    with ended_by_sigterm(), ExitStack() as engine:
        try:
            resolved = _resolved(task, method, preset, seed, config, list(chain(*set)), device)
            resolved = changed(resolved, {"scale": scale})
            folder = RunFolder(out or default_folder(resolved))
            if dry_run:
                print_plan(plan(resolved), folder)
                return 0
            listener = display_for(resolved, folder)
            if resolved.scale.learners > 1:
                return _taught(resolved, folder, address, listener, fresh=fresh, accept_changes=accept_changes)
            session = begin(
                resolved,
                folder,
                listener,
                fresh=fresh,
                accept_changes=accept_changes,
                build_trainer=_trainer_of(resolved, address, engine),
            )
        except FinishedError as finished:
            say(finished)
            return 0
        except KeyboardInterrupt:
            return INTERRUPTED
        except EnvError as error:
            print(error, file=sys.stderr)
            return FAILED
        except (ValueError, TypeError, ImportError, OSError, NoRoomError, EngineError) as error:
            return refuse(error)
        status = _played(session)
    if resolved.log.wandb:
        _bound_exit(status)
    return status


def _trainer_of(config: RunConfig, address: str | None, engine: ExitStack) -> Callable[[RunConfig], Trainer]:
    """What trains it: this process alone or, with actors, also a cluster that `engine` will leave."""
    if config.scale.actors:
        return partial(_with_actors, address, engine)
    if address is not None:
        raise ValueError("--address is of a cluster for actors: say how many with --actors")
    return trainer_for


def _with_actors(address: str | None, engine: ExitStack, config: RunConfig) -> Trainer:
    from manyview.scale.cluster import check_resources, connected, cpus_of

    engine.enter_context(connected(address, cpus=cpus_of(config, spares=1)))
    check_resources("the run", cpus=cpus_of(config))
    engine.enter_context(ended_by_sigterm())  # Ray has a handler of its own
    from manyview.scale.trainer import ManyActors

    return ManyActors(config)


def _taught(
    config: RunConfig, folder: RunFolder, address: str | None, listener: Listener, *, fresh: bool, accept_changes: bool
) -> int:
    """By several learners, whose records are shown as they appear in the folder."""
    from manyview.scale.cluster import connected, cpus_of

    check(config, folder, fresh=fresh)
    with connected(address, cpus=cpus_of(config, spares=1)), ended_by_sigterm():
        from manyview.scale.learners import LearnersFailedError, learn_together

        if folder.taken and fresh:
            folder.set_aside()
        try:
            with shown(folder.metrics_file, listener):
                warn = partial(print, file=sys.stderr, flush=True)
                stopped_by = learn_together(config, folder, accept_changes=accept_changes, warn=warn)
        except LearnersFailedError as error:
            say(error, file=sys.stderr)
            return FAILED
    if folder.finished:
        return 0
    if stopped_by is None:
        return FAILED
    return INTERRUPTED if stopped_by == signal.SIGINT else 0


def _played(session: Session) -> int:
    try:
        finished = session.play()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (EnvError, ContractError) as error:
        print(f"{error}; the traceback is in {session.folder.metrics_file}", file=sys.stderr)
        return FAILED
    except (NotSavedError, DivergedError, EngineError) as error:
        say(error, file=sys.stderr)
        return FAILED
    finally:
        session.close()
    return INTERRUPTED if not finished and session.stopped_by == signal.SIGINT else 0


def _bound_exit(status: int) -> None:
    """Let the process end within seconds: exit hooks of a tracker may wait for its server."""
    exiting = Event()

    def end() -> None:
        exiting.wait()
        sleep(EXIT_S)
        os._exit(status)

    Thread(target=end, daemon=True).start()  # now: at its exit a process may not start threads
    atexit.register(exiting.set)


def _resolved(
    task: str,
    method: str | None,
    preset: str | None,
    seed: int | None,
    file: Path | None,
    changes: Sequence[str],
    device: str | None,
) -> RunConfig:
    if file is None:
        accelerator = torch.accelerator.is_available() and device != "cpu"
        method, seed = method or RunConfig.method, RunConfig.seed if seed is None else seed
        name = preset or preset_for(task, method, accelerator=accelerator)
        config = preset_config(name, task=task, method=method, seed=seed)
    elif preset is not None:
        raise ValueError("--config already holds every setting: give it or --preset, not both")
    else:
        given = _read_config(file)
        config = replace(given, task=task, method=method or given.method, seed=given.seed if seed is None else seed)
    config = changed(config, nested(_assigned(change) for change in changes))
    return config if device is None else changed(config, {"machine": {"device": device}})


def _read_config(file: Path) -> RunConfig:
    try:
        return from_plain(RunConfig, read_object(file))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _assigned(change: str) -> tuple[str, Any]:
    """`replay.batch_size=128`, as its name and value."""
    name, equals, text = change.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, such as replay.batch_size=128; got {change!r}")
    try:
        return name, json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return name, text
