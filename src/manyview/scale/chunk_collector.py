"""Collector of an actor: steps an environment with a copy of the policy and packs the transitions into chunks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from time import monotonic
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyview.data.chunks import pack_chunk
from manyview.data.segment_format import MAX_SEGMENT_STEPS
from manyview.methods import find_stored_features
from manyview.scale.replay_shard import Chunk
from manyview.training import RunConfig, factory
from manyview.training.collector import Collector
from manyview.training.compute import configure_torch
from manyview.training.counters import Counters
from manyview.training.factory import Shapes
from manyview.utils.seeding import derive_seed

Weights = Mapping[str, NDArray[Any]]
UPDATE_PARTS = {"critic", "target_critic", "target_vector_encoder", "drift_meter", "target_moments", "memory"}
"""Attributes of an agent that only updates use, and the memory, which each actor has for its own environment.
Unknown ones are sent: a policy may use any of them."""
FEATURE_PARTS = {"bonus", "target_representation"}
"""Attributes that actors need only if the bonus keeps features beside a step."""


@dataclass(frozen=True)
class CollectStats:
    """Statistics of one call of `collect`."""

    episodes: list[dict[str, Any]]
    """Return, steps and frames of each finished episode."""
    seconds: float
    """Time of collecting the chunk."""
    waited_s: float = 0.0
    """Time of inserting the chunk into a shard."""


def get_policy_weights(agent: nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of the parameters and buffers that actors need: of the policy, and of features beside a step."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in _get_policy_tensors(agent).items()}


class ChunkCollector:
    """Collects chunks with given policy weights; every incarnation of an actor has its own random streams."""

    def __init__(self, config: RunConfig, shapes: Shapes, *, actor: int, incarnation: int) -> None:
        run_seed = config.seed
        config = replace(
            config.single_process,
            seed=derive_seed(config.seed, "actor", actor, incarnation),
            replay=replace(config.replay, capacity=MAX_SEGMENT_STEPS, directory=None),
            compute=replace(config.compute, device="cpu", threads=1),
        )
        configure_torch(config.compute)
        self._actor, self._incarnation, self._num_sent = actor, incarnation, 0
        # Parts may derive constants from their seed: that of the run. The exploration noise is the actor's.
        self._agent = factory.build_agent(replace(config, seed=run_seed), shapes)
        self._agent.generator.manual_seed(derive_seed(config.seed, "agent"))
        self._env = factory.make_training_env(config)
        replay = factory.build_replay_buffer(config, shapes, self._agent.bonus)
        self._make_collector = partial(Collector, config, self._env, shapes, self._agent, replay, Counters())
        self._chunk_start = 0
        """Index of the first step of the current chunk."""

    def collect(self, weights: Weights, *, step: int, steps: int) -> tuple[Chunk, CollectStats]:
        """Collect up to `steps` agent steps; exploration noise follows the run's agent step, from `step` on."""
        start_s = monotonic()
        self._load_weights(weights)
        collector = self._collector
        collector.counters.steps, frames = step, collector.counters.frames
        episodes: list[dict[str, Any]] = []
        num_steps, max_inserted = 0, self._chunk_start + MAX_SEGMENT_STEPS - 2 * collector.replay.longest_stack
        while num_steps < steps and collector.replay.inserted < max_inserted:  # short episodes need more frames
            episodes += collector.step()
            num_steps += 1
        frames = collector.counters.frames - frames
        chunk = Chunk(
            self._actor, self._incarnation, self._num_sent, frames, pack_chunk(collector.replay, self._chunk_start)
        )
        self._num_sent += 1
        self._chunk_start = collector.replay.inserted
        collector.replay.split_episode()  # the next chunk is self-contained
        return chunk, CollectStats(episodes, monotonic() - start_s)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    @cached_property
    def _collector(self) -> Collector:
        """Collector, made after the first weights: it stores a step at once, with features of the agent."""
        return self._make_collector()

    @torch.no_grad()
    def _load_weights(self, weights: Weights) -> None:
        tensors = _get_policy_tensors(self._agent)
        if tensors.keys() != weights.keys():
            missing, unexpected = tensors.keys() - weights.keys(), weights.keys() - tensors.keys()
            raise ValueError(
                f"weights do not fit this agent: missing {sorted(missing)[:1]}, unexpected {sorted(unexpected)[:1]}"
            )
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(weights[name].copy()))


def _get_policy_tensors(agent: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; a tensor that has several names occurs once."""
    skipped = UPDATE_PARTS if find_stored_features(agent.bonus) else UPDATE_PARTS | FEATURE_PARTS
    # All names first: a skipped part may share a tensor with the policy.
    named = chain(agent.named_parameters(remove_duplicate=False), agent.named_buffers(remove_duplicate=False))
    unique = {id(tensor): (name, tensor) for name, tensor in named if name.partition(".")[0] not in skipped}
    return dict(unique.values())
