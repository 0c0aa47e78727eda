"""Two learners with half a batch each are one with the whole."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from benchmarks.processes import find_descendants, is_alive
from benchmarks.run_comparison import compare_trees
from manyview.agents import OffPolicyAgent
from manyview.data import Batch
from manyview.scale.learners import _broadcast_files
from manyview.training import RunConfig, factory
from manyview.training.checkpoint import deserialize_checkpoint, serialize_checkpoint
from quality.plugin import Figure
from tests.support.processes import kill_on_exit
from tests.support.runs import make_short_config

UPDATES, ROWS = 4, 16
METHODS = ("drqv2+none", "drqv2+mem", "drqv2+pixel+none")
"""The last one with state vectors."""
# Whatever is drawn would be drawn for other rows: no shifts and no noise.
EXACT: dict[str, Any] = {
    "replay": {"augmentation": "none"},
    "agent": {"std_start": 0.0, "std_end": 0.0, "lr": 1e-3},
}


def config_of(method: str) -> RunConfig:
    if method == METHODS[2]:
        return make_short_config(method, task="toy/told_goal_continuous", env={"state": ["goal", "clock"]}, **EXACT)
    return make_short_config(method, **EXACT)


def agent_and_batches(config: RunConfig) -> tuple[OffPolicyAgent, list[Batch]]:
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    agent: OffPolicyAgent = factory.build_agent(config, shapes)
    generator = torch.Generator().manual_seed(5)

    def pictures() -> Tensor:
        size = (ROWS, len(shapes.views), *shapes.image_shape)
        return torch.randint(256, size, generator=generator, dtype=torch.uint8)

    def batch(number: int) -> Batch:
        mask = torch.ones(ROWS, len(shapes.views), dtype=torch.bool)
        mask[0, 0] = len(shapes.views) == 1
        vectors = torch.randn(2, ROWS, shapes.vector_size, generator=generator) * 9 + 40
        return Batch(
            views=pictures(),
            mask=mask,
            action=torch.rand(ROWS, shapes.actions.size, generator=generator) * 2 - 1,
            reward_ext=torch.randn(ROWS, generator=generator) * 10,
            discount=torch.full((ROWS,), 0.9),
            next_views=pictures(),
            next_mask=mask,
            indices=torch.arange(ROWS) + number * ROWS,
            next_indices=torch.arange(ROWS) + number * ROWS + 1,
            vectors=vectors[0] if shapes.vector_size else None,
            next_vectors=vectors[1] if shapes.vector_size else None,
        )

    return agent, [batch(number) for number in range(UPDATES)]


def learned(config: RunConfig, *, rank: int = 0, ranks: int = 1) -> tuple[dict[str, Tensor], list[float]]:
    """Parameters and critic losses after some updates with every `ranks`-th row."""
    agent, batches = agent_and_batches(config)
    losses = [
        float(agent.update(batch.map(lambda part: part[rank::ranks]), step)["critic_loss"])
        for step, batch in enumerate(batches)
    ]
    return dict(agent.get_state()["tensors"]), losses


def work_as(rank: int, meeting: str, out: str) -> None:
    """What one of two does: one is handed the other's agent, then both learn with either method."""
    torch.set_num_threads(1)
    agent, batches = agent_and_batches(config_of("drqv2+mem"))
    if rank == 0:
        agent.update(batches[0], 0)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    if rank == 0:
        _broadcast_files(serialize_checkpoint(agent.get_state(), {}))
    else:
        agent.load_state(deserialize_checkpoint(_broadcast_files(None)).state)
    found: dict[str, Any] = {method: learned(config_of(method), rank=rank, ranks=2) for method in METHODS}
    torch.save(found | {"agent": agent.get_state()}, f"{out}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes leaves behind."""
    spawn, folder = multiprocessing.get_context("spawn"), tmp_path_factory.mktemp("two")
    arguments = (f"file://{folder}/meeting", str(folder))
    processes = [spawn.Process(target=work_as, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=100)
        assert process.exitcode == 0
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.xdist_group("learners")
@pytest.mark.parametrize("method", ["drqv2+none", "drqv2+pixel+none"])
def test_two_learners_end_where_one_does(two: list[dict[str, Any]], method: str) -> None:
    """The statistics of state vectors included, which are of the whole batch."""
    alone, losses = learned(config_of(method))
    assert any("normalizer" in name for name in alone) == (method == METHODS[2])
    first, second = (one[method] for one in two)
    for name, value in alone.items():
        torch.testing.assert_close(first[0][name], value, atol=1e-5, rtol=1e-5)
        assert first[0][name].equal(second[0][name])
    halves = [(one + other) / 2 for one, other in zip(first[1], second[1], strict=True)]
    assert halves == pytest.approx(losses, rel=1e-5)


@pytest.mark.xdist_group("learners")
def test_with_mem_they_stay_in_step_though_each_has_neighbours_of_its_own(two: list[dict[str, Any]]) -> None:
    """k-NN, floor and decorrelation see a rank's rows only, so the result is another; but it is one result."""
    alone, _ = learned(config_of("drqv2+mem"))
    (first, _), (second, _) = (one["drqv2+mem"] for one in two)
    assert first.keys() == alone.keys()
    assert all(first[name].equal(second[name]) for name in alone)
    assert not all(torch.allclose(first[name], alone[name], atol=1e-5) for name in alone)


@pytest.mark.xdist_group("learners")
def test_whoever_follows_becomes_what_the_leader_is(two: list[dict[str, Any]]) -> None:
    """Its optimizer too, which has nothing yet where nothing was learned."""
    leads, follows = (one["agent"] for one in two)
    assert compare_trees(leads, follows) == []


FRAMES = 1_500


def started(folder: Path) -> "subprocess.Popen[bytes]":
    command = [
        *("train", "toy/identity_continuous", "--method", "drqv2+mem", "--preset", "minute", "--out", "run"),
        *("--actors", "1", "--learners", "2", "--set", f"schedule.frames={FRAMES}", "evaluation.video=false"),
        *("logging.checkpoint_every_frames=300", "logging.tensorboard=false", "scale.chunk_steps=50"),
    ]
    with (folder / "said.log").open("ab") as output:
        return subprocess.Popen([sys.executable, "-m", "manyview", *command], cwd=folder, stdout=output, stderr=output)


@pytest.mark.long
@pytest.mark.attack("a learner among several is killed: the group resumes from its checkpoint")
@pytest.mark.quality("L6")
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("leads", [True, False])
def test_a_group_of_learners_goes_on_from_its_checkpoint_when_one_is_killed(tmp_path: Path, *, leads: bool) -> None:
    """By the command, on real Ray Train: the one that has the run, or one that follows it."""
    frames, killed = FRAMES, False
    process = started(tmp_path)
    deadline_s = monotonic() + 500
    while process.poll() is None and monotonic() < deadline_s:
        learners = [pid for pid, name in find_descendants(process.pid).items() if "RayTrainWorker" in name]
        if not killed and (tmp_path / "run" / "checkpoints" / "000000600").exists() and len(learners) == 2:
            leader = json.loads((tmp_path / "run" / "manifest.json").read_text())["pid"]
            assert leader in learners
            os.kill(next(pid for pid in learners if (pid == leader) == leads), signal.SIGKILL)
            killed = True
        sleep(0.2)
    said = (tmp_path / "said.log").read_text()
    assert killed, said
    assert process.returncode == 0, said
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (resumed,) = [record for record in records if record["kind"] == "resume"]
    end = records[-1]
    assert (resumed["resume_mode"], end["kind"], end["state"]) == ("async", "end", "finished")
    assert end["updates"] == frames - 300 + 1
    assert "resumed with fresh actors" in said
    assert next(record for record in reversed(records) if record["kind"] == "evaluation")["return"] > 9


HUNG = "a learner among several that hangs is named by its rank, and a stop requested meanwhile leaves within seconds"


def stop_one(folder: Path, process: "subprocess.Popen[bytes]", *, leads: bool) -> int:
    """SIGSTOP the leader or the follower after the first checkpoint, and return its process id."""
    deadline_s = monotonic() + 200
    while not (folder / "run" / "checkpoints" / "000000300").exists():
        assert process.poll() is None, (folder / "said.log").read_text()
        assert monotonic() < deadline_s, (folder / "said.log").read_text()
        sleep(0.1)
    learners = [pid for pid, name in find_descendants(process.pid).items() if "RayTrainWorker" in name]
    leader = json.loads((folder / "run" / "manifest.json").read_text())["pid"]
    (stopped,) = (pid for pid in learners if (pid == leader) == leads)
    os.kill(stopped, signal.SIGSTOP)
    return stopped


@pytest.mark.long
@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("leads", [True, False])
def test_sigterm_while_a_learner_hangs_leaves_soon_and_names_its_rank(
    tmp_path: Path, figure: Figure, *, leads: bool
) -> None:
    process = started(tmp_path)
    with kill_on_exit(process):
        stopped = stop_one(tmp_path, process, leads=leads)
        family = list(find_descendants(process.pid))
        assert stopped in family
        sleep(2)
        asked_s = monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 1
        seconds = monotonic() - asked_s
    *_, last = (tmp_path / "said.log").read_text().splitlines()
    assert last.startswith(f"the learner of rank {0 if leads else 1} (pid {stopped} on ")
    assert last.endswith("Repeat the command to resume from the newest checkpoint")
    gone_by_s = monotonic() + 15
    while any(map(is_alive, family)):
        assert monotonic() < gone_by_s, "processes are left behind"
        sleep(0.1)
    figure(seconds, "s from SIGTERM")
    again = started(tmp_path)
    with kill_on_exit(again):
        assert again.wait(timeout=300) == 0, (tmp_path / "said.log").read_text()
    assert "resumed with fresh actors" in (tmp_path / "said.log").read_text()


@pytest.mark.long
@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
@pytest.mark.xdist_group("ray")
def test_a_group_goes_on_from_its_checkpoint_when_a_learner_hangs(tmp_path: Path) -> None:
    process = started(tmp_path)
    with kill_on_exit(process):
        stopped = stop_one(tmp_path, process, leads=False)
        assert process.wait(timeout=500) == 0, (tmp_path / "said.log").read_text()
    said = (tmp_path / "said.log").read_text()
    assert said.count("does not answer") == 1
    assert f"the learner of rank 1 (pid {stopped} on " in said
    assert "resumed with fresh actors" in said
    assert not is_alive(stopped)
