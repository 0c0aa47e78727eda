"""Several learners of one run, through Ray Train: one leads and has the session, the others follow its every update."""

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import torch
from torch import distributed

from manyview.agents import Agent, NonFiniteError
from manyview.data.durable import remove
from manyview.scale.batches import Batches
from manyview.scale.cluster import check_resources, cpus_of, cpus_of_learner
from manyview.scale.engine import Handle, cause_of, engine_part
from manyview.scale.patience import when_free
from manyview.scale.shared import go_to, look_for, seen_by_all
from manyview.scale.trainer import ManyActors
from manyview.train import RunConfig, RunFolder, build
from manyview.train.checkpoint import FILES, SUMS, packed, unpacked
from manyview.train.machine import autocast, device_of, prepare, resolved
from manyview.train.opening import run
from manyview.train.seeds import derived_seed
from manyview.train.stopping import StopRequest, stop_request

UPDATE, TAKE_OVER, END = 0, 1, 2
"""What a leader may say: learn from your part of the next batch, be as I am, it is over."""
WEEK_S = 7 * 24 * 3600
"""Whoever follows waits for the leader, and that one may wait long for actors."""
STOP_FILE = "stop"
"""In a run's folder: the leader is to save and to leave."""


class LearnersFailedError(RuntimeError):
    """They died, or failed, more often than they may."""


class Leader:
    """Says what all do next. Gradients and moments meet by themselves (`mem.ranks`)."""

    _shards = 0

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
        distributed.broadcast(torch.tensor([what, step, *(held or [0] * self._shards)]), src=0)


def follow(config: RunConfig) -> None:
    """Learn as the leader says, until it is over."""
    config = replace(config, machine=resolved(config.machine))
    device, env = device_of(config.machine), build.environment(config)
    agent = build.agent(config, build.shapes_of(config, env))
    env.close()
    shards = _from_the_leader(None)
    held, message = [0] * len(shards), torch.zeros(2 + len(shards), dtype=torch.int64)
    batches = Batches(shards, device, held=held)
    while True:
        distributed.broadcast(message, src=0)
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
    config: RunConfig, folder: RunFolder, *, accept_changes: bool = False, retries: int = 3
) -> int | None:
    """Train to the end of the schedule, or until a signal asks for a stop; the number of that signal.

    Should a learner die, all begin again from the last checkpoint.
    """
    on_gpu = resolved(config.machine).device != "cpu"
    check_resources("the run", cpus=cpus_of(config), gpus=config.scale.learners * on_gpu)
    when_free(folder.hold).close()  # nobody else trains here; and the folder is there, for the file of a stop
    beside = folder.path.absolute().with_name(f".{folder.path.name}.learners")
    try:
        with seen_by_all(beside) as sign, stop_request() as stop:
            work = partial(_rank, config, folder.path.absolute(), Path.cwd(), sign=sign, accept_changes=accept_changes)
            trainer = _group(config, work, beside, on_gpu=on_gpu, retries=retries)
            failure = _fitted(trainer, stop, folder.path / STOP_FILE)
    finally:
        remove(beside)  # the run's folder has all that is needed again
    if failure is not None:
        raise LearnersFailedError(cause_of(failure)) from failure
    return stop.asked


def _group(config: RunConfig, work: Callable[[], None], beside: Path, *, on_gpu: bool, retries: int) -> Any:
    train, torch_train = engine_part("train"), engine_part("train.torch")
    return torch_train.TorchTrainer(
        work,
        # What is said goes through the CPU, gradients where they are.
        torch_config=torch_train.TorchConfig(backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout_s=WEEK_S),
        scaling_config=train.ScalingConfig(
            num_workers=config.scale.learners,
            use_gpu=on_gpu,
            resources_per_worker={"CPU": cpus_of_learner(config), "GPU": int(on_gpu)},
        ),
        run_config=train.RunConfig(storage_path=str(beside), failure_config=train.FailureConfig(max_failures=retries)),
    )


def _fitted(trainer: Any, stop: StopRequest, stop_file: Path) -> BaseException | None:
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
    try:
        while thread.is_alive():
            thread.join(0.2)
            if stop:
                stop_file.touch()
    finally:
        remove(stop_file)
    return failures[0] if failures else None


def _rank(config: RunConfig, path: Path, here: Path, *, sign: Path, accept_changes: bool) -> None:
    look_for(sign)
    go_to(here)  # Ray Train has its own idea of where it is
    prepare(config.machine)
    folder = RunFolder(path)
    if folder.taken and folder.finished:  # a learner died at the very end
        return
    if distributed.get_rank() != 0:
        follow(config)
        return
    leader = Leader()
    leads: Callable[[RunConfig], ManyActors] = partial(ManyActors, leader=leader)
    stop = AskedByFile(path / STOP_FILE)
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
