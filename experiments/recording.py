"""Recorded multi-view frames, made by `tools.record_dmc` and sampled like a replay buffer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import zstandard
from safetensors.numpy import load
from torch import Tensor

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "dmc"
VIEWS = ("first", "second", "foreground")
FRAME_STACK = 3
SHIFT_PIXELS = 2  # DrQ-v2 shifts 84 pixels by up to 4

Shift = Literal["none", "each", "common"]


@dataclass(frozen=True)
class Recording:
    frames: Tensor  # [T, V, 3, S, S] uint8
    state: Tensor  # [T, D] float64, every dimension of unit variance
    age: Tensor  # [T] steps since the start of the episode

    @classmethod
    def load(cls, task: str) -> "Recording":
        raw = zstandard.ZstdDecompressor().decompress((FIXTURES / f"{task}.safetensors.zst").read_bytes())
        data = load(raw)
        frames = data["frames"]
        foreground = np.unpackbits(data["foreground"], axis=-1)[:, None, :, :, None]
        views = np.concatenate([frames, frames[:, :1] * foreground], axis=1).transpose(0, 1, 4, 2, 3)
        state = data["state"].astype(np.float64)
        # Quantities that never change in the recording drop out.
        spread = state.std(0)
        state = state / np.where(spread > 1e-6, spread, np.inf)
        age = np.arange(len(state)) - np.maximum.accumulate(np.where(data["start"], np.arange(len(state)), 0))
        return cls(torch.from_numpy(np.ascontiguousarray(views)), torch.from_numpy(state), torch.from_numpy(age))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        size = self.frames.shape[-1]
        return (3 * FRAME_STACK, size, size)

    def stack_frames(self, rows: Tensor) -> Tensor:
        """Return [B, V, 9, S, S]: the last three frames of each view, repeated at an episode's start like DrQ-v2."""
        back = torch.arange(FRAME_STACK - 1, -1, -1)
        index = rows[:, None] - torch.minimum(back[None], self.age[rows][:, None])  # [B, 3]
        frames = self.frames.index_select(0, index.flatten()).view(*index.shape, *self.frames.shape[1:])
        return frames.transpose(1, 2).flatten(2, 3)

    def shuffle_rows(self, generator: torch.Generator) -> Tensor:
        """Return every row once, in random order."""
        return torch.randperm(len(self.frames), generator=generator)

    def sample(self, count: int, generator: torch.Generator, *, ahead: int = 1) -> Tensor:
        """Return random rows whose `ahead`-th successor belongs to the same episode."""
        length = len(self.frames)
        later = torch.arange(length) + ahead
        good = (later < length) & (self.age[later.clamp(max=length - 1)] >= ahead)
        rows = good.nonzero().flatten()
        return rows[torch.randint(len(rows), (count,), generator=generator)]


def shift_images(views: Tensor, generator: torch.Generator, how: Shift) -> Tensor:
    """Apply DrQ-v2's random shift as an integer crop: one draw per image, or one common to the batch."""
    if how == "none":
        return views
    batch, count, channels, height, width = views.shape
    pad, images = SHIFT_PIXELS, views.flatten(0, 1).numpy()
    padded = np.empty((batch * count, channels, height + 2 * pad, width + 2 * pad), np.uint8)
    padded[:, :, pad:-pad, pad:-pad] = images
    padded[:, :, :pad], padded[:, :, -pad:] = padded[:, :, pad : pad + 1], padded[:, :, -pad - 1 : -pad]
    padded[..., :pad], padded[..., -pad:] = padded[..., pad : pad + 1], padded[..., -pad - 1 : -pad]
    draws = batch * count if how == "each" else 1
    offsets = torch.randint(2 * pad + 1, (draws, 2), generator=generator).expand(batch * count, 2).tolist()
    moved = np.empty_like(images)
    for image, (down, right) in enumerate(offsets):
        moved[image] = padded[image, :, down : down + height, right : right + width]
    return torch.from_numpy(moved).view(views.shape)
