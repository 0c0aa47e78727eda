"""How a run begins, or goes on: its parts are built, its folder is taken, and a session is made of them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from manyview.data import Scribe
from manyview.data.durable import remove
from manyview.train import build, checkpoint
from manyview.train.config import RunConfig
from manyview.train.diary import Diary
from manyview.train.folder import RunFolder, manifest_of
from manyview.train.machine import prepare, resolved
from manyview.train.memory import keep_freed_memory
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.on_policy import OnPolicyTrainer
from manyview.train.records import JsonLines, Listener, Listeners, TensorBoard, WeightsAndBiases
from manyview.train.resume import Resumed, refuse_other_settings, resume
from manyview.train.session import Desk, Session, check_held
from manyview.train.stopping import StopRequest
from manyview.train.trainer import Trainer
from manyview.train.tree import to_plain


class FinishedError(RuntimeError):
    """There is nothing to go on with."""


def run(
    config: RunConfig,
    folder: RunFolder,
    *listeners: Listener,
    fresh: bool = False,
    accept_changes: bool = False,
    build_trainer: Callable[[RunConfig], Trainer] | None = None,
    stop: StopRequest | None = None,
) -> bool:
    """Train to the end of the schedule, from where the run in `folder` is, if there is one; False after a stop.

    `listeners` are told of every record, as the file in `folder` is.
    """
    session = begin(
        config,
        folder,
        *listeners,
        fresh=fresh,
        accept_changes=accept_changes,
        build_trainer=build_trainer,
        stop=stop,
    )
    try:
        return session.play()
    finally:
        session.close()


def begin(
    config: RunConfig,
    folder: RunFolder,
    *listeners: Listener,
    fresh: bool = False,
    accept_changes: bool = False,
    build_trainer: Callable[[RunConfig], Trainer] | None = None,
    stop: StopRequest | None = None,
) -> Session:
    """Build a run and take its folder, or go on with the run that is in it.

    What is wrong with the settings, the machine or the folder shows here.

    Args:
        config: every setting; those of the run in the folder, if there is one.
        folder: of the run.
        listeners: are told of every record, as the file in the folder is.
        fresh: begin again; the run that is in the folder gets another name.
        accept_changes: go on although versions or threads are not those of the run so far.
        build_trainer: what trains; None for one process.
        stop: who asks for a stop; None for SIGTERM and Ctrl-C.

    """
    refuse_unfit_folder(config, folder, fresh=fresh)
    prepare(config.machine)
    trainer = (build_trainer or trainer_for)(config)
    if folder.taken and fresh:
        folder.set_aside()
    evaluation_envs = _evaluation_envs(trainer)
    lock = folder.hold()
    scribe = Scribe(partial(check_held, folder, lock))
    try:
        log = trainer.log(folder.replay, scribe)
        made_with = _manifest(trainer)
        resumed = resume(trainer, log, folder.checkpoints, made_with, accept_changes=accept_changes)
        keep_freed_memory()  # after the replay has its own
        if resumed is not None and not folder.manifest_file.exists():
            resumed = _rebuild_manifest(folder, resumed)
        manifest = _with_earlier(folder, made_with, resumed, trainer)
        services = _services(config, folder, run_id=manifest["id"], since=trainer.clock.frames if resumed else None)
        folder.begin(trainer.config, manifest)
        diary = resumed.diary if resumed else Diary()
        lines = JsonLines(folder.metrics_file, keep_bytes=diary.metrics_bytes, sha256=diary.metrics_sha256)
    except BaseException:
        for opened in (scribe, lock, *evaluation_envs.values(), trainer):
            opened.close()
        raise
    told, desk = Listeners(lines, *services, *listeners), Desk(lines, scribe, log, lock, made_with)
    return Session(trainer, evaluation_envs, folder, told, desk, resumed, stop)


def check(config: RunConfig, folder: RunFolder, *, fresh: bool) -> None:
    """What is wrong with settings, task or folder shows here too, before other processes do the work of `begin`."""
    refuse_unfit_folder(config, folder, fresh=fresh)
    env = build.environment(config)
    build.shapes_of(config, env)
    env.close()


def refuse_unfit_folder(config: RunConfig, folder: RunFolder, *, fresh: bool) -> None:
    """A run goes on with the settings it began with, and not if it has finished."""
    folder.refuse_links()
    if fresh or not folder.taken:
        return
    now = replace(config, machine=resolved(config.machine))
    refuse_other_settings(to_plain(folder.config()), to_plain(now))
    if folder.finished:
        if not config.log.keep_replay:
            remove(folder.replay)  # a kill may have come before
        raise FinishedError(f"{folder.path} has finished; --fresh begins again")


def trainer_for(config: RunConfig) -> Trainer:
    """Algorithm 1 or 2 in this process, as the agent is off- or on-policy."""
    if config.scale.actors:
        raise ValueError("scale.actors needs Ray: `manyview train --actors`, or `build_trainer=ManyActors`")
    return OnPolicyTrainer(config) if config.on_policy else OffPolicyTrainer(config)


def _evaluation_envs(trainer: Trainer) -> dict[str, Any]:
    """The task as it is trained on; and on all levels, where training has some of them only. None if none is played."""
    if trainer.config.evaluation.episodes == 0:
        return {}
    every = build.levels_of(trainer.env.metadata.get("settings"))
    return {levels or "all": build.environment(trainer.config, levels=levels) for levels in every}


def _manifest(trainer: Trainer) -> dict[str, Any]:
    settings = trainer.env.metadata.get("settings")
    return manifest_of(
        trainer.config,
        renderer=trainer.renderer,
        views=[view.name for view in trainer.shapes.views],
        settings=None if settings is None else to_plain(settings),
        parameters=trainer.parameter_count,
        replay_bytes=trainer.data_bytes,
    )


def _rebuild_manifest(folder: RunFolder, resumed: Resumed) -> Resumed:
    """Write the run's manifest anew from the one in its checkpoint, and say so."""
    folder.write_manifest(checkpoint.manifest_of(resumed.folder))
    text = f"{folder.manifest_file.name} was missing: rebuilt from checkpoint {resumed.folder.name}"
    return replace(resumed, changes=[*resumed.changes, text])


def _with_earlier(
    folder: RunFolder, manifest: dict[str, Any], resumed: Resumed | None, trainer: Trainer
) -> dict[str, Any]:
    """The manifest of this process, and of those before it."""
    if resumed is None:
        return manifest
    before = folder.manifest()
    earlier = {name: before[name] for name in ("began", "host", "pid", "commit", "resumed_at") if name in before}
    here = {"frames": trainer.clock.frames, "promise": resumed.promise}
    kept = {"id": before.get("id", manifest["id"]), "earlier": [*before.get("earlier", []), earlier]}
    return {**manifest, **kept, "resumed_at": here}


def _services(config: RunConfig, folder: RunFolder, *, run_id: str, since: int | None) -> Sequence[Listener]:
    services: list[Listener] = []
    if config.log.tensorboard:
        with suppress(ModuleNotFoundError):  # JSON lines are the truth
            services.append(TensorBoard(folder.tensorboard, since_frames=since))
    if config.log.wandb:
        name, plain = str(folder.path), to_plain(config)
        services.append(WeightsAndBiases(folder.path, name=name, id=run_id, config=plain))
    return services
