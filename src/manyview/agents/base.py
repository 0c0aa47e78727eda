"""Base class of the agents: a representation, an optional bonus with its weight β, and the checkpoint state."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from manyview.data.batch import Batch, Minibatch
from manyview.data.neighbors import NeighborFn
from manyview.methods.interfaces import (
    Bonus,
    FeatureSource,
    HasUpdate,
    Representation,
    RewardsStates,
)
from manyview.methods.recurrent import Memory, Recurrent
from manyview.nn.module_state import get_module_state, load_module_state
from manyview.nn.vector_encoder import VectorEncoder, join_features


def zero_beta(_: int) -> float:
    """Return 0, the weight β of an agent without a bonus."""
    return 0.0


def compute_in_float32(like: Tensor) -> torch.autocast:
    """Return a context without autocast on the device of `like`, for r̂ and the networks of a bonus.

    bfloat16 rounds features by up to 0.4 %: as much as neighbors, consecutive states or a trained predictor differ.
    """
    return torch.autocast(like.device.type, enabled=False)


def check_state_vectors(agent_class: type["Agent"], vector_size: int) -> None:
    """Raise ValueError if there are state vectors and the class does not declare that it uses them.

    A policy that ignores them would train without an error.
    """
    if vector_size and not vars(agent_class).get("supports_state_vectors", False):
        raise ValueError(
            f"{agent_class.__name__} does not use state vectors: expected a class that declares "
            f"supports_state_vectors = True, got an observation with {vector_size} numbers beside the views. Choose "
            "another agent, or leave out env.state"
        )


class Agent(nn.Module):
    """Policy on the representation's state and encoded state vectors, trained on ř + β r̂.

    `vector_size` is the number of all stacked state vectors of an observation, `vector_dim` the width of their
    encoder. `bonus` computes the intrinsic reward r̂; `beta` maps elapsed units to its weight β. `memory` is the
    recurrent state of the environments that `act` is called for; reset it where an episode starts.
    """

    episode_buffers: ClassVar[tuple[str, ...]] = ("memory.",)
    """Prefixes of the buffers that belong to running episodes."""
    supports_state_vectors: ClassVar[bool] = False
    """True if the class acts and learns on state vectors. Each class declares it for itself: a subclass may act or
    learn without them, and runs with state vectors refuse it unless it declares otherwise."""

    def __init__(
        self,
        representation: Representation,
        *,
        bonus: Bonus | None = None,
        beta: Callable[[int], float] | None = None,
        vector_size: int = 0,
        vector_dim: int = 0,
    ) -> None:
        super().__init__()
        self.representation, self.bonus, self.beta = representation, bonus, beta or zero_beta
        self.memory = Memory(representation)
        self.vector_encoder = VectorEncoder(vector_size, vector_dim) if vector_size else None

    @property
    def state_dim(self) -> int:
        """Size of the policy's state: the representation's and the width of encoded state vectors."""
        return self.representation.state_dim + (0 if self.vector_encoder is None else self.vector_encoder.width)

    def act(self, views: Tensor, mask: Tensor, vectors: Tensor | None = None, *, step: int, explore: bool) -> Tensor:
        """Return actions [B, ...] for `views` [B, V, C, H, W] uint8, `mask` [B, V] and `vectors` [B, D] float32.

        `vectors` are the state vectors in raw units, concatenated in order of declaration; None without any.

        `step` is the agent step; `explore=False` gives the actions of an evaluation.
        """
        raise NotImplementedError

    @contextmanager
    def use_new_memory(self, num_envs: int = 1) -> Iterator[None]:
        """Act in other environments inside the context, as evaluations do; the memory is as before afterwards."""
        memory = self.memory
        self.memory = Memory(self.representation, num_envs).to(next(self.parameters()).device)
        try:
            yield
        finally:
            self.memory = memory

    def encode_observation(
        self,
        views: Tensor,
        mask: Tensor,
        vectors: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the policy's state [B, S] of newest observations, and advance the memory of their environments."""
        state, memory = self.encode_step(self.memory.get(), views, mask, vectors, generator=generator)
        self.memory.store(**memory)
        return state

    def encode_step(
        self,
        memory: Mapping[str, Tensor],
        views: Tensor,
        mask: Tensor,
        vectors: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy's state [B, S] and the recurrent state after it, as exported policies need them.

        `memory` holds the recurrent state and previous actions [B, ...] by name. Nothing is changed.
        """
        views, representation = self.prepare_views(views), self.representation
        if not isinstance(representation, Recurrent):
            return self.join_vectors(representation.encode(views, mask).state, vectors), {}
        state, features = representation.step(memory, views, mask, memory["previous_action"], generator=generator)
        return self.join_vectors(features.state, vectors), state

    def join_vectors(self, state: Tensor, vectors: Tensor | None) -> Tensor:
        """Return the policy's state [B, S] of the representation's and of raw state `vectors` [B, D].

        Raises ValueError if the vectors are not those that the agent was built for.
        """
        if self.vector_encoder is not None:
            return join_features(state, self.vector_encoder(vectors))
        if vectors is not None:
            raise ValueError(f"unexpected state vectors: expected none for this agent, got {list(vectors.shape)}")
        return state

    @property
    def has_vector_stats(self) -> bool:
        """True if the statistics that normalize state vectors hold any data."""
        return self.vector_encoder is not None and int(self.vector_encoder.normalizer.count) > 0

    def update_vector_stats(self, vectors: Tensor | None) -> None:
        """Add training data [..., D] to the statistics that normalize state vectors; nothing without any."""
        if self.vector_encoder is not None and vectors is not None:
            self.vector_encoder.normalizer.update(vectors.flatten(0, -2))

    def compute_greedy_action(self, state: Tensor) -> Tensor:
        """Return the policy's actions [B, ...] without randomness for the policy's state [B, S]."""
        raise NotImplementedError(f"{type(self).__name__} has no action without randomness: compute_greedy_action")

    def prepare_views(self, views: Tensor) -> Tensor:
        """Return the images that the representation takes, without randomness."""
        return views

    def compute_meters(self, batch: Any) -> dict[str, Tensor]:
        """Return health meters of the networks on a `Batch` or `Minibatch`, without changing any state."""
        raise NotImplementedError

    def update_representation(self, batch: Batch | Minibatch, features: Any) -> dict[str, Tensor]:
        """Update the networks of the representation that the agent does not train, and return metrics."""
        representation = self.representation
        return representation.update(batch, features) if isinstance(representation, HasUpdate) else {}

    def encode_for_bonus(self, views: Tensor, mask: Tensor, source: FeatureSource | None) -> Any | None:
        """Return the features by `source`, without augmentation; None if it is None."""
        return None if source is None else self.representation.encode(self.prepare_views(views), mask)

    @torch.no_grad()
    def reward_states(
        self,
        views: Tensor,
        mask: Tensor,
        search: NeighborFn | None = None,  # noqa: ARG002
        *,
        vectors: Tensor | None = None,
    ) -> Tensor | None:
        """Return r̂ [B] of the states of an evaluation, as it is paid; None if the bonus cannot reward them.

        `vectors` [B, D] are their raw state vectors. `search` finds their neighbors in the replay buffer, for a bonus
        that stores features.
        """
        bonus: Any = self.bonus
        if not isinstance(bonus, RewardsStates):
            return None
        features = self.encode_for_bonus(views, mask, bonus.feature_source)
        images = self.prepare_views(views) if bonus.shares_encoder else views
        with compute_in_float32(mask):
            further = {"vectors": vectors} if getattr(bonus, "uses_state_vectors", False) else {}
            return bonus.reward_states(images, mask, features, **further)

    def update_bonus(self, batch: Batch | Minibatch) -> dict[str, Tensor]:
        """Update the bonus's own networks and return metrics; {} without a bonus."""
        if self.bonus is None:
            return {}
        with compute_in_float32(batch.mask):
            return self.bonus.update(batch)

    def get_state(self) -> dict[str, Any]:
        """Return the complete state as a tree of tensors: networks, optimizers, random generators."""
        return get_module_state(self)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_state`. Raises ValueError if it does not fit this agent."""
        load_module_state(self, state)

    def load_learned_state(self, state: dict[str, Any]) -> None:
        """Take over what another run's agent has learned, but not its running episodes and random generators.

        Raises ValueError if the state does not fit this agent.
        """
        own = self.get_state()
        tensors = {
            name: own["tensors"].get(name, tensor) if name.startswith(self.episode_buffers) else tensor
            for name, tensor in state["tensors"].items()
        }
        self.load_state({**state, "tensors": tensors, "generators": own["generators"]})

    def rollback(self, state: dict[str, Any]) -> None:
        """Restore an earlier `state` during a run, while the environments continue their episodes."""
        memory = self.memory.get()
        memory = {name: buffer.clone() for name, buffer in memory.items()}
        self.load_state(state)
        self.memory.store(**memory)
