"""Data-parallel learners of one run on Ray Train: the leader has the runner, the followers repeat its updates."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import torch
from torch import distributed

from manyview.agents import Agent, NonFiniteError
from manyview.scale.batch_loader import BatchLoader
from manyview.scale.cluster import count_gpus, count_learner_cpus
from manyview.scale.heartbeat import Heartbeat, HeartbeatReader, send_heartbeats
from manyview.scale.ray_runtime import Handle, extract_cause, import_ray_module
from manyview.scale.shared_fs import check_marker, create_marker, enter_directory, retry_while_locked
from manyview.scale.trainer import ActorLearnerTrainer
from manyview.training import RunConfig, RunDir, factory
from manyview.training.checkpoint import CHECKSUMS_FILE, FILES, deserialize_checkpoint, serialize_checkpoint
from manyview.training.compute import autocast, configure_torch, resolve_compute, resolve_device
from manyview.training.runner import Runner
from manyview.training.signals import StopRequest, handle_stop_signals, set_current_request
from manyview.training.trainer import EngineError
from manyview.utils.atomic_io import remove, write_atomic
from manyview.utils.seeding import derive_seed

UPDATE, SYNC_AGENT, STOP = 0, 1, 2
"""Commands of the leader: update on the part of the next batch, load the leader's agent, stop."""
MESSAGE_TIMEOUT_S = 7 * 24 * 3600
"""Timeout of the leader's messages: it may wait long for actors, and heartbeats show that it is alive."""
COLLECTIVE_TIMEOUT_S = 600.0
"""Timeout of collective operations in an update, longer than the deadline of a follower's batch."""
SILENT_S, STOPPING_SILENT_S = 30.0, 4.0
"""Time without a heartbeat after which a rank is reported as hanging; the same once a stop is requested."""
REPLACE_AFTER_S = 60.0
"""Time without an answer to Ray after which a rank is killed and all resume from the newest checkpoint."""
POLL_INTERVAL_S = 0.5
"""Interval at which the command checks signals and heartbeats."""
FAILURE_FILE = "failure"
"""File in the storage directory: why a rank could not save after a stop request."""
STOP_FILE = "stop"
"""File in the run directory: tells the leader to save and exit."""


class LearnersFailedError(EngineError):
    """Learners died or failed more often than the retries allow, or could not answer a stop request."""


class Leader:
    """Broadcasts commands to the followers. Gradients and moments are all-reduced in `utils.distributed`."""

    _num_shards = 0

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast_shards(self, shards: Sequence[Handle]) -> None:
        """Send the handles of the shards that batches come from; this is the first message."""
        self._num_shards = len(shards)
        _broadcast_value(list(shards))

    def broadcast_agent(self, agent: Agent, step: int) -> None:
        """Copy the agent to all followers, after it was built or loaded."""
        self._broadcast_command(SYNC_AGENT, step)
        _broadcast_files(serialize_checkpoint(agent.get_state(), {}))

    def broadcast_update(self, step: int, shard_sizes: Sequence[int]) -> None:
        """Announce an update at this agent step, with the agent steps in each shard."""
        self._broadcast_command(UPDATE, step, *shard_sizes)

    def stop_followers(self) -> None:
        """Tell all followers to return."""
        self._broadcast_command(STOP)

    def _broadcast_command(self, command: int, step: int = 0, *shard_sizes: int) -> None:
        message = torch.tensor([command, step, *(shard_sizes or [0] * self._num_shards)])
        distributed.broadcast(message, src=0, group=self._group)


def run_follower(config: RunConfig, group: Any) -> None:
    """Execute the leader's commands until it stops the followers."""
    config = replace(config, compute=resolve_compute(config.compute))
    device, env = resolve_device(config.compute), factory.make_env(config)
    agent = factory.build_agent(config, factory.infer_shapes(config, env))
    env.close()
    shards = _broadcast_value(None)
    shard_sizes, message = [0] * len(shards), torch.zeros(2 + len(shards), dtype=torch.int64)
    batches = BatchLoader(shards, device, shard_sizes=shard_sizes)
    while True:
        distributed.broadcast(message, src=0, group=group)
        command, step, *shard_sizes[:] = message.tolist()
        if command == STOP:
            return
        if command == SYNC_AGENT:
            agent.load_state(deserialize_checkpoint(_broadcast_files(None)).state)
            _reseed_generators(agent, config.seed, step)
            continue
        # Gradients are all-reduced: a non-finite value reaches all ranks, and the leader handles it.
        with suppress(NonFiniteError), autocast(config.compute):
            agent.update(batches.sample(), step)


def train_distributed(
    config: RunConfig,
    run_dir: RunDir,
    *,
    accept_changes: bool = False,
    retries: int = 3,
    warn: Callable[[str], None] = lambda _: None,
) -> int | None:
    """Train to the end of the schedule or until a stop signal; return the number of that signal, or None.

    If a learner dies or hangs, all resume from the newest checkpoint, at most `retries` times. `warn` receives a
    message about a learner that hangs.

    Raises:
        LearnersFailedError: The retries are used up, or the learners could not answer a stop request.

    """
    storage_dir = run_dir.path.absolute().with_name(f".{run_dir.path.name}.learners")
    remove(storage_dir)  # stale heartbeats of a killed command
    try:
        with create_marker(storage_dir) as marker, handle_stop_signals() as stop:
            train_fn = partial(
                _run_rank, config, run_dir.path.absolute(), Path.cwd(), marker=marker, accept_changes=accept_changes
            )
            trainer = _build_torch_trainer(config, train_fn, storage_dir, retries=retries)
            failure = _fit_until_stopped(trainer, stop, run_dir.path / STOP_FILE, storage_dir, warn)
    finally:
        remove(storage_dir)  # the run directory has everything that a resume needs
    if failure is not None:
        raise LearnersFailedError(extract_cause(failure)) from failure
    return stop.signal


class LearnerMonitor:
    """Reports the rank that hangs, and ends the wait for it after a stop request."""

    def __init__(self, storage_dir: Path, warn: Callable[[str], None]) -> None:
        self._failure, self._warn, self._reader = storage_dir / FAILURE_FILE, warn, HeartbeatReader(storage_dir)
        self._warned = False

    def poll(self, elapsed_s: float, *, stopping: bool) -> None:
        """Check heartbeats, `elapsed_s` after the last poll.

        Raises:
            LearnersFailedError: A stop is requested, and a rank hangs or could not save.

        """
        self._reader.poll(elapsed_s)
        if stopping and self._failure.exists():
            raise LearnersFailedError(self._failure.read_text(encoding="utf-8"))
        # The longest silent one: Ray ends all others to replace it, so that they become silent too.
        rank, heartbeat = max(
            self._reader.heartbeats.items(), key=lambda pair: pair[1].silent_s, default=(0, Heartbeat())
        )
        problem = f"the learner of rank {rank} ({heartbeat.process}) does not answer"
        if stopping and heartbeat.silent_s >= STOPPING_SILENT_S:
            raise LearnersFailedError(
                f"{problem}: expected a heartbeat within {STOPPING_SILENT_S:g} s, so no checkpoint of this moment is "
                "written. Repeat the command to resume from the newest checkpoint"
            )
        if heartbeat.silent_s >= SILENT_S and not self._warned:
            self._warn(
                f"{problem} for {SILENT_S:g} s: after {REPLACE_AFTER_S:g} s it is replaced, and all learners resume "
                "from the newest checkpoint"
            )
        self._warned = heartbeat.silent_s >= SILENT_S


class StopFileRequest(StopRequest):
    """Stop request that also checks for a file, which the command creates when it receives a signal."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._checked_s = file, 0.0

    def __bool__(self) -> bool:
        if self.signal is None and monotonic() - self._checked_s > POLL_INTERVAL_S:
            self._checked_s = monotonic()
            if self._file.exists():
                self.request(signal.SIGTERM)
        return super().__bool__()


def _reseed_generators(agent: Agent, seed: int, step: int) -> None:
    """Give this rank other random streams than the leader, since it trains on other rows."""
    rank = distributed.get_rank()
    for number, part in enumerate(agent.modules()):
        for value in vars(part).values():
            if isinstance(value, torch.Generator):
                value.manual_seed(derive_seed(seed, "learner", rank, step, number))


def _build_torch_trainer(config: RunConfig, train_fn: Callable[[], None], storage_dir: Path, *, retries: int) -> Any:
    on_gpu = count_gpus(config) > 0
    os.environ.setdefault("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", str(REPLACE_AFTER_S))  # default 600 s
    train, torch_train = import_ray_module("train"), import_ray_module("train.torch")
    return torch_train.TorchTrainer(
        train_fn,
        # Messages go through the CPU, gradients through their device.
        torch_config=torch_train.TorchConfig(
            backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout_s=COLLECTIVE_TIMEOUT_S
        ),
        scaling_config=train.ScalingConfig(
            num_workers=config.scale.learners,
            use_gpu=on_gpu,
            resources_per_worker={"CPU": count_learner_cpus(config), "GPU": int(on_gpu)},
        ),
        run_config=train.RunConfig(
            storage_path=str(storage_dir), failure_config=train.FailureConfig(max_failures=retries)
        ),
    )


def _fit_until_stopped(
    trainer: Any, stop: StopRequest, stop_file: Path, storage_dir: Path, warn: Callable[[str], None]
) -> BaseException | None:
    """Run `trainer` and create `stop_file` when a stop is requested; return the error of the trainer, if any."""
    failures: list[BaseException] = []

    def fit() -> None:  # in a thread: in the main thread it handles Ctrl-C itself and exits without a checkpoint
        try:
            trainer.fit()
        except BaseException as error:
            failures.append(error)

    remove(stop_file)
    thread = Thread(target=fit, daemon=True)
    thread.start()
    monitor = LearnerMonitor(storage_dir, warn)
    try:
        while thread.is_alive():
            thread.join(POLL_INTERVAL_S)
            if stop:
                stop_file.touch()
            monitor.poll(POLL_INTERVAL_S, stopping=bool(stop))
    finally:
        remove(stop_file)
    return failures[0] if failures else None


def _run_rank(config: RunConfig, path: Path, working_dir: Path, *, marker: Path, accept_changes: bool) -> None:
    check_marker(marker)
    enter_directory(working_dir)  # Ray Train changes the working directory
    configure_torch(config.compute)
    run_dir = RunDir(path)
    if run_dir.has_run and run_dir.is_finished:  # a learner died at the very end
        return
    rank, stop = distributed.get_rank(), StopFileRequest(path / STOP_FILE)
    set_current_request(stop)
    messages = distributed.new_group(backend="gloo", timeout=timedelta(seconds=MESSAGE_TIMEOUT_S))
    with send_heartbeats(marker.parent, rank):
        try:
            if rank:
                run_follower(config, messages)
            else:
                _run_leader(config, run_dir, Leader(messages), stop, accept_changes=accept_changes)
        except EngineError as error:
            if stop:  # the command exits with this error instead of restarting the learners only to stop them
                write_atomic(marker.parent / FAILURE_FILE, [str(error).encode()])
            raise


def _run_leader(config: RunConfig, run_dir: RunDir, leader: Leader, stop: StopRequest, *, accept_changes: bool) -> None:
    build_trainer: Callable[[RunConfig], ActorLearnerTrainer] = partial(ActorLearnerTrainer, leader=leader)
    if run_dir.has_run:
        retry_while_locked(run_dir.lock).close()  # waits until a killed leader is gone
    with Runner(config, run_dir, accept_changes=accept_changes, build_trainer=build_trainer, stop=stop) as runner:
        runner.run()
    leader.stop_followers()


def _broadcast_value(value: Any) -> Any:
    """Return the leader's value on all ranks; through Ray, which can serialize its handles."""
    return import_ray_module("train.collective").broadcast_from_rank_zero(value)


def _broadcast_files(contents: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Return the files of the leader's checkpoint on all ranks; raw bytes cannot execute code."""
    names = (*FILES, CHECKSUMS_FILE)
    sizes = torch.tensor([len(contents[name]) if contents else 0 for name in names])
    distributed.broadcast(sizes, src=0)
    files = torch.zeros(int(sizes.sum()), dtype=torch.uint8)
    if contents:
        files = torch.frombuffer(bytearray().join(contents[name] for name in names), dtype=torch.uint8)
    distributed.broadcast(files, src=0)
    return {name: part.numpy().tobytes() for name, part in zip(names, files.split(sizes.tolist()), strict=True)}
