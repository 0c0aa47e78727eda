"""Several learners of one run, through Ray Train: one leads and has the session, the others follow its every update."""

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
from manyview.scale.cluster import check_resources, count_cpus, count_learner_cpus
from manyview.scale.heartbeat import Heartbeats, Pulse, beating
from manyview.scale.ray_runtime import Handle, extract_cause, import_ray_module
from manyview.scale.shared_fs import check_marker, create_marker, enter_directory, retry_while_locked
from manyview.scale.trainer import ActorLearnerTrainer
from manyview.train import RunConfig, RunDir, factory
from manyview.train.checkpoint import CHECKSUMS_FILE, FILES, deserialize_checkpoint, serialize_checkpoint
from manyview.train.compute import autocast, configure_torch, resolve_device, resolve_machine
from manyview.train.runner import Runner
from manyview.train.signals import StopRequest, handle_stop_signals, set_current_request
from manyview.train.trainer import EngineError
from manyview.utils.atomic_io import remove, write_atomic
from manyview.utils.seeding import derive_seed

UPDATE, SYNC_AGENT, STOP = 0, 1, 2
"""What a leader may say: learn from your part of the next batch, be as I am, it is over."""
COLLECTIVE_TIMEOUT_S = 7 * 24 * 3600
"""Timeout of the leader's messages: it may wait long for actors, and heartbeats tell whether it lives."""
COLLECTIVE_S = 600.0
"""Timeout of the collective operations of an update. Within it a follower has waited for its batch in vain."""
SILENT_S, STOPPING_SILENT_S = 30.0, 4.0
"""Without a heartbeat, a rank is reported as hung; the same once a stop is requested."""
REPLACED_S = 60.0
"""Without an answer to Ray, a rank is killed and all begin again from the newest checkpoint."""
LOOK_S = 0.5
"""Interval at which the command looks at signals and heartbeats."""
FAILURE_FILE = "failure"
"""Beside a run's folder: why a rank could not save after a request to stop."""
STOP_FILE = "stop"
"""In a run's folder: the leader is to save and to leave."""


class LearnersFailedError(RuntimeError):
    """They died, or failed, more often than they may."""


class Leader:
    """Says what all do next. Gradients and moments meet by themselves (`mem.ranks`)."""

    _num_shards = 0

    def __init__(self, group: Any) -> None:
        self._group = group

    def broadcast_shards(self, shards: Sequence[Handle]) -> None:
        """The first thing that is said: where batches come from."""
        self._num_shards = len(shards)
        _broadcast_value(list(shards))

    def broadcast_agent(self, agent: Agent, step: int) -> None:
        """After the agent was made or loaded: whoever follows becomes it."""
        self._broadcast_command(SYNC_AGENT, step)
        _broadcast_files(serialize_checkpoint(agent.get_state(), {}))

    def broadcast_update(self, step: int, shard_sizes: Sequence[int]) -> None:
        """Before an update at this agent step, with so many steps in each shard."""
        self._broadcast_command(UPDATE, step, *shard_sizes)

    def stop_followers(self) -> None:
        self._broadcast_command(STOP)

    def _broadcast_command(self, command: int, step: int = 0, *shard_sizes: int) -> None:
        message = torch.tensor([command, step, *(shard_sizes or [0] * self._num_shards)])
        distributed.broadcast(message, src=0, group=self._group)


def run_follower(config: RunConfig, group: Any) -> None:
    """Learn as the leader says, until it is over."""
    config = replace(config, machine=resolve_machine(config.machine))
    device, env = resolve_device(config.machine), factory.make_env(config)
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
        with suppress(NonFiniteError), autocast(config.machine):  # not finite here is not finite anywhere
            agent.update(batches.sample(), step)


def _reseed_generators(agent: Agent, seed: int, step: int) -> None:
    """What is random is so for other rows than the leader's."""
    rank = distributed.get_rank()
    for number, part in enumerate(agent.modules()):
        for value in vars(part).values():
            if isinstance(value, torch.Generator):
                value.manual_seed(derive_seed(seed, "learner", rank, step, number))


def train_distributed(
    config: RunConfig,
    run_dir: RunDir,
    *,
    accept_changes: bool = False,
    retries: int = 3,
    warn: Callable[[str], None] = lambda _: None,
) -> int | None:
    """Train to the end of the schedule, or until a signal asks for a stop; the number of that signal.

    Should a learner die or hang, all begin again from the last checkpoint. `warn` is told of one that hangs.
    """
    on_gpu = resolve_machine(config.machine).device != "cpu"
    check_resources("the run", cpus=count_cpus(config), gpus=config.scale.learners * on_gpu)
    retry_while_locked(run_dir.lock).close()  # nobody else trains here; and the folder is there, for the file of a stop
    storage_dir = run_dir.path.absolute().with_name(f".{run_dir.path.name}.learners")
    remove(storage_dir)  # of a command that was killed: heartbeats that nobody gives any more
    try:
        with create_marker(storage_dir) as marker, handle_stop_signals() as stop:
            train_fn = partial(
                _run_rank, config, run_dir.path.absolute(), Path.cwd(), marker=marker, accept_changes=accept_changes
            )
            trainer = _build_torch_trainer(config, train_fn, storage_dir, on_gpu=on_gpu, retries=retries)
            failure = _fit_until_stopped(trainer, stop, run_dir.path / STOP_FILE, storage_dir, warn)
    finally:
        remove(storage_dir)  # the run's folder has all that is needed again
    if failure is not None:
        raise LearnersFailedError(extract_cause(failure)) from failure
    return stop.signal


def _build_torch_trainer(
    config: RunConfig, train_fn: Callable[[], None], storage_dir: Path, *, on_gpu: bool, retries: int
) -> Any:
    os.environ.setdefault("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", str(REPLACED_S))  # else ten minutes
    train, torch_train = import_ray_module("train"), import_ray_module("train.torch")
    return torch_train.TorchTrainer(
        train_fn,
        # What is said goes through the CPU, gradients where they are.
        torch_config=torch_train.TorchConfig(
            backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout_s=COLLECTIVE_S
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
    trainer: Any, stop: StopRequest, stop_file: Path, beside: Path, warn: Callable[[str], None]
) -> BaseException | None:
    """To the end, or until a stop, for which a file is laid down; what went wrong."""
    failures: list[BaseException] = []

    def fit() -> None:  # in a thread: elsewhere it would take Ctrl-C for itself, and leave without a checkpoint
        try:
            trainer.fit()
        except BaseException as error:
            failures.append(error)

    remove(stop_file)
    thread = Thread(target=fit, daemon=True)
    thread.start()
    watch = Watch(beside, warn)
    try:
        while thread.is_alive():
            thread.join(LOOK_S)
            if stop:
                stop_file.touch()
            watch.look(LOOK_S, stopping=bool(stop))
    finally:
        remove(stop_file)
    return failures[0] if failures else None


class Watch:
    """Names the rank that hangs, and ends the wait for it after a request to stop."""

    def __init__(self, beside: Path, warn: Callable[[str], None]) -> None:
        self._failure, self._warn, self._beats = beside / FAILURE_FILE, warn, Heartbeats(beside)
        self._warned = False

    def look(self, elapsed_s: float, *, stopping: bool) -> None:
        """Call at regular intervals; raises `LearnersFailedError` if a stop cannot be answered."""
        self._beats.look(elapsed_s)
        if stopping and self._failure.exists():
            raise LearnersFailedError(self._failure.read_text(encoding="utf-8"))
        # The longest silent: Ray ends all others to replace it, and they fall silent too.
        rank, pulse = max(self._beats.pulses.items(), key=lambda pair: pair[1].silent_s, default=(0, Pulse()))
        hangs = f"the learner of rank {rank} ({pulse.who}) does not answer"
        if stopping and pulse.silent_s >= STOPPING_SILENT_S:
            raise LearnersFailedError(
                f"{hangs}: expected a sign of life within {STOPPING_SILENT_S:g} s, so no checkpoint of this moment is "
                "written. The same command goes on from the newest checkpoint"
            )
        if pulse.silent_s >= SILENT_S and not self._warned:
            self._warn(
                f"{hangs} for {SILENT_S:g} s: after {REPLACED_S:g} s it is replaced, and all learners go on from the "
                "newest checkpoint"
            )
        self._warned = pulse.silent_s >= SILENT_S


def _run_rank(config: RunConfig, path: Path, working_dir: Path, *, marker: Path, accept_changes: bool) -> None:
    check_marker(marker)
    enter_directory(working_dir)  # Ray Train has its own idea of where it is
    configure_torch(config.machine)
    run_dir = RunDir(path)
    if run_dir.has_run and run_dir.is_finished:  # a learner died at the very end
        return
    rank, stop = distributed.get_rank(), StopFileRequest(path / STOP_FILE)
    set_current_request(stop)
    messages = distributed.new_group(backend="gloo", timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    with beating(marker.parent, rank):
        try:
            if rank:
                run_follower(config, messages)
            else:
                _lead(config, run_dir, Leader(messages), stop, accept_changes=accept_changes)
        except EngineError as error:
            if stop:  # the command leaves with this, instead of beginning again to stop
                write_atomic(marker.parent / FAILURE_FILE, [str(error).encode()])
            raise


def _lead(config: RunConfig, folder: RunDir, leader: Leader, stop: StopRequest, *, accept_changes: bool) -> None:
    leads: Callable[[RunConfig], ActorLearnerTrainer] = partial(ActorLearnerTrainer, leader=leader)
    if folder.has_run:
        retry_while_locked(folder.lock).close()  # that a leader which was killed is really gone
    with Runner(config, folder, accept_changes=accept_changes, build_trainer=leads, stop=stop) as runner:
        runner.run()
    leader.stop_followers()


class StopFileRequest(StopRequest):
    """Signals reach the command, which lays down a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._checked_s = file, 0.0

    def __bool__(self) -> bool:
        if self.signal is None and monotonic() - self._checked_s > 0.5:
            self._checked_s = monotonic()
            if self._file.exists():
                self.request(signal.SIGTERM)
        return super().__bool__()


def _broadcast_value(value: Any) -> Any:
    """What the leader says, to everybody; by Ray, which knows its own."""
    return import_ray_module("train.collective").broadcast_from_rank_zero(value)


def _broadcast_files(contents: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """A checkpoint for everybody; as bytes, which can be nothing but values, whoever sends them."""
    names = (*FILES, CHECKSUMS_FILE)
    sizes = torch.tensor([len(contents[name]) if contents else 0 for name in names])
    distributed.broadcast(sizes, src=0)
    files = torch.zeros(int(sizes.sum()), dtype=torch.uint8)
    if contents:
        files = torch.frombuffer(bytearray().join(contents[name] for name in names), dtype=torch.uint8)
    distributed.broadcast(files, src=0)
    return {name: part.numpy().tobytes() for name, part in zip(names, files.split(sizes.tolist()), strict=True)}
