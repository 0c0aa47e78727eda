"""How a run begins, or goes on: its parts are built, its folder is taken, and a session is made of them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from manyview.config.overrides import to_plain
from manyview.config.schema import RunConfig
from manyview.data import AsyncWriter
from manyview.train import factory
from manyview.train.checkpoint import RunnerState
from manyview.train.compute import configure_torch, resolve_machine
from manyview.train.loggers import JsonLinesLogger, Logger, LoggerCollection, TensorBoardLogger, WandbLogger
from manyview.train.manifest import build_manifest, extend_manifest, rebuild_manifest
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.on_policy import OnPolicyTrainer
from manyview.train.resume import check_same_settings, resume
from manyview.train.run_dir import RunDir
from manyview.train.runner import RunIO, Runner, check_held
from manyview.train.signals import StopRequest
from manyview.train.trainer import Trainer
from manyview.utils.atomic_io import remove
from manyview.utils.resources import keep_freed_memory


class RunFinishedError(RuntimeError):
    """There is nothing to go on with."""


def run(
    config: RunConfig,
    run_dir: RunDir,
    *loggers: Logger,
    fresh: bool = False,
    accept_changes: bool = False,
    build_trainer: Callable[[RunConfig], Trainer] | None = None,
    stop: StopRequest | None = None,
) -> bool:
    """Train to the end of the schedule, from where the run in `run_dir` is, if there is one; False after a stop.

    `loggers` get every record, as the file in `run_dir` does.
    """
    runner = build_runner(
        config,
        run_dir,
        *loggers,
        fresh=fresh,
        accept_changes=accept_changes,
        build_trainer=build_trainer,
        stop=stop,
    )
    try:
        return runner.run()
    finally:
        runner.close()


def build_runner(
    config: RunConfig,
    run_dir: RunDir,
    *loggers: Logger,
    fresh: bool = False,
    accept_changes: bool = False,
    build_trainer: Callable[[RunConfig], Trainer] | None = None,
    stop: StopRequest | None = None,
) -> Runner:
    """Build a run and take its folder, or go on with the run that is in it.

    What is wrong with the settings, the machine or the folder shows here.

    Args:
        config: every setting; those of the run in the folder, if there is one.
        run_dir: of the run.
        loggers: get every record, as the file in the folder is.
        fresh: begin again; the run that is in the folder gets another name.
        accept_changes: go on although versions or threads are not those of the run so far.
        build_trainer: what trains; None for one process.
        stop: who asks for a stop; None for SIGTERM and Ctrl-C.

    """
    check_run_dir(config, run_dir, fresh=fresh)
    configure_torch(config.machine)
    trainer = (build_trainer or make_trainer)(config)
    if run_dir.has_run and fresh:
        run_dir.move_aside()
    evaluation_envs = _make_evaluation_envs(trainer)
    lock = run_dir.lock()
    writer = AsyncWriter(partial(check_held, run_dir, lock))
    try:
        segment_log = trainer.open_log(run_dir.replay_dir, writer)
        process_manifest = build_manifest(trainer)
        resume_info = resume(
            trainer, segment_log, run_dir.checkpoints_dir, process_manifest, accept_changes=accept_changes
        )
        keep_freed_memory()  # after the replay has its own
        if resume_info is not None and not run_dir.manifest_file.exists():
            resume_info = rebuild_manifest(run_dir, resume_info)
        manifest = extend_manifest(run_dir, process_manifest, resume_info, trainer)
        service_loggers = _build_service_loggers(
            config, run_dir, run_id=manifest["id"], since_frames=trainer.counters.frames if resume_info else None
        )
        run_dir.initialize(trainer.config, manifest)
        diary = resume_info.runner_state if resume_info else RunnerState()
        metrics_logger = JsonLinesLogger(
            run_dir.metrics_file, keep_bytes=diary.metrics_bytes, sha256=diary.metrics_sha256
        )
    except BaseException:
        for resource in (writer, lock, *evaluation_envs.values(), trainer):
            resource.close()
        raise
    all_loggers, io = (
        LoggerCollection(metrics_logger, *service_loggers, *loggers),
        RunIO(metrics_logger, writer, segment_log, lock, process_manifest),
    )
    return Runner(trainer, evaluation_envs, run_dir, all_loggers, io, resume_info, stop)


def check_run(config: RunConfig, run_dir: RunDir, *, fresh: bool) -> None:
    """What is wrong with settings, task or folder shows here too, before other processes do the work of `begin`."""
    check_run_dir(config, run_dir, fresh=fresh)
    env = factory.make_env(config)
    factory.infer_shapes(config, env)
    env.close()


def check_run_dir(config: RunConfig, run_dir: RunDir, *, fresh: bool) -> None:
    """A run goes on with the settings it began with, and not if it has finished."""
    run_dir.check_no_links()
    if fresh or not run_dir.has_run:
        return
    now = replace(config, machine=resolve_machine(config.machine))
    check_same_settings(to_plain(run_dir.read_config()), to_plain(now))
    if run_dir.is_finished:
        if not config.log.keep_replay:
            remove(run_dir.replay_dir)  # a kill may have come before
        raise RunFinishedError(f"{run_dir.path} has finished; --fresh begins again")


def make_trainer(config: RunConfig) -> Trainer:
    """Algorithm 1 or 2 in this process, as the agent is off- or on-policy."""
    if config.scale.actors:
        raise ValueError("scale.actors needs Ray: `manyview train --actors`, or `build_trainer=ActorLearnerTrainer`")
    return OnPolicyTrainer(config) if config.is_on_policy else OffPolicyTrainer(config)


def _make_evaluation_envs(trainer: Trainer) -> dict[str, Any]:
    """The task as it is trained on; and on all levels, where training has some of them only. None if none is played."""
    if trainer.config.evaluation.episodes == 0:
        return {}
    all_levels = factory.list_evaluation_levels(trainer.env.metadata.get("settings"))
    return {levels or "all": factory.make_env(trainer.config, levels=levels) for levels in all_levels}


def _build_service_loggers(
    config: RunConfig, run_dir: RunDir, *, run_id: str, since_frames: int | None
) -> Sequence[Logger]:
    loggers: list[Logger] = []
    if config.log.tensorboard:
        with suppress(ModuleNotFoundError):  # JSON lines are the truth
            loggers.append(TensorBoardLogger(run_dir.tensorboard_dir, since_frames=since_frames))
    if config.log.wandb:
        name, plain = str(run_dir.path), to_plain(config)
        loggers.append(WandbLogger(run_dir.path, name=name, id=run_id, config=plain))
    return loggers
