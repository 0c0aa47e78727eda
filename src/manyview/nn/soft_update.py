"""Soft update (Polyak averaging) of target networks: critics, encoders, CURL's keys."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn


class HasParameters(Protocol):
    """Module, or representation protocol, with parameters."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


Network = TypeVar("Network", bound=HasParameters)


def make_target(online: Network) -> Network:
    """Return a copy for `soft_update`, without gradient."""
    target = deepcopy(online)
    for parameter in target.parameters():
        parameter.requires_grad_(False)
    return target


@torch.no_grad()
def soft_update(online: HasParameters, target: HasParameters, tau: float) -> None:
    """Move the target network toward the online one: θ' ← θ' + τ (θ - θ').

    Buffers do not move: running statistics of the target stay those of the copy, or those it updates itself.
    """
    moved: list[Tensor] = list(target.parameters())
    if moved:  # an encoder may have none
        torch._foreach_lerp_(moved, list(online.parameters()), tau)
