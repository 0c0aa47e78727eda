"""MEM in TorchRL: encoder as tensordict module, bonus as transform, loss module.

    encoder = MEMEncoder(MEM(["front", "side"], (3, 84, 84)))
    policy = TensorDictSequential(encoder, head)  # the head reads "state"
    bonus, mem_loss = MEMBonus(encoder, BetaSchedule(beta0=0.05)), MEMLoss(encoder)
    replay_buffer.append_transform(bonus)  # pays at every sample; or call it on a rollout, before its advantages

    batch = replay_buffer.sample()
    loss = mem_loss(batch)["loss_mem"]  # encodes the batch: other losses read "state", with gradient
    loss = loss + other_loss(batch)["loss_value"]
    loss.backward()  # one pass for encoder and heads

An actor must not train the encoder: call its loss with `detach_states(batch)`. Tested with torchrl 0.14.1.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyview.adapters.encoding import MASK, encode_observations, stack_images
from manyview.mem import MEM, BetaSchedule, Features
from manyview.utils.optional_imports import import_optional

import_optional("torchrl", extra="torchrl")

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import Transform
from torchrl.objectives import LossModule

STATE = "state"
"""Key of MEM's state [..., S], the input of policy and critics."""
REWARD_INT = "reward_int"
"""Key of r̂ [..., 1]."""
REWARD = ("next", "reward")


class MEMEncoder(TensorDictModuleBase):  # type: ignore[misc]
    """Encode the images [..., C, H, W] under the names of the views and write `state`.

    They are uint8: leave `ToTensorImage` out. `mask_key` names the mask [..., V] of present views, if there is one.
    """

    def __init__(self, mem: MEM, *, mask_key: str | None = None) -> None:
        super().__init__()
        self.mem, self.mask_key = mem, mask_key
        self.in_keys = [*mem.view_names] if mask_key is None else [*mem.view_names, mask_key]
        self.out_keys = [STATE]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows = self.flatten_observations(tensordict)
        state = self.mem.encode(*stack_images(self.mem, rows)).state
        return tensordict.set(STATE, state.view(*tensordict.batch_size, -1))

    def flatten_observations(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Return the observations as rows [B, ...]."""
        images = {name: tensordict[name] for name in self.mem.view_names}
        rows = {name: image.reshape(-1, *image.shape[-3:]) for name, image in images.items()}
        if self.mask_key is not None:
            rows[MASK] = tensordict[self.mask_key].reshape(-1, len(images))
        return rows


class MEMBonus(Transform):  # type: ignore[misc]
    """Add β r̂ to the rewards of sampled transitions [B] or of rollouts [E, T] (Eq. 10), and write `reward_int`.

    The rewards in the buffer stay as they are. Set `elapsed` to the agent steps so far, for β. Every call advances the
    running scales and the feature bank of the bonus.
    """

    def __init__(
        self, encoder: MEMEncoder, beta: Callable[[int], float] | None = None, *, window: int | None = None
    ) -> None:
        """Make the transform.

        Args:
            encoder: MEM's encoder.
            beta: weight of the bonus after a number of agent steps; by default the paper's schedule.
            window: for rollouts, search neighbors in those of all environments, among this many rows near each; by
                default in the rollout of the same environment.

        """
        super().__init__(in_keys=[*encoder.in_keys, REWARD], out_keys=[REWARD, REWARD_INT])
        self.encoder, self.beta, self.window = encoder, BetaSchedule() if beta is None else beta, window
        self.elapsed = 0

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        reward_int = self.compute_reward(tensordict).unsqueeze(-1)
        reward = tensordict[REWARD]
        paid = tensordict.clone(recurse=False)
        paid.set(REWARD, reward + self.beta(self.elapsed) * reward_int.to(reward.device))
        return paid.set(REWARD_INT, reward_int)

    @torch.no_grad()
    def compute_reward(self, tensordict: TensorDictBase) -> Tensor:
        """Return r̂ of each row."""
        bonus = self.encoder.mem.bonus.train()  # a replay buffer puts its transforms in evaluation mode
        if tensordict.ndim == 1:
            index = tensordict.get("index", None)
            features = self._encode(tensordict)
            if index is not None:
                index = index.to(features.mask.device)
            return bonus.compute_reward(features, indices=index)
        if tensordict.ndim != 2:
            raise ValueError(
                f"wrong batch size: expected transitions [B] or rollouts [E, T], got {list(tensordict.batch_size)}"
            )
        envs, steps = tensordict.batch_size
        reward = bonus.compute_reward(
            self._encode(tensordict.transpose(0, 1)),
            window=self.window,
            num_rollouts=1 if self.window else envs,
            num_batches=envs,
        )
        return reward.view(steps, envs).T

    def _encode(self, tensordict: TensorDictBase) -> Features:
        return encode_observations(self.encoder.mem, self.encoder.flatten_observations(tensordict))


class MEMLoss(LossModule):  # type: ignore[misc]
    """MEM's loss of transitions, as `loss_mem`, with its metrics.

    It encodes them: `state` gets a gradient, `("next", "state")` none. With gradients enabled it also takes the step of
    the discriminator.
    """

    def __init__(self, encoder: MEMEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.in_keys = [*encoder.in_keys, *(("next", key) for key in encoder.in_keys)]
        self.out_keys = ["loss_mem"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        mem, shape = self.encoder.mem, tensordict.batch_size
        features = mem.encode(*stack_images(mem, self.encoder.flatten_observations(tensordict)))
        next_features = encode_observations(mem, self.encoder.flatten_observations(tensordict["next"]))
        tensordict.set(STATE, features.state.view(*shape, -1))
        tensordict.set(("next", STATE), next_features.state.view(*shape, -1))
        loss, metrics = mem.compute_loss(features, next_features)
        if torch.is_grad_enabled():
            metrics |= mem.update_discriminator(features)
        return TensorDict({"loss_mem": loss, **{name: value.detach() for name, value in metrics.items()}})


def detach_states(tensordict: TensorDictBase) -> Any:
    """Return the batch with `state` detached from the encoder, for the actor's loss."""
    return tensordict.clone(recurse=False).set(STATE, tensordict[STATE].detach())
