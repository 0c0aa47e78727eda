"""Synthetic views whose shared and specific factors are known (QUALITY C5)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

SIZE, CHANNELS, FACTORS, STEP = 40, 3, 3, 0.15


@dataclass(frozen=True)
class FactorWorld:
    """Every view paints the shared factors through one common basis and its own factors through a basis of its own.

    A step of the world moves all factors a little, so that "the next frame" has a meaning.
    """

    common: Tensor  # [F, C, S, S]
    own: Tensor  # [V, F, C, S, S]
    backdrop: Tensor  # [V, C, S, S], what a camera always sees

    @classmethod
    def make(cls, views: int, generator: torch.Generator) -> "FactorWorld":
        def smooth(*shape: int) -> Tensor:
            coarse = torch.randn(*shape, CHANNELS, 4, 4, generator=generator).flatten(0, -4)
            wide = torch.nn.functional.interpolate(coarse, SIZE, mode="bilinear")
            return wide.view(*shape, CHANNELS, SIZE, SIZE)

        return cls(smooth(FACTORS), smooth(views, FACTORS), smooth(views))

    def paint(self, shared: Tensor, specific: Tensor) -> Tensor:
        """Factors [B, F] and [B, V, F] to views [B, V, C, S, S] uint8."""
        common = torch.einsum("bf,fchw->bchw", shared, self.common).unsqueeze(1)
        own = torch.einsum("bvf,vfchw->bvchw", specific, self.own)
        return (128 + 40 * (common + own + self.backdrop)).clamp(0, 255).to(torch.uint8)

    def batches(self, count: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """For ever: views now, and views a step later."""
        views = len(self.own)
        while True:
            shared = 2 * torch.rand(count, FACTORS, generator=generator) - 1
            specific = 2 * torch.rand(count, views, FACTORS, generator=generator) - 1
            moved = (factor + STEP * torch.randn(factor.shape, generator=generator) for factor in (shared, specific))
            yield self.paint(shared, specific), self.paint(*moved)
