"""Several learners: equality with one learner, and resume when one dies or hangs."""

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

NUM_UPDATES, BATCH_SIZE = 4, 16
METHODS = ("drqv2+none", "drqv2+mem", "drqv2+pixel+none")
"""Tested methods, the last one with state vectors."""
# No random shifts and no noise: each learner would draw them for other rows.
DETERMINISTIC_SETTINGS: dict[str, Any] = {
    "replay": {"augmentation": "none"},
    "agent": {"std_start": 0.0, "std_end": 0.0, "lr": 1e-3},
}


def make_config(method: str) -> RunConfig:
    """Return a run config without random draws in updates."""
    if method == METHODS[2]:
        return make_short_config(
            method, task="toy/told_goal_continuous", env={"state": ["goal", "clock"]}, **DETERMINISTIC_SETTINGS
        )
    return make_short_config(method, **DETERMINISTIC_SETTINGS)


def make_agent_and_batches(config: RunConfig) -> tuple[OffPolicyAgent, list[Batch]]:
    """Return an agent and the same random batches for every caller."""
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    agent: OffPolicyAgent = factory.build_agent(config, shapes)
    generator = torch.Generator().manual_seed(5)

    def make_images() -> Tensor:
        shape = (BATCH_SIZE, len(shapes.views), *shapes.image_shape)
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)

    def make_batch(number: int) -> Batch:
        mask = torch.ones(BATCH_SIZE, len(shapes.views), dtype=torch.bool)
        mask[0, 0] = len(shapes.views) == 1
        vectors = torch.randn(2, BATCH_SIZE, shapes.vector_size, generator=generator) * 9 + 40
        return Batch(
            views=make_images(),
            mask=mask,
            action=torch.rand(BATCH_SIZE, shapes.actions.size, generator=generator) * 2 - 1,
            reward_ext=torch.randn(BATCH_SIZE, generator=generator) * 10,
            discount=torch.full((BATCH_SIZE,), 0.9),
            next_views=make_images(),
            next_mask=mask,
            indices=torch.arange(BATCH_SIZE) + number * BATCH_SIZE,
            next_indices=torch.arange(BATCH_SIZE) + number * BATCH_SIZE + 1,
            vectors=vectors[0] if shapes.vector_size else None,
            next_vectors=vectors[1] if shapes.vector_size else None,
        )

    return agent, [make_batch(number) for number in range(NUM_UPDATES)]


def train_agent(config: RunConfig, *, rank: int = 0, world_size: int = 1) -> tuple[dict[str, Tensor], list[float]]:
    """Return tensors and critic losses after updates with every `world_size`-th row."""
    agent, batches = make_agent_and_batches(config)
    losses = [
        float(agent.update(batch.map(lambda part: part[rank::world_size]), step)["critic_loss"])
        for step, batch in enumerate(batches)
    ]
    return dict(agent.get_state()["tensors"]), losses


def run_learner(rank: int, init_method: str, directory: str) -> None:
    """Run one of two learners, which save their results.

    Rank 1 loads the agent of rank 0, then both train with each method.
    """
    torch.set_num_threads(1)
    agent, batches = make_agent_and_batches(make_config("drqv2+mem"))
    if rank == 0:
        agent.update(batches[0], 0)
    distributed.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
    if rank == 0:
        _broadcast_files(serialize_checkpoint(agent.get_state(), {}))
    else:
        agent.load_state(deserialize_checkpoint(_broadcast_files(None)).state)
    results: dict[str, Any] = {method: train_agent(make_config(method), rank=rank, world_size=2) for method in METHODS}
    torch.save(results | {"agent": agent.get_state()}, f"{directory}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def learner_results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of two learner processes, by rank."""
    context, directory = multiprocessing.get_context("spawn"), tmp_path_factory.mktemp("two")
    arguments = (f"file://{directory}/meeting", str(directory))
    processes = [context.Process(target=run_learner, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=100)
        assert process.exitcode == 0
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.xdist_group("learners")
@pytest.mark.parametrize("method", ["drqv2+none", "drqv2+pixel+none"])
def test_two_learners_get_the_weights_and_losses_of_one(learner_results: list[dict[str, Any]], method: str) -> None:
    """This includes the statistics of state vectors, which use the whole batch."""
    expected, expected_losses = train_agent(make_config(method))
    assert any("normalizer" in name for name in expected) == (method == METHODS[2])
    first, second = (results[method] for results in learner_results)
    for name, value in expected.items():
        torch.testing.assert_close(first[0][name], value, atol=1e-5, rtol=1e-5)
        assert first[0][name].equal(second[0][name])
    mean_losses = [(left + right) / 2 for left, right in zip(first[1], second[1], strict=True)]
    assert mean_losses == pytest.approx(expected_losses, rel=1e-5)


@pytest.mark.xdist_group("learners")
def test_with_mem_two_learners_stay_equal_but_differ_from_one(learner_results: list[dict[str, Any]]) -> None:
    """k-NN, floor and decorrelation use the rows of one rank only."""
    reference, _ = train_agent(make_config("drqv2+mem"))
    (first, _), (second, _) = (results["drqv2+mem"] for results in learner_results)
    assert first.keys() == reference.keys()
    assert all(first[name].equal(second[name]) for name in reference)
    assert not all(torch.allclose(first[name], reference[name], atol=1e-5) for name in reference)


@pytest.mark.xdist_group("learners")
def test_rank_1_loads_the_complete_state_of_rank_0(learner_results: list[dict[str, Any]]) -> None:
    """This includes the optimizer state, which is empty in an agent without updates."""
    leader_state, other_state = (results["agent"] for results in learner_results)
    assert compare_trees(leader_state, other_state) == []


NUM_FRAMES = 1_500


def start_training(directory: Path) -> "subprocess.Popen[bytes]":
    """Start a training with two learners in a process that logs to `said.log`."""
    command = [
        *("train", "toy/identity_continuous", "--method", "drqv2+mem", "--preset", "minute", "--out", "run"),
        *("--actors", "1", "--learners", "2", "--set", f"schedule.frames={NUM_FRAMES}", "evaluation.video=false"),
        *("logging.checkpoint_every_frames=300", "logging.tensorboard=false", "scale.chunk_steps=50"),
    ]
    with (directory / "said.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "manyview", *command], cwd=directory, stdout=output, stderr=output
        )


@pytest.mark.long
@pytest.mark.attack("a learner among several is killed: the group resumes from its checkpoint")
@pytest.mark.quality("L6")
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("is_leader", [True, False])
def test_learners_resume_from_the_checkpoint_when_one_is_killed(tmp_path: Path, *, is_leader: bool) -> None:
    """The killed learner is the leader, which writes the run directory, or the other."""
    frames, has_killed = NUM_FRAMES, False
    process = start_training(tmp_path)
    deadline_s = monotonic() + 500
    while process.poll() is None and monotonic() < deadline_s:
        learners = [pid for pid, name in find_descendants(process.pid).items() if "RayTrainWorker" in name]
        if not has_killed and (tmp_path / "run" / "checkpoints" / "000000600").exists() and len(learners) == 2:
            leader = json.loads((tmp_path / "run" / "manifest.json").read_text())["pid"]
            assert leader in learners
            os.kill(next(pid for pid in learners if (pid == leader) == is_leader), signal.SIGKILL)
            has_killed = True
        sleep(0.2)
    output = (tmp_path / "said.log").read_text()
    assert has_killed, output
    assert process.returncode == 0, output
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (resumed,) = [record for record in records if record["kind"] == "resume"]
    end = records[-1]
    assert (resumed["resume_mode"], end["kind"], end["state"]) == ("async", "end", "finished")
    assert end["updates"] == frames - 300 + 1
    assert "resumed with fresh actors" in output
    assert next(record for record in reversed(records) if record["kind"] == "evaluation")["return"] > 9


HANGING_LEARNER = (
    "a learner among several that hangs is named by its rank, and a stop requested meanwhile leaves within seconds"
)


def stop_learner(directory: Path, process: "subprocess.Popen[bytes]", *, is_leader: bool) -> int:
    """Send SIGSTOP to a learner after the first checkpoint and return its PID."""
    deadline_s = monotonic() + 200
    while not (directory / "run" / "checkpoints" / "000000300").exists():
        assert process.poll() is None, (directory / "said.log").read_text()
        assert monotonic() < deadline_s, (directory / "said.log").read_text()
        sleep(0.1)
    learners = [pid for pid, name in find_descendants(process.pid).items() if "RayTrainWorker" in name]
    leader = json.loads((directory / "run" / "manifest.json").read_text())["pid"]
    (stopped_pid,) = (pid for pid in learners if (pid == leader) == is_leader)
    os.kill(stopped_pid, signal.SIGSTOP)
    return stopped_pid


@pytest.mark.long
@pytest.mark.attack(HANGING_LEARNER)
@pytest.mark.quality("L8")
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("is_leader", [True, False])
def test_sigterm_while_a_learner_hangs_ends_the_run_soon_and_names_its_rank(
    tmp_path: Path, figure: Figure, *, is_leader: bool
) -> None:
    process = start_training(tmp_path)
    with kill_on_exit(process):
        stopped_pid = stop_learner(tmp_path, process, is_leader=is_leader)
        descendants = list(find_descendants(process.pid))
        assert stopped_pid in descendants
        sleep(2)
        request_s = monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 1
        seconds = monotonic() - request_s
    *_, last_line = (tmp_path / "said.log").read_text().splitlines()
    assert last_line.startswith(f"the learner of rank {0 if is_leader else 1} (pid {stopped_pid} on ")
    assert last_line.endswith("Repeat the command to resume from the newest checkpoint")
    deadline_s = monotonic() + 15
    while any(map(is_alive, descendants)):
        assert monotonic() < deadline_s, "processes are left behind"
        sleep(0.1)
    figure(seconds, "s from SIGTERM")
    resumed = start_training(tmp_path)
    with kill_on_exit(resumed):
        assert resumed.wait(timeout=300) == 0, (tmp_path / "said.log").read_text()
    assert "resumed with fresh actors" in (tmp_path / "said.log").read_text()


@pytest.mark.long
@pytest.mark.attack(HANGING_LEARNER)
@pytest.mark.quality("L8")
@pytest.mark.xdist_group("ray")
def test_learners_resume_from_the_checkpoint_when_one_hangs(tmp_path: Path) -> None:
    process = start_training(tmp_path)
    with kill_on_exit(process):
        stopped_pid = stop_learner(tmp_path, process, is_leader=False)
        assert process.wait(timeout=500) == 0, (tmp_path / "said.log").read_text()
    output = (tmp_path / "said.log").read_text()
    assert output.count("does not answer") == 1
    assert f"the learner of rank 1 (pid {stopped_pid} on " in output
    assert "resumed with fresh actors" in output
    assert not is_alive(stopped_pid)
