"""Encoder of state vectors: normalization by running statistics, a linear layer, LayerNorm and tanh."""

import torch
from torch import Tensor, nn

from manyview.nn.heads import make_projection
from manyview.nn.normalization import VectorNormalizer
from manyview.nn.soft_update import make_target


class VectorEncoder(nn.Module):
    """Features [B, width] of state vectors [B, size] in raw units.

    The statistics are buffers: a part of the checkpoint, and of the weights that actors get.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size, self.width = size, width
        self.normalizer = VectorNormalizer(size)
        self.projection = make_projection(size, width)
        # Without a bias, LayerNorm gives x and 2 x equal features: a single number would keep only its sign.
        nn.init.normal_(self.projection[0].get_parameter("bias"))

    def forward(self, vectors: Tensor | None) -> Tensor:
        features: Tensor = self.projection(self.normalizer(self.validate(vectors)))
        return features

    def validate(self, vectors: Tensor | None) -> Tensor:
        """Return the vectors; ValueError unless they are [B, size] float32."""
        if vectors is None or vectors.shape[1:] != (self.size,) or vectors.dtype != torch.float32:
            got = "none" if vectors is None else f"{list(vectors.shape)} {vectors.dtype}"
            raise ValueError(f"state vectors do not fit this agent: expected [B, {self.size}] float32, got {got}")
        return vectors

    def make_target(self) -> "VectorEncoder":
        """Return a copy for `soft_update`, with the same statistics, now and later."""
        target = make_target(self)
        target.normalizer = self.normalizer
        return target


def join_features(state: Tensor, vector_features: Tensor | None) -> Tensor:
    """Return the policy's state [B, S]: that of the representation and, if any, the features of state vectors."""
    return state if vector_features is None else torch.cat([state, vector_features], dim=1)
