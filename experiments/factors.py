"""Synthetic views whose shared and specific factors are known (QUALITY C5)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

SIZE, CHANNELS, FACTORS, STEP = 40, 3, 3, 0.15


@dataclass(frozen=True)
class FactorWorld:
    """Views that paint shared factors through one common basis and specific factors through a basis per view.

    A step moves all factors a little, so that there is a next frame.
    """

    common: Tensor  # [F, C, S, S]
    own: Tensor  # [V, F, C, S, S]
    backdrop: Tensor  # [V, C, S, S], the constant background of a camera

    @classmethod
    def make(cls, views: int, generator: torch.Generator) -> "FactorWorld":
        def smooth(*shape: int) -> Tensor:
            coarse = torch.randn(*shape, CHANNELS, 4, 4, generator=generator).flatten(0, -4)
            wide = torch.nn.functional.interpolate(coarse, SIZE, mode="bilinear")
            return wide.view(*shape, CHANNELS, SIZE, SIZE)

        return cls(smooth(FACTORS), smooth(views, FACTORS), smooth(views))

    def render(self, shared: Tensor, specific: Tensor) -> Tensor:
        """Render factors [B, F] and [B, V, F] to views [B, V, C, S, S] uint8."""
        common = torch.einsum("bf,fchw->bchw", shared, self.common).unsqueeze(1)
        own = torch.einsum("bvf,vfchw->bvchw", specific, self.own)
        return (128 + 40 * (common + own + self.backdrop)).clamp(0, 255).to(torch.uint8)

    def iterate_batches(self, count: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views and the views one step later, without end."""
        views = len(self.own)
        while True:
            shared = 2 * torch.rand(count, FACTORS, generator=generator) - 1
            specific = 2 * torch.rand(count, views, FACTORS, generator=generator) - 1
            moved = (factor + STEP * torch.randn(factor.shape, generator=generator) for factor in (shared, specific))
            yield self.render(shared, specific), self.render(*moved)
