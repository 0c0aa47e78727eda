"""A rollout: what E environments did in T steps, used for some epochs and then overwritten."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyview.data.derived import Derived

ENCODED_AT_ONCE = 256
"""Rows, as many as a minibatch of the paper has: what fits for learning fits for this."""


def of_rows(features: Any, taken: Callable[[Tensor], Tensor]) -> Any:
    """The same kind of features, of some rows of each of their tensors."""
    return type(features)(*map(taken, features))


class Minibatch(NamedTuple):
    """Rows of a rollout, in no order."""

    views: Tensor  # [B, V, C, H, W] uint8, derived ones included
    mask: Tensor  # [B, V] bool
    action: Tensor  # [B] or [B, A]
    log_prob: Tensor  # [B], of the policy that acted
    value: Tensor  # [B], as that policy saw it
    advantage: Tensor  # [B]
    returns: Tensor  # [B], what the value should have been
    later: Any | None
    """Features of the step after, as they were while acting; None if they are not kept."""
    next_views: Tensor | None
    """Of the step after, if asked for; the row's own where its episode ended."""
    next_mask: Tensor | None
    follows: Tensor  # [B] bool, whether the step after is of the same episode


class Rollout:
    """Frames of the cameras once, in memory, on the device of the networks; all else is small."""

    def __init__(
        self,
        *,
        steps: int,
        envs: int,
        image: tuple[int, int, int],
        cameras: int,
        action_shape: Sequence[int],
        action_dtype: torch.dtype,
        derived: Derived,
        device: torch.device,
    ) -> None:
        self.steps, self.envs, self.derived = steps, envs, derived

        def rows(*shape: int, dtype: torch.dtype = torch.float32, more: int = 0) -> Tensor:
            return torch.zeros(steps + more, envs, *shape, dtype=dtype, device=device)

        # One step more: what the last action led to, which the next rollout begins with.
        self.frames, self.mask = (
            rows(cameras, *image, dtype=torch.uint8, more=1),
            rows(cameras, dtype=torch.bool, more=1),
        )
        self.action = rows(*action_shape, dtype=action_dtype)
        self.log_prob, self.reward_ext, self.final_value = rows(), rows(), rows()
        self._value = rows(more=1)
        self.terminated, self.truncated = rows(dtype=torch.bool), rows(dtype=torch.bool)
        self.reward_int, self.advantage = rows(), rows()
        self.length = 0
        self.first_step = 0
        """How many steps each environment had made when this rollout began."""
        self._features: list[Any] = []
        self.features: Any | None = None
        """[T + 1, E, ...] once the rollout is whole, if the policy's features are kept."""

    @staticmethod
    def bytes_needed(*, steps: int, envs: int, image: tuple[int, int, int], cameras: int) -> int:
        channels, height, width = image
        return (steps + 1) * envs * cameras * channels * height * width

    @property
    def full(self) -> bool:
        return self.length == self.steps

    @property
    def value(self) -> Tensor:
        return self._value[:-1]

    @property
    def ended(self) -> Tensor:
        return self.terminated | self.truncated

    def begin(self, views: Tensor, mask: Tensor, *, first_step: int) -> None:
        """Empty, but for the cameras' pictures [E, V, C, H, W] that the first actions answer to."""
        self.length, self.first_step = 0, first_step
        self.frames[0], self.mask[0] = views, mask
        self._features, self.features = [], None

    def seen(self) -> tuple[Tensor, Tensor]:
        """What the environments show now, derived views included."""
        return self._views(torch.arange(self.envs, device=self.action.device) + self.length * self.envs)

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

    def close(self, value: Tensor, features: Any | None) -> None:
        """The rollout is full; what the policy makes of the observations that come next."""
        self._value[-1] = value
        if features is not None:
            self.features = type(features)(*map(torch.stack, zip(*self._features, features, strict=True)))
        self._features = []

    def next_value(self) -> Tensor:
        """[T, E]: 0 where the world ended; where only the clock ran out, of the last state of that episode."""
        following = torch.where(self.truncated, self.final_value, self._value[1:])
        return torch.where(self.terminated, 0.0, following)

    @torch.no_grad()
    def encoded(self, encode: Callable[[Tensor, Tensor], Any]) -> Any:
        """What an encoder makes of every step and of what comes next, [T + 1, E, ...], some rows at a time."""
        rows = torch.arange((self.steps + 1) * self.envs, device=self.action.device)
        parts = [encode(*self._views(some)) for some in rows.split(ENCODED_AT_ONCE)]
        shape = (self.steps + 1, self.envs)
        return type(parts[0])(*(torch.cat(pieces).unflatten(0, shape) for pieces in zip(*parts, strict=True)))

    def minibatch(self, rows: Tensor, *, with_next: bool = False) -> Minibatch:
        """`rows` [B] count steps and environments: t E + e."""
        views, mask = self._views(rows)
        value, advantage, ended = (part.flatten()[rows] for part in (self.value, self.advantage, self.ended))
        after = torch.where(ended, rows, rows + self.envs)
        later = None
        if self.features is not None:
            later = of_rows(self.features, lambda part: part.flatten(0, 1)[after])
            later = later._replace(mask=later.mask & ~ended.unsqueeze(1))  # nothing follows: there is nothing to tie
        next_views, next_mask = self._views(after) if with_next else (None, None)
        return Minibatch(
            views=views,
            mask=mask,
            action=self.action.flatten(0, 1)[rows],
            log_prob=self.log_prob.flatten()[rows],
            value=value,
            advantage=advantage,
            returns=value + advantage,
            later=later,
            next_views=next_views,
            next_mask=next_mask,
            follows=~ended,
        )

    def _views(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        views, mask = self.frames.flatten(0, 1)[rows], self.mask.flatten(0, 1)[rows]
        return self.derived(views, mask, draw=self.draw(rows), env=rows % self.envs)

    def draw(self, rows: Tensor) -> Tensor:
        """For each row: what is random about derived views is the same in all of this rollout."""
        return torch.full_like(rows, self.first_step)
