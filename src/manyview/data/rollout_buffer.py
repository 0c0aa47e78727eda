"""A rollout: what E environments did in T steps, used for some epochs and then overwritten."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from manyview.data.batch import Minibatch
from manyview.data.derived_views import DerivedViews

ENCODE_BATCH_SIZE = 256
"""Rows, as many as a minibatch of the paper has: what fits for learning fits for this."""


def map_features(features: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same kind of features, of some rows of each of their tensors."""
    return type(features)(*map(function, features))


class RolloutBuffer:
    """Frames of the cameras once, in memory, on the device of the networks; all else is small."""

    def __init__(
        self,
        *,
        num_steps: int,
        num_envs: int,
        image_shape: tuple[int, int, int],
        num_cameras: int,
        action_shape: Sequence[int],
        action_dtype: torch.dtype,
        derived_views: DerivedViews,
        device: torch.device,
    ) -> None:
        self.num_steps, self.num_envs, self.derived_views = num_steps, num_envs, derived_views

        def allocate(*shape: int, dtype: torch.dtype = torch.float32, extra_steps: int = 0) -> Tensor:
            return torch.zeros(num_steps + extra_steps, num_envs, *shape, dtype=dtype, device=device)

        # One step more: what the last action led to, which the next rollout begins with.
        self.frames, self.mask = (
            allocate(num_cameras, *image_shape, dtype=torch.uint8, extra_steps=1),
            allocate(num_cameras, dtype=torch.bool, extra_steps=1),
        )
        self.action = allocate(*action_shape, dtype=action_dtype)
        self.log_prob, self.reward_ext, self.final_value = allocate(), allocate(), allocate()
        self._value = allocate(extra_steps=1)
        self.terminated, self.truncated = allocate(dtype=torch.bool), allocate(dtype=torch.bool)
        self.reward_int, self.advantage = allocate(), allocate()
        self.length = 0
        self.first_step = 0
        """How many steps each environment had made when this rollout began."""
        self._features: list[Any] = []
        self.features: Any | None = None
        """[T + 1, E, ...] once the rollout is whole, if the policy's features are kept."""

    @staticmethod
    def compute_bytes(*, num_steps: int, num_envs: int, image_shape: tuple[int, int, int], num_cameras: int) -> int:
        channels, height, width = image_shape
        return (num_steps + 1) * num_envs * num_cameras * channels * height * width

    @property
    def is_full(self) -> bool:
        return self.length == self.num_steps

    @property
    def value(self) -> Tensor:
        return self._value[:-1]

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated

    def reset(self, views: Tensor, mask: Tensor, *, first_step: int) -> None:
        """Empty, but for the cameras' pictures [E, V, C, H, W] that the first actions answer to."""
        self.length, self.first_step = 0, first_step
        self.frames[0], self.mask[0] = views, mask
        self._features, self.features = [], None

    def get_observation(self) -> tuple[Tensor, Tensor]:
        """What the environments show now, derived views included."""
        return self._get_views(torch.arange(self.num_envs, device=self.action.device) + self.length * self.num_envs)

    def add(
        self,
        action: Tensor,
        log_prob: Tensor,
        value: Tensor,
        features: Any | None,
        *,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        final_value: Tensor,
        views: Tensor,
        mask: Tensor,
    ) -> None:
        """A step of every environment; `final_value` [E] is that of the last state where the clock ran out."""
        step = self.length
        self.action[step], self.log_prob[step], self._value[step] = action, log_prob, value
        self.reward_ext[step], self.terminated[step], self.truncated[step] = reward, terminated, truncated
        self.final_value[step] = final_value
        self.length = step + 1
        self.frames[step + 1], self.mask[step + 1] = views, mask
        if features is not None:
            self._features.append(features)

    def finish(self, value: Tensor, features: Any | None) -> None:
        """The rollout is full; what the policy makes of the observations that come next."""
        self._value[-1] = value
        if features is not None:
            self.features = type(features)(*map(torch.stack, zip(*self._features, features, strict=True)))
        self._features = []

    def compute_next_value(self) -> Tensor:
        """[T, E]: 0 where the world ended; where only the clock ran out, of the last state of that episode."""
        next_value = torch.where(self.truncated, self.final_value, self._value[1:])
        return torch.where(self.terminated, 0.0, next_value)

    @torch.no_grad()
    def encode_all(self, encode: Callable[[Tensor, Tensor], Any]) -> Any:
        """What an encoder makes of every step and of what comes next, [T + 1, E, ...], some rows at a time."""
        rows = torch.arange((self.num_steps + 1) * self.num_envs, device=self.action.device)
        parts = [encode(*self._get_views(batch)) for batch in rows.split(ENCODE_BATCH_SIZE)]
        shape = (self.num_steps + 1, self.num_envs)
        return type(parts[0])(*(torch.cat(tensors).unflatten(0, shape) for tensors in zip(*parts, strict=True)))

    def get_minibatch(self, indices: Tensor, *, with_next: bool = False) -> Minibatch:
        """`indices` [B] count steps and environments: t E + e."""
        views, mask = self._get_views(indices)
        value, advantage, done = (part.flatten()[indices] for part in (self.value, self.advantage, self.done))
        next_indices = torch.where(done, indices, indices + self.num_envs)
        next_features = None
        if self.features is not None:
            next_features = map_features(self.features, lambda part: part.flatten(0, 1)[next_indices])
            next_features = next_features._replace(
                mask=next_features.mask & ~done.unsqueeze(1)
            )  # nothing follows: there is nothing to tie
        next_views, next_mask = self._get_views(next_indices) if with_next else (None, None)
        return Minibatch(
            views=views,
            mask=mask,
            action=self.action.flatten(0, 1)[indices],
            log_prob=self.log_prob.flatten()[indices],
            value=value,
            advantage=advantage,
            returns=value + advantage,
            next_features=next_features,
            next_views=next_views,
            next_mask=next_mask,
            has_next=~done,
        )

    def _get_views(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        views, mask = self.frames.flatten(0, 1)[indices], self.mask.flatten(0, 1)[indices]
        return self.derived_views(views, mask, draw_ids=self.get_draw_ids(indices), env_ids=indices % self.num_envs)

    def get_draw_ids(self, indices: Tensor) -> Tensor:
        """For each row: what is random about derived views is the same in all of this rollout."""
        return torch.full_like(indices, self.first_step)
