"""MEM in Stable-Baselines3: features extractor, SAC policy, buffers and the callback that pays the bonus.

    model = PPO(
        "MultiInputPolicy",
        env,  # a dict observation of uint8 images
        rollout_buffer_class=MEMRolloutBuffer,
        policy_kwargs={"features_extractor_class": MEMExtractor},
    )
    model.learn(100_000, callback=MEMCallback(BetaSchedule(beta0=0.05)))

For SAC: `SAC(MEMSACPolicy, env, replay_buffer_class=MEMReplayBuffer)` and the same callback.

The algorithm's optimizer trains the encoder on its loss and MEM's in one backward pass; in SAC the critic's does, and
the actor never does. Tested with stable-baselines3 2.9.2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from manyview.adapters.encoding import MASK, AttachedLoss, encode_observations, index_features, mask_features
from manyview.mem import MEM, BetaSchedule, Features, MEMConfig
from manyview.utils.optional_imports import import_optional

import_optional("stable_baselines3", extra="sb3")

from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.sac.policies import Actor
from stable_baselines3.sac.policies import MultiInputPolicy as SACMultiInputPolicy

ObservationArrays = dict[str, NDArray[Any]]


class MEMExtractor(CombinedExtractor):
    """MEM's encoder as features extractor: MEM's state, then all vectors of the observation.

    Images may arrive normalized or not: the policy's `normalize_images` has no effect on the features. Every image of
    the dict observation is a view; a binary vector `mask` marks the views that are present.
    """

    # A `CombinedExtractor`, because policies tell those and no others that they do not normalize images.
    def __init__(
        self, observation_space: spaces.Dict, config: MEMConfig | None = None, *, normalized_image: bool = False
    ) -> None:
        views = _get_view_spaces(observation_space)
        names = list(views)
        shapes = {name: space.shape for name, space in views.items()}
        if len(set(shapes.values())) != 1:
            raise ValueError(f"wrong observation space: expected at least one image, all of one shape, got {shapes}")
        shape = cast("tuple[int, int, int]", shapes[names[0]])
        mem = MEM(names, shape, config)
        vectors = {name: space for name, space in observation_space.items() if name not in {*names, MASK}}
        size = mem.state_dim + sum(spaces.flatdim(space) for space in vectors.values())
        super(CombinedExtractor, self).__init__(observation_space, size)
        self.mem = mem
        self._vector_names = list(vectors)
        # The policy passes `normalized_image=True` if it leaves the images at 0 to 255.
        self._pixel_scale = 1 if normalized_image else 255
        self._next_features: Features | None = None
        self.metrics: dict[str, Tensor] = {}
        """Metrics of the last training batch."""

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Return the features [B, D] of preprocessed observations.

        On the batch announced by `train_next_batch`, their backward pass also starts MEM's loss.
        """
        images = torch.stack([observations[name] for name in self.mem.view_names], dim=1)
        views = images if self._pixel_scale == 1 else (images * self._pixel_scale).round()
        mask = observations.get(MASK)
        features = self.mem.encode(views.to(torch.uint8), None if mask is None else mask.bool())
        state = features.state
        if torch.is_grad_enabled() and self._next_features is not None:
            state = self._attach_loss(features, self._next_features)
            self._next_features = None
        return torch.cat([state, *(observations[name].flatten(1) for name in self._vector_names)], dim=1)

    def train_next_batch(self, next_features: Features) -> None:
        """Compute MEM's loss on the next batch that is encoded with gradient; it is followed by `next_features`."""
        self._next_features = next_features

    def _attach_loss(self, features: Features, next_features: Features) -> Tensor:
        loss, metrics = self.mem.compute_loss(features, next_features)
        self.metrics = metrics | self.mem.update_discriminator(features)
        state: Tensor = AttachedLoss.apply(features.state, loss)  # type: ignore[no-untyped-call]
        return state

    def encode(self, observations: ObservationArrays | dict[str, Tensor]) -> Features:
        """Return the features of raw observations [B, ...], without gradient."""
        return encode_observations(self.mem, observations)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state of the discriminator's optimizer, which no algorithm saves."""
        return self.mem.discriminator_optimizer.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.mem.discriminator_optimizer.load_state_dict(state)


def _get_view_spaces(observation_space: spaces.Space[Any]) -> dict[str, spaces.Box]:
    """Return the image spaces of a dict observation by name."""
    if not isinstance(observation_space, spaces.Dict):
        raise TypeError(f"wrong observation space: expected a dict of uint8 images, got {observation_space}")
    return {
        name: space
        for name, space in observation_space.items()
        if isinstance(space, spaces.Box) and is_image_space(space)
    }


class MEMActor(Actor):
    """Actor on MEM's features, which it does not train."""

    def extract_features(self, obs: Any, features_extractor: BaseFeaturesExtractor) -> Tensor:
        with torch.no_grad():
            return super().extract_features(obs, features_extractor)


class MEMCritic(ContinuousCritic):
    """Critics whose loss trains MEM's encoder; the actor's loss does not."""

    def forward(self, obs: Any, actions: Tensor) -> tuple[Tensor, ...]:
        # In the actor's loss the actions have a gradient, in the critic's they come from the replay buffer.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not actions.requires_grad):
            features = self.extract_features(obs, self.features_extractor)
        inputs = torch.cat([features, actions], dim=1)
        return tuple(critic(inputs) for critic in self.q_networks)


class MEMSACPolicy(SACMultiInputPolicy):
    """SAC's networks on one MEM, shared by actor and critics; the target critics have a soft copy of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("share_features_extractor"):
            raise ValueError(
                "wrong policy_kwargs: expected no share_features_extractor, got True. Remove it: with it the actor "
                "would train the encoder, and the critics would not"
            )
        super().__init__(*args, **{"features_extractor_class": MEMExtractor, **kwargs})

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        extractor = self.make_features_extractor()
        self.actor, self.critic = self.make_actor(extractor), self.make_critic(extractor)
        self.critic_target = self.make_critic()
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.critic_target.set_training_mode(False)
        actor_parameters = [
            parameter for name, parameter in self.actor.named_parameters() if not name.startswith("features_extractor.")
        ]
        make_optimizer = cast("Any", self.optimizer_class)
        self.actor.optimizer = make_optimizer(actor_parameters, lr=lr_schedule(1), **self.optimizer_kwargs)
        self.critic.optimizer = make_optimizer(self.critic.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> Actor:
        return MEMActor(**self._update_features_extractor(self.actor_kwargs, features_extractor)).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        return MEMCritic(**self._update_features_extractor(self.critic_kwargs, features_extractor)).to(self.device)


class _Connection(NamedTuple):
    """The encoder and the current β, for a buffer."""

    extractor: MEMExtractor
    get_beta: Callable[[], float]


class MEMReplayBuffer(DictReplayBuffer):
    """Replay buffer that adds β r̂ to the rewards of each sampled batch (Eq. 10); stored rewards stay as they are."""

    connection: _Connection | None = None
    reward_int = 0.0
    """Mean r̂ of the last batch."""

    def _get_samples(self, batch_inds: NDArray[Any], env: VecNormalize | None = None) -> Any:
        env_indices = np.random.randint(self.n_envs, size=len(batch_inds))
        rows = (batch_inds, env_indices)
        raw = {name: part[rows] for name, part in self.observations.items()}
        next_raw = {name: part[rows] for name, part in self.next_observations.items()}
        rewards = self.to_torch(self._normalize_reward(self.rewards[rows].reshape(-1, 1), env))
        indices = torch.as_tensor(batch_inds * self.n_envs + env_indices, device=self.device)
        return DictReplayBufferSamples(
            observations=self._to_tensors(raw, env),
            actions=self.to_torch(self.actions[rows]),
            next_observations=self._to_tensors(next_raw, env),
            dones=self.to_torch(self.dones[rows] * (1 - self.timeouts[rows])).reshape(-1, 1),
            rewards=rewards + self._compute_bonus(raw, next_raw, indices).unsqueeze(1),
        )

    def _to_tensors(self, observations: ObservationArrays, env: VecNormalize | None) -> dict[str, Tensor]:
        normalized = cast("ObservationArrays", self._normalize_obs(observations, env))
        return {name: self.to_torch(part) for name, part in normalized.items()}

    def _compute_bonus(
        self, observations: ObservationArrays, next_observations: ObservationArrays, indices: Tensor
    ) -> Tensor:
        """Return β r̂ [B], and announce the batch to the encoder."""
        extractor, get_beta = _get_connection(self)
        reward_int = extractor.mem.compute_reward(extractor.encode(observations), indices=indices)
        extractor.train_next_batch(extractor.encode(next_observations))
        self.reward_int = reward_int.mean().item()
        return get_beta() * reward_int

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "connection"}


class MEMRolloutBuffer(DictRolloutBuffer):
    """Rollout buffer that announces each minibatch to the encoder, with the features that follow it."""

    connection: _Connection | None = None
    next_features: Features | None = None
    """Features [E * T, ...] that follow each row, in the order of minibatch indices."""

    def _get_samples(self, batch_inds: NDArray[Any], env: VecNormalize | None = None) -> Any:
        if self.next_features is None:
            raise ValueError("missing bonus: expected MEMCallback after the rollout. Pass it to `learn`")
        rows = torch.as_tensor(batch_inds, device=self.next_features.mask.device)
        _get_connection(self).extractor.train_next_batch(index_features(self.next_features, rows))
        return super()._get_samples(batch_inds, env)


def _get_connection(buffer: MEMReplayBuffer | MEMRolloutBuffer) -> _Connection:
    if buffer.connection is None:
        raise ValueError(f"{type(buffer).__name__} is not connected: expected MEMCallback. Pass it to `learn`")
    return buffer.connection


class MEMCallback(BaseCallback):
    """Pays MEM's bonus: adds β r̂ to a rollout and recomputes its returns, or connects the replay buffer that does.

    `beta` gives β after a number of agent steps; a `BetaSchedule` may also count rollouts.
    """

    def __init__(self, beta: Callable[[int], float] | None = None, *, window: int | None = None) -> None:
        """Make the callback.

        Args:
            beta: weight of the bonus; by default the paper's schedule. `BetaSchedule(beta0=0)` pays none.
            window: for PPO, search neighbors in the rollouts of all environments, among this many rows near each; by
                default in the rollout of the same environment.

        """
        super().__init__()
        self.beta: Callable[[int], float] = BetaSchedule() if beta is None else beta
        self.window = window
        self.unit = self.beta.unit if isinstance(self.beta, BetaSchedule) else "agent_steps"
        if self.unit not in ("agent_steps", "rollouts"):
            raise ValueError(f"wrong unit of beta: expected agent_steps or rollouts, got {self.unit}")
        self.num_rollouts = 0

    def get_beta(self) -> float:
        """Return the current β."""
        return self.beta(self.num_timesteps if self.unit == "agent_steps" else self.num_rollouts)

    def _init_callback(self) -> None:
        model: Any = self.model
        is_on_policy = isinstance(model, OnPolicyAlgorithm)
        extractor = model.policy.features_extractor if is_on_policy else model.critic.features_extractor
        buffer, buffer_class = (
            (model.rollout_buffer, MEMRolloutBuffer) if is_on_policy else (model.replay_buffer, MEMReplayBuffer)
        )
        if not isinstance(extractor, MEMExtractor):
            raise TypeError(
                f"wrong features extractor: expected MEMExtractor, got {type(extractor).__name__}. Set "
                f'policy_kwargs={{"features_extractor_class": MEMExtractor}}'
            )
        if is_on_policy and not model.policy.share_features_extractor:
            raise ValueError("wrong policy_kwargs: expected share_features_extractor=True, got False. Remove it")
        if not is_on_policy and not isinstance(model.critic, MEMCritic):
            raise TypeError(f"wrong policy: expected MEMSACPolicy, got {type(model.policy).__name__}")
        if not isinstance(buffer, buffer_class):
            argument = "rollout_buffer_class" if is_on_policy else "replay_buffer_class"
            raise TypeError(
                f"wrong {argument}: expected {buffer_class.__name__}, got {type(buffer).__name__}. Set "
                f"{argument}={buffer_class.__name__}"
            )
        self.extractor, self.buffer = extractor, buffer
        buffer.connection = _Connection(extractor, self.get_beta)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if isinstance(self.buffer, MEMRolloutBuffer):
            reward_int = self._reward_rollout(self.buffer).mean().item()
        else:
            reward_int = self.buffer.reward_int
        self.logger.record("mem/reward_int", reward_int)
        self.logger.record("mem/beta", self.get_beta())
        for name, value in self.extractor.metrics.items():
            self.logger.record(f"mem/{name}", value.item())
        self.num_rollouts += 1

    def _reward_rollout(self, buffer: MEMRolloutBuffer) -> Tensor:
        """Add β r̂ to the rewards, recompute returns and advantages, and return r̂ [T, E]."""
        steps, envs = buffer.rewards.shape
        dones = self.locals["dones"]
        observations = {name: part.reshape(steps * envs, *part.shape[2:]) for name, part in buffer.observations.items()}
        features = self.extractor.encode(observations)
        last_features = self.extractor.encode(self.locals["new_obs"])
        bonus = self.extractor.mem.bonus.train()  # the policy is in evaluation mode until its updates
        reward_int = bonus.compute_reward(
            features, window=self.window, num_rollouts=1 if self.window else envs, num_batches=envs
        ).view(steps, envs)
        buffer.rewards += self.get_beta() * reward_int.cpu().numpy()
        buffer.compute_returns_and_advantage(self.locals["values"], dones)
        has_next = torch.as_tensor(1 - np.concatenate([buffer.episode_starts[1:], dones[None]])).bool()
        buffer.next_features = _shift_features(features, last_features, has_next)
        return reward_int


def _shift_features(features: Features, last_features: Features, has_next: Tensor) -> Features:
    """Return the features after each row of a rollout [T * E, ...], in Stable-Baselines3's order [E * T, ...].

    Where `has_next` [T, E] is false the episode has ended: its row has no views, and no part in the temporal loss.
    """
    steps, envs = has_next.shape
    shifted = Features(
        *(
            torch.cat([part[envs:], last]).unflatten(0, (steps, envs)).transpose(0, 1).flatten(0, 1)
            for part, last in zip(features, last_features, strict=True)
        )
    )
    return mask_features(shifted, has_next.T.flatten())
