"""MEM in RLlib: RLModule of PPO with MEM's encoder, and learner connector that pays the bonus.

    config = (
        PPOConfig()
        .environment(MyEnv)  # a dict observation of uint8 images [H, W, C]
        .rl_module(rl_module_spec=RLModuleSpec(module_class=MEMModule, model_config={"mem": {"latent_dim": 64}}))
        .learners(learner_connector=lambda *spaces: MEMConnector(BetaSchedule(beta0=0.05)))
    )

The learner's optimizer trains the encoder on PPO's loss and MEM's in one backward pass. Tested with ray 2.60.0.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from manyview.adapters.encoding import MASK, AttachedLoss, encode_observations, index_features, stack_images
from manyview.mem import MEM, BetaSchedule, Features, MEMConfig
from manyview.nn.heads import mlp
from manyview.utils.optional_imports import import_optional

import_optional("ray.rllib", extra="rllib")

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule

NEXT_TERMS, NEXT_MASK = "mem_next_terms", "mem_next_mask"
"""Columns of the train batch: features after each row, [B, V + 1, P], and their mask [B, V]."""


class MEMModule(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]
    """Policy and value function of PPO on MEM's state.

    `model_config`: `mem`, a dict of settings of `MEMConfig`; `hidden`, the width of the heads (256). Every image of the
    dict observation is a view; a binary vector `mask` marks the views that are present.
    """

    elapsed: Tensor

    def setup(self) -> None:
        views = _get_view_spaces(self.observation_space)
        shapes = {(channels, height, width) for height, width, channels in (space.shape for space in views.values())}
        if len(shapes) != 1:
            raise ValueError(
                "wrong observation space: expected uint8 images [H, W, C], at least one and all of one shape, got "
                f"{self.observation_space}"
            )
        self.mem = MEM(list(views), shapes.pop(), MEMConfig(**self.model_config.get("mem", {})))
        hidden = self.model_config.get("hidden", 256)
        outputs = self.get_inference_action_dist_cls().required_input_dim(self.action_space)
        self.policy = mlp(self.mem.state_dim, hidden, outputs, gain=2**0.5, last_gain=0.01)
        self.value = mlp(self.mem.state_dim, hidden, 1, gain=2**0.5)
        # Agent steps that the learner has seen, for β: a buffer, so that checkpoints keep it.
        self.register_buffer("elapsed", torch.zeros((), dtype=torch.int64))

    def get_images(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Return the images [B, C, H, W] of observations with channels last, and the mask."""
        images = {name: torch.as_tensor(observations[name]).permute(0, 3, 1, 2) for name in self.mem.view_names}
        return images | ({MASK: observations[MASK]} if MASK in observations else {})

    def encode(self, observations: Mapping[str, Any]) -> Features:
        return self.mem.encode(*stack_images(self.mem, self.get_images(observations)))

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(self.encode(batch[Columns.OBS]).state)}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        features = self.encode(batch[Columns.OBS])
        state = features.state
        if NEXT_TERMS in batch and torch.is_grad_enabled():
            state = self._attach_loss(features, batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(state), Columns.EMBEDDINGS: state}

    def _attach_loss(self, features: Features, batch: dict[str, Any]) -> Tensor:
        # RLlib appends a row to each episode, for its last value; such a row is no state of its own.
        rows = batch[Columns.LOSS_MASK].nonzero().flatten()
        terms, mask = batch[NEXT_TERMS], batch[NEXT_MASK].bool()
        next_features = Features(terms[:, :-1], terms[:, :-1], terms[:, -1], features.state, mask)
        loss, _ = self.mem.compute_loss(index_features(features, rows), index_features(next_features, rows))
        self.mem.update_discriminator(index_features(features, rows))
        state: Tensor = AttachedLoss.apply(features.state, loss)  # type: ignore[no-untyped-call]
        return state

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        state = self.encode(batch[Columns.OBS]).state if embeddings is None else embeddings
        values: Tensor = self.value(state).squeeze(-1)
        return values


class MEMConnector(ConnectorV2):  # type: ignore[misc]
    """Write rewards with β r̂ (Eq. 10) and the columns that MEM's loss needs to the train batch.

    The episodes and their reported returns stay as they are. Neighbors are searched in all rows of the train batch;
    with `window`, among this many near each.
    """

    def __init__(self, beta: Callable[[int], float] | None = None, *, window: int | None = None) -> None:
        super().__init__()
        self.beta, self.window = BetaSchedule() if beta is None else beta, window

    def __call__(self, *, rl_module: Any, batch: dict[str, Any], episodes: list[Any], **_: Any) -> Any:
        module = rl_module[DEFAULT_MODULE_ID].unwrapped()
        if not isinstance(module, MEMModule):
            raise TypeError(
                f"wrong RLModule: expected MEMModule, got {type(module).__name__}. Set "
                "rl_module_spec=RLModuleSpec(module_class=MEMModule)"
            )
        lengths = [_count_steps(episode, batch) for episode in episodes]
        observations = [episode.get_observations(slice(0, n + 1)) for episode, n in zip(episodes, lengths, strict=True)]
        stacked = {name: np.concatenate([part[name] for part in observations]) for name in observations[0]}
        features = encode_observations(module.mem, module.get_images(stacked))  # of T + 1 observations an episode
        starts = np.cumsum([0, *(length + 1 for length in lengths)])
        rows = np.concatenate([first + np.arange(n) for first, n in zip(starts[:-1], lengths, strict=True)])
        paid = self._compute_bonus(module, index_features(features, torch.as_tensor(rows)))
        # Not in the episodes: RLlib may still sum their rewards to the returns that it reports.
        for episode, bonus in zip(episodes, np.split(paid, np.cumsum(lengths)[:-1]), strict=True):
            rewards = np.array(episode.get_rewards(slice(0, len(episode))), np.float32)
            rewards[: len(bonus)] += bonus
            self.add_n_batch_items(batch, Columns.REWARDS, list(rewards), len(rewards), episode)
        self._add_next_features(batch, features, episodes, starts)
        return batch

    def _compute_bonus(self, module: MEMModule, features: Features) -> Any:
        """Return β r̂ of the rows, as an array."""
        module.elapsed += len(features.mask)
        reward_int = module.mem.bonus.train().compute_reward(features, window=self.window)
        return self.beta(int(module.elapsed)) * reward_int.cpu().numpy()

    def _add_next_features(self, batch: dict[str, Any], features: Features, episodes: list[Any], starts: Any) -> None:
        """Add the features that follow each row; the row that RLlib appended is followed by the last once more."""
        terms, mask = features.terms.cpu().numpy(), features.mask.cpu().numpy()
        for episode, first, end in zip(episodes, starts[:-1], starts[1:], strict=True):
            following = np.minimum(np.arange(first, first + len(episode)) + 1, end - 1)
            for column, values in ((NEXT_TERMS, terms), (NEXT_MASK, mask)):
                self.add_n_batch_items(batch, column, list(values[following]), len(following), episode)


def _count_steps(episode: Any, batch: dict[str, Any]) -> int:
    """Return the steps of an episode, without the one that PPO's pipeline has appended."""
    return len(episode) - (Columns.LOSS_MASK in batch)


def _get_view_spaces(observation_space: Any) -> dict[str, spaces.Box]:
    """Return the image spaces of a dict observation by name."""
    if not isinstance(observation_space, spaces.Dict):
        raise TypeError(f"wrong observation space: expected a dict of uint8 images, got {observation_space}")
    return {
        name: space
        for name, space in observation_space.items()
        if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3
    }
