"""Networks that follow others slowly: target critics and encoders, and CURL's keys."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn


class HasParameters(Protocol):
    def parameters(self) -> Iterator[nn.Parameter]: ...


@torch.no_grad()
def soft_update(online: HasParameters, target: HasParameters, tau: float) -> None:
    """θ' ← θ' + τ (θ - θ')"""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
