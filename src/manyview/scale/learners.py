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
from manyview.data.durable import remove, write_whole
from manyview.scale.batches import Batches
from manyview.scale.cluster import check_resources, cpus_of, cpus_of_learner
from manyview.scale.engine import Handle, cause_of, engine_part
from manyview.scale.heartbeat import Heartbeats, Pulse, beating
from manyview.scale.patience import when_free
from manyview.scale.shared import go_to, look_for, seen_by_all
from manyview.scale.trainer import ManyActors
from manyview.train import RunConfig, RunFolder, build
from manyview.train.checkpoint import FILES, SUMS, packed, unpacked
from manyview.train.machine import autocast, device_of, prepare, resolved
from manyview.train.opening import run
from manyview.train.seeds import derived_seed
from manyview.train.stopping import StopRequest, set_current_request, stop_request
from manyview.train.trainer import EngineError

UPDATE, TAKE_OVER, END = 0, 1, 2
"""What a leader may say: learn from your part of the next batch, be as I am, it is over."""
WEEK_S = 7 * 24 * 3600
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

    _shards = 0

    def __init__(self, group: Any) -> None:
        self._group = group

    def meet(self, shards: Sequence[Handle]) -> None:
        """The first thing that is said: where batches come from."""
        self._shards = len(shards)
        _from_the_leader(list(shards))

    def hand_over(self, agent: Agent, step: int) -> None:
        """After the agent was made or loaded: whoever follows becomes it."""
        self._say(TAKE_OVER, step)
        _files_of_the_leader(packed(agent.state(), {}))

    def lead(self, step: int, held: Sequence[int]) -> None:
        """Before an update at this agent step, with so many steps in each shard."""
        self._say(UPDATE, step, *held)

    def dismiss(self) -> None:
        self._say(END)

    def _say(self, what: int, step: int = 0, *held: int) -> None:
        message = torch.tensor([what, step, *(held or [0] * self._shards)])
        distributed.broadcast(message, src=0, group=self._group)


def follow(config: RunConfig, group: Any) -> None:
    """Learn as the leader says, until it is over."""
    config = replace(config, machine=resolved(config.machine))
    device, env = device_of(config.machine), build.environment(config)
    agent = build.agent(config, build.shapes_of(config, env))
    env.close()
    shards = _from_the_leader(None)
    held, message = [0] * len(shards), torch.zeros(2 + len(shards), dtype=torch.int64)
    batches = Batches(shards, device, held=held)
    while True:
        distributed.broadcast(message, src=0, group=group)
        what, step, *held[:] = message.tolist()
        if what == END:
            return
        if what == TAKE_OVER:
            agent.load_state(unpacked(_files_of_the_leader(None)).tree)
            _draw_anew(agent, config.seed, step)
            continue
        with suppress(NonFiniteError), autocast(config.machine):  # not finite here is not finite anywhere
            agent.update(batches.next(), step)


def _draw_anew(agent: Agent, seed: int, step: int) -> None:
    """What is random is so for other rows than the leader's."""
    rank = distributed.get_rank()
    for number, part in enumerate(agent.modules()):
        for value in vars(part).values():
            if isinstance(value, torch.Generator):
                value.manual_seed(derived_seed(seed, "learner", rank, step, number))


def learn_together(
    config: RunConfig,
    folder: RunFolder,
    *,
    accept_changes: bool = False,
    retries: int = 3,
    warn: Callable[[str], None] = lambda _: None,
) -> int | None:
    """Train to the end of the schedule, or until a signal asks for a stop; the number of that signal.

    Should a learner die or hang, all begin again from the last checkpoint. `warn` is told of one that hangs.
    """
    on_gpu = resolved(config.machine).device != "cpu"
    check_resources("the run", cpus=cpus_of(config), gpus=config.scale.learners * on_gpu)
    when_free(folder.hold).close()  # nobody else trains here; and the folder is there, for the file of a stop
    beside = folder.path.absolute().with_name(f".{folder.path.name}.learners")
    remove(beside)  # of a command that was killed: heartbeats that nobody gives any more
    try:
        with seen_by_all(beside) as sign, stop_request() as stop:
            work = partial(_rank, config, folder.path.absolute(), Path.cwd(), sign=sign, accept_changes=accept_changes)
            trainer = _group(config, work, beside, on_gpu=on_gpu, retries=retries)
            failure = _fitted(trainer, stop, folder.path / STOP_FILE, beside, warn)
    finally:
        remove(beside)  # the run's folder has all that is needed again
    if failure is not None:
        raise LearnersFailedError(cause_of(failure)) from failure
    return stop.asked


def _group(config: RunConfig, work: Callable[[], None], beside: Path, *, on_gpu: bool, retries: int) -> Any:
    os.environ.setdefault("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", str(REPLACED_S))  # else ten minutes
    train, torch_train = engine_part("train"), engine_part("train.torch")
    return torch_train.TorchTrainer(
        work,
        # What is said goes through the CPU, gradients where they are.
        torch_config=torch_train.TorchConfig(
            backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout_s=COLLECTIVE_S
        ),
        scaling_config=train.ScalingConfig(
            num_workers=config.scale.learners,
            use_gpu=on_gpu,
            resources_per_worker={"CPU": cpus_of_learner(config), "GPU": int(on_gpu)},
        ),
        run_config=train.RunConfig(storage_path=str(beside), failure_config=train.FailureConfig(max_failures=retries)),
    )


def _fitted(
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


def _rank(config: RunConfig, path: Path, here: Path, *, sign: Path, accept_changes: bool) -> None:
    look_for(sign)
    go_to(here)  # Ray Train has its own idea of where it is
    prepare(config.machine)
    folder = RunFolder(path)
    if folder.taken and folder.finished:  # a learner died at the very end
        return
    rank, stop = distributed.get_rank(), AskedByFile(path / STOP_FILE)
    set_current_request(stop)
    messages = distributed.new_group(backend="gloo", timeout=timedelta(seconds=WEEK_S))
    with beating(sign.parent, rank):
        try:
            if rank:
                follow(config, messages)
            else:
                _lead(config, folder, Leader(messages), stop, accept_changes=accept_changes)
        except EngineError as error:
            if stop:  # the command leaves with this, instead of beginning again to stop
                write_whole(sign.parent / FAILURE_FILE, [str(error).encode()])
            raise


def _lead(config: RunConfig, folder: RunFolder, leader: Leader, stop: StopRequest, *, accept_changes: bool) -> None:
    leads: Callable[[RunConfig], ManyActors] = partial(ManyActors, leader=leader)
    if folder.taken:
        when_free(folder.hold).close()  # that a leader which was killed is really gone
    run(config, folder, accept_changes=accept_changes, build_trainer=leads, stop=stop)
    leader.dismiss()


class AskedByFile(StopRequest):
    """Signals reach the command, which lays down a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._looked_s = file, 0.0

    def __bool__(self) -> bool:
        if self.asked is None and monotonic() - self._looked_s > 0.5:
            self._looked_s = monotonic()
            if self._file.exists():
                self.ask(signal.SIGTERM)
        return super().__bool__()


def _from_the_leader(said: Any) -> Any:
    """What the leader says, to everybody; by Ray, which knows its own."""
    return engine_part("train.collective").broadcast_from_rank_zero(said)


def _files_of_the_leader(said: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """A checkpoint for everybody; as bytes, which can be nothing but values, whoever sends them."""
    names = (*FILES, SUMS)
    sizes = torch.tensor([len(said[name]) if said else 0 for name in names])
    distributed.broadcast(sizes, src=0)
    files = torch.zeros(int(sizes.sum()), dtype=torch.uint8)
    if said:
        files = torch.frombuffer(bytearray().join(said[name] for name in names), dtype=torch.uint8)
    distributed.broadcast(files, src=0)
    return {name: part.numpy().tobytes() for name, part in zip(names, files.split(sizes.tolist()), strict=True)}
