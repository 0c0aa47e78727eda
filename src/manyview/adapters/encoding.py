"""Encoding of dict observations, and MEM's loss inside the update of another framework."""

from collections.abc import Mapping
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from manyview.mem import MEM, Features

MASK = "mask"
"""Key of the view mask [B, V] in observations; optional."""
ENCODE_BATCH_SIZE = 256
"""Rows that are encoded at once."""


def stack_images(mem: MEM, observations: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the views [B, V, C, H, W] of uint8 images [B, C, H, W] by name and their mask [B, V], on MEM's device."""
    device = mem.discriminator.weight.device
    views = torch.stack([torch.as_tensor(observations[name], device=device) for name in mem.view_names], dim=1)
    return views, torch.as_tensor(observations[MASK], device=device).bool() if MASK in observations else None


@torch.no_grad()
def encode_observations(mem: MEM, observations: Mapping[str, Any]) -> Features:
    """Return the features of many observations, without gradient; see `stack_images`."""
    views, mask = stack_images(mem, observations)
    masks = repeat(None) if mask is None else mask.split(ENCODE_BATCH_SIZE)
    parts = [mem.encode(*batch) for batch in zip(views.split(ENCODE_BATCH_SIZE), masks, strict=False)]
    return Features(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def index_features(features: Features, rows: Tensor) -> Features:
    """Return the features of `rows`."""
    return Features(*(part[rows] for part in features))


def mask_features(features: Features, present: Tensor) -> Features:
    """Return features that take no part in the temporal loss where `present` [B] is false: an episode has ended."""
    return features._replace(mask=features.mask & present.to(features.mask.device).unsqueeze(1))


class AttachedLoss(torch.autograd.Function):
    """Identity of `state`; the backward pass through it also starts that of `loss`, with weight 1.

    So the framework's own optimizer step trains the encoder on both losses, in one pass through the convolutions.
    """

    @staticmethod
    def forward(ctx: Any, state: Tensor, loss: Tensor) -> Tensor:  # noqa: ARG004
        return state.view_as(state)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004
        return gradients[0], gradients[0].new_ones(())
