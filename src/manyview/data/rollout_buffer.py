"""Rollout buffer of on-policy agents: T steps of E environments."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from manyview.data.batch import Minibatch
from manyview.data.derived_views import DerivedViews

ENCODE_BATCH_SIZE = 256
"""Rows per encoder pass, as in the paper's minibatches: if training fits in memory, this does."""


def map_features(features: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply `function` to each tensor of a features tuple."""
    return type(features)(*map(function, features))


class RolloutBuffer:
    """Storage of one rollout on the networks' device; each camera frame is stored once.

    Derived views are recomputed by `derived_views`.
    """

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
        vector_size: int = 0,
    ) -> None:
        self.num_steps, self.num_envs, self.derived_views = num_steps, num_envs, derived_views

        def allocate(*shape: int, dtype: torch.dtype = torch.float32, extra_steps: int = 0) -> Tensor:
            return torch.zeros(num_steps + extra_steps, num_envs, *shape, dtype=dtype, device=device)

        # One extra step: the observation after the last action, which the next rollout starts with.
        self.frames, self.mask = (
            allocate(num_cameras, *image_shape, dtype=torch.uint8, extra_steps=1),
            allocate(num_cameras, dtype=torch.bool, extra_steps=1),
        )
        self.vectors = allocate(vector_size, extra_steps=1) if vector_size else None
        """State vectors [T + 1, E, D], stacked, in raw units; None without any."""
        self.action = allocate(*action_shape, dtype=action_dtype)
        self.log_prob, self.reward_ext, self.final_value = allocate(), allocate(), allocate()
        self._value = allocate(extra_steps=1)
        self.terminated, self.truncated = allocate(dtype=torch.bool), allocate(dtype=torch.bool)
        self.reward_int, self.advantage = allocate(), allocate()
        self.length = 0
        self.first_step = 0
        """Steps of each environment before this rollout."""
        self._features: list[Any] = []
        self.features: Any | None = None
        """Features of the policy [T + 1, E, ...], set by `finish` if they are stored."""

    @staticmethod
    def compute_bytes(*, num_steps: int, num_envs: int, image_shape: tuple[int, int, int], num_cameras: int) -> int:
        """Return the bytes of the frames."""
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

    def reset(self, views: Tensor, mask: Tensor, vectors: Tensor | None = None, *, first_step: int) -> None:
        """Clear the buffer and store the first camera images [E, V, C, H, W], mask [E, V] and vectors [E, D]."""
        self.length, self.first_step = 0, first_step
        self._write_observation(0, views, mask, vectors)
        self._features, self.features = [], None

    def restart(self, *, first_step: int) -> None:
        """Clear the buffer; the observation after the last step becomes the first."""
        vectors = None if self.vectors is None else self.vectors[-1]
        self.reset(self.frames[-1], self.mask[-1], vectors, first_step=first_step)

    def _write_observation(self, step: int, views: Tensor, mask: Tensor, vectors: Tensor | None) -> None:
        self.frames[step], self.mask[step] = views, mask
        if self.vectors is not None:
            if vectors is None:
                raise ValueError(f"missing state vectors: expected {list(self.vectors.shape[1:])} numbers, got None")
            self.vectors[step] = vectors

    def get_observation(self) -> tuple[Tensor, ...]:
        """Return the current views [E, V, C, H, W] and mask [E, V], derived views included.

        With state vectors, they follow: [E, D].
        """
        rows = torch.arange(self.num_envs, device=self.action.device) + self.length * self.num_envs
        return (*self._get_views(rows), *(() if self.vectors is None else (self.vectors[self.length],)))

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
        vectors: Tensor | None = None,
    ) -> None:
        """Append one step of every environment.

        `final_value` [E] is the value of the final state where an episode was truncated.
        """
        step = self.length
        self.action[step], self.log_prob[step], self._value[step] = action, log_prob, value
        self.reward_ext[step], self.terminated[step], self.truncated[step] = reward, terminated, truncated
        self.final_value[step] = final_value
        self.length = step + 1
        self._write_observation(step + 1, views, mask, vectors)
        if features is not None:
            self._features.append(features)

    def finish(self, value: Tensor, features: Any | None) -> None:
        """Store value [E] and features of the observations after the last step of a full rollout."""
        self._value[-1] = value
        if features is not None:
            self.features = type(features)(*map(torch.stack, zip(*self._features, features, strict=True)))
        self._features = []

    def compute_next_value(self) -> Tensor:
        """Return V(next) [T, E]: 0 after a termination, `final_value` after a truncation."""
        next_value = torch.where(self.truncated, self.final_value, self._value[1:])
        return torch.where(self.terminated, 0.0, next_value)

    @torch.no_grad()
    def encode_all(self, encode: Callable[[Tensor, Tensor], Any]) -> Any:
        """Encode all T + 1 observations in batches; return features [T + 1, E, ...]."""
        rows = torch.arange((self.num_steps + 1) * self.num_envs, device=self.action.device)
        parts = [encode(*self._get_views(batch)) for batch in rows.split(ENCODE_BATCH_SIZE)]
        shape = (self.num_steps + 1, self.num_envs)
        return type(parts[0])(*(torch.cat(tensors).unflatten(0, shape) for tensors in zip(*parts, strict=True)))

    def get_minibatch(self, indices: Tensor, *, with_next: bool = False) -> Minibatch:
        """Return the rows at `indices` [B], t * E + e for step t of environment e."""
        views, mask = self._get_views(indices)
        value, advantage, done = (part.flatten()[indices] for part in (self.value, self.advantage, self.done))
        next_indices = torch.where(done, indices, indices + self.num_envs)
        next_features = None
        if self.features is not None:
            next_features = map_features(self.features, lambda part: part.flatten(0, 1)[next_indices])
            next_features = next_features._replace(
                mask=next_features.mask & ~done.unsqueeze(1)
            )  # no next step, so no temporal loss
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
            vectors=None if self.vectors is None else self.vectors.flatten(0, 1)[indices],
        )

    def _get_views(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        views, mask = self.frames.flatten(0, 1)[indices], self.mask.flatten(0, 1)[indices]
        return self.derived_views(views, mask, draw_ids=self.get_draw_ids(indices), env_ids=indices % self.num_envs)

    def get_draw_ids(self, indices: Tensor) -> Tensor:
        """Return the draw id of each row: one draw of derived views per rollout."""
        return torch.full_like(indices, self.first_step)
