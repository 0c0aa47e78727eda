"""Chunk collectors: the learner's parameters and buffers from the first step on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import tanh
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyview.agents.drqv2 import DrQv2, DrQv2Config
from manyview.data.chunks import ChunkSteps, unpack_chunk
from manyview.methods import AGENTS, BONUSES, RE3, REPRESENTATIONS, PixelEncoder, PixelEncoderConfig, RE3Config
from manyview.methods.interfaces import BuildContext
from manyview.scale.chunk_collector import ChunkCollector, get_policy_weights
from manyview.training import RunConfig, factory
from tests.support.runs import make_short_config

STEPS = 10


@dataclass(frozen=True, kw_only=True)
class BufferAgentConfig(DrQv2Config):
    pass


class BufferAgent(DrQv2):
    """Agent whose action depends on a buffer and the one of the representation."""

    offset: Tensor

    def __init__(self, config: BufferAgentConfig, context: BuildContext) -> None:
        super().__init__(context.representation, context.actions.size, config, bonus=context.bonus, seed=context.seed)
        self.register_buffer("offset", torch.zeros(()))

    @torch.no_grad()
    def act(self, views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Tensor:  # type: ignore[override]  # noqa: ARG002
        action: Tensor = torch.tanh(self.offset + self.representation.encode(views, mask).state[:, :2])
        return action


@dataclass(frozen=True, kw_only=True)
class BufferEncoderConfig(PixelEncoderConfig):
    pass


class BufferEncoder(PixelEncoder):
    """Encoder whose state is a buffer."""

    mean: Tensor

    def __init__(self, config: BufferEncoderConfig, context: BuildContext) -> None:
        super().__init__(context.num_views, context.image_shape, config)
        self.register_buffer("mean", torch.zeros(self.state_dim), persistent=False)

    def encode(self, views: Tensor, mask: Tensor | None = None) -> Any:
        features = super().encode(views, mask)
        return features._replace(state=0.0 * features.state + self.mean)


@dataclass(frozen=True, kw_only=True)
class BufferBonusConfig(RE3Config):
    pass


class BufferBonus(RE3):
    """Bonus whose stored features are a buffer."""

    level: Tensor

    def __init__(self, config: BufferBonusConfig, context: BuildContext) -> None:
        super().__init__(context.num_views, context.frame_shape, config)
        self.register_buffer("level", torch.zeros((), dtype=torch.int64))

    def features_to_store(self, views: Tensor, mask: Tensor, features: Any) -> Tensor:
        return 0.0 * super().features_to_store(views, mask, features) + self.level


@pytest.fixture
def config_and_shapes(monkeypatch: pytest.MonkeyPatch) -> tuple[RunConfig, factory.Shapes]:
    """Run config with the three parts that have buffers, and its shapes."""
    for registry in (AGENTS, REPRESENTATIONS, BONUSES):
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    AGENTS.register("buffer", BufferAgentConfig, data=("replay",))(BufferAgent)
    REPRESENTATIONS.register("buffer", BufferEncoderConfig)(BufferEncoder)
    BONUSES.register("buffer", BufferBonusConfig)(BufferBonus)
    config = make_short_config(
        "drqv2+pixel+re3",
        scale={"actors": 1, "chunk_steps": STEPS},
        schedule={"random_steps": 0},
        compute={"device": "cpu", "threads": 1},
    )
    config = replace(
        config,
        agent=BufferAgentConfig(hidden=16),
        representation=BufferEncoderConfig(latent_dim=4),
        bonus=BufferBonusConfig(latent_dim=4),
    )
    return config, infer_shapes(config)


def infer_shapes(config: RunConfig) -> factory.Shapes:
    """Return the shapes of a run from a temporary environment."""
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    return shapes


def set_buffers(learner: BufferAgent, *, offset: float, mean: float, level: int) -> None:
    """Set the buffers of the agent, its representation and its bonus."""
    agent: Any = learner
    for buffer, value in ((agent.offset, offset), (agent.representation.mean, mean), (agent.bonus.level, level)):
        buffer.fill_(value)


@contextmanager
def start_collector(config: RunConfig, shapes: factory.Shapes) -> Iterator[ChunkCollector]:
    """Start the collector of actor 0 and close it on exit."""
    collector = ChunkCollector(config, shapes, actor=0, incarnation=0)
    yield collector
    collector.close()


def collect(
    collector: ChunkCollector, learner: BufferAgent, config: RunConfig, shapes: factory.Shapes
) -> tuple[ChunkSteps, Any]:
    """Return a chunk collected with the learner's weights, and the features of its steps."""
    chunk, _ = collector.collect(get_policy_weights(learner), step=0, steps=STEPS)
    contents = unpack_chunk(chunk.payload, factory.build_replay_buffer(config, shapes, learner.bonus))
    return contents, contents.arrays[-1]


def test_an_actor_has_the_buffers_of_all_parts_of_the_learner(
    config_and_shapes: tuple[RunConfig, factory.Shapes],
) -> None:
    config, shapes = config_and_shapes
    learner = factory.build_agent(config, shapes)
    with start_collector(config, shapes) as collector:
        for offset, mean, level in ((-0.5, 0.25, 7), (0.125, 0.5, 9)):
            set_buffers(learner, offset=offset, mean=mean, level=level)
            contents, features = collect(collector, learner, config, shapes)
            assert contents.num_transitions == STEPS
            np.testing.assert_allclose(contents.actions, tanh(offset + mean), rtol=1e-6)
            assert (features[-STEPS:] == level).all()


def test_the_first_step_of_an_actor_has_features_of_the_first_weights(
    config_and_shapes: tuple[RunConfig, factory.Shapes],
) -> None:
    config, shapes = config_and_shapes
    learner = factory.build_agent(config, shapes)
    set_buffers(learner, offset=0.0, mean=0.0, level=7)
    with start_collector(config, shapes) as collector:
        contents, features = collect(collector, learner, config, shapes)
    assert len(contents.steps) > STEPS  # the observation before the first action is a step too
    assert (features == 7).all()


@pytest.mark.parametrize("bonus", ["re3", "mem"])
@pytest.mark.parametrize(
    ("search", "parts"),
    [("buffer", ["representation", "actor", "target_representation", "bonus"]), ("batch", ["representation", "actor"])],
)
def test_actors_get_the_parts_that_they_use_and_each_tensor_once(bonus: str, search: str, parts: list[str]) -> None:
    config = make_short_config(f"drqv2+mem+{bonus}", bonus={"search": search}, agent={"encoder_tau": 0.5})
    agent = factory.build_agent(config, infer_shapes(config))
    modules = [agent.get_submodule(part) for part in parts]
    tensors = {id(tensor): tensor for part in modules for tensor in (*part.parameters(), *part.buffers())}
    weights = get_policy_weights(agent)
    assert len(weights) == len(tensors)
    assert sum(array.size for array in weights.values()) == sum(tensor.numel() for tensor in tensors.values())
