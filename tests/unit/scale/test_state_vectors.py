"""State vectors in actors, chunks and shards, and their normalization in actors."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from manyview.scale import batch_loader
from manyview.scale.batch_loader import BatchLoader
from manyview.scale.chunk_collector import ChunkCollector, get_policy_weights
from manyview.scale.replay_shard import ReplayShard
from manyview.training import RunConfig, factory
from tests.support.runs import make_short_config
from tests.unit.scale.test_replay_shard import KEY, sign_chunk

STEPS = 12


def make_config_and_shapes() -> tuple[RunConfig, factory.Shapes]:
    """Return a run config with stacked state vectors, and its shapes."""
    config = make_short_config(
        "drqv2+none",
        task="toy/told_goal_continuous",
        env={"state": ["goal", "clock"], "state_stack": 3},
        scale={"actors": 1, "chunk_steps": STEPS},
        replay={"capacity": 2000, "n_step": 3, "batch_size": 64},
        schedule={"random_steps": 0},
    )
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    return config, shapes


def test_a_shard_samples_the_vectors_that_an_actor_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    config, shapes = make_config_and_shapes()
    collector, shard = (
        ChunkCollector(config, shapes, actor=0, incarnation=0),
        ReplayShard(config, shapes, index=0, count=1, key=KEY),
    )
    weights = get_policy_weights(factory.build_agent(config, shapes))
    for number in range(4):
        chunk, _ = collector.collect(weights, step=number * STEPS, steps=STEPS)
        assert shard.insert(sign_chunk(chunk)).rejection == ""
    handle: Any = SimpleNamespace(sample=SimpleNamespace(remote=shard.sample))
    monkeypatch.setattr(batch_loader, "get_results", lambda references, **_: references)
    batch = BatchLoader([handle], torch.device("cpu"), shard_sizes=[1]).sample()
    assert batch.vectors is not None
    assert batch.next_vectors is not None
    clocks, next_clocks = (part.reshape(-1, 3, 3)[..., 1] for part in (batch.vectors, batch.next_vectors))
    newest = clocks[:, -1]
    for back in (1, 2):  # [x_{t-2}, x_{t-1}, x_t], the first of an episode repeated, across the ends of chunks too
        assert clocks[:, -1 - back].equal((newest - back).clamp(min=0))
    assert (next_clocks[:, -1] - newest).unique().tolist() == [1, 2, 3]
    shard.close()
    collector.close()


def test_actors_get_the_statistics_of_the_learner() -> None:
    config, shapes = make_config_and_shapes()
    learner = factory.build_agent(config, shapes)
    learner.vector_encoder.normalizer.update(torch.randn(64, shapes.vector_size) * 7 + 3)
    collector = ChunkCollector(config, shapes, actor=0, incarnation=0)
    collector.collect(get_policy_weights(learner), step=0, steps=2)
    for name, buffer in learner.vector_encoder.named_buffers():
        assert buffer.equal(collector._agent.get_buffer(f"vector_encoder.{name}"))
    names = [name for name in get_policy_weights(learner) if "vector_encoder" in name]
    assert len(names) == 7  # count, mean and deviations; weights and biases of the linear layer and LayerNorm
    collector.close()


def test_a_chunk_with_a_number_that_is_not_finite_is_rejected() -> None:
    config, shapes = make_config_and_shapes()
    collector, shard = (
        ChunkCollector(config, shapes, actor=0, incarnation=0),
        ReplayShard(config, shapes, index=0, count=1, key=KEY),
    )
    weights = get_policy_weights(factory.build_agent(config, shapes))
    collector.collect(weights, step=0, steps=STEPS)
    collector._collector.replay.steps["vectors"][collector._chunk_start + 1] = np.inf
    chunk, _ = collector.collect(weights, step=STEPS, steps=STEPS)
    assert "vectors" in shard.insert(sign_chunk(chunk)).rejection
    assert shard.replay.inserted == 0
    shard.close()
    collector.close()
