"""Soft update (Polyak averaging) of target networks: critics, encoders, CURL's keys."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn


class HasParameters(Protocol):
    """Module, or representation protocol, with parameters."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


@torch.no_grad()
def soft_update(online: HasParameters, target: HasParameters, tau: float) -> None:
    """Move the target network toward the online one: θ' ← θ' + τ (θ - θ')."""
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
