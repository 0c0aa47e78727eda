"""Networks that follow others slowly: target critics and encoders, and CURL's keys."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn


class Trained(Protocol):
    def parameters(self) -> Iterator[nn.Parameter]: ...


@torch.no_grad()
def soft_update(online: Trained, target: Trained, rate: float) -> None:
    """θ' ← θ' + rate (θ - θ')"""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)
