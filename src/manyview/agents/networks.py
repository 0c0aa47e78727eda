"""Heads of actors and critics: three linear layers on the representation's state."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Head(nn.Sequential):
    """Always float32: in bfloat16 a value of 150 has neighbours at 149 and 151, as far apart as rewards."""

    def forward(self, state: Tensor) -> Tensor:
        with torch.autocast(state.device.type, enabled=False):
            out: Tensor = super().forward(state.float())  # type: ignore[no-untyped-call]
        return out


def mlp(inputs: int, hidden: int, outputs: int) -> Head:
    layers = (nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, hidden), nn.ReLU(inplace=True))
    net = Head(*layers, nn.Linear(hidden, outputs))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


class TwinCritic(nn.Module):
    """Two independent Q functions."""

    def __init__(self, state_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(mlp(state_dim + action_dim, hidden, 1) for _ in range(2))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """[2, B]"""
        both = torch.cat([state, action], dim=1)
        return torch.stack([head(both).squeeze(1) for head in self.heads])


def saturation(raw: Tensor, *, free: float = 2.0) -> Tensor:
    """How far, squared, policies stand beyond ±`free` before their tanh, where it hardly has a gradient left."""
    return (raw.abs() - free).clamp(min=0).pow(2).mean()


class NonFiniteError(ArithmeticError):
    """A loss or gradient is not a number. The step was not taken; all parameters are as they were before it."""


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """One step of an optimiser down a loss; the norm of the gradient."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if not norm.isfinite():
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteError(f"the norm of a gradient is {norm.item()}, of a loss of {loss.item()}")
    optimizer.step()
    return norm


def adam(
    parameters: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.Adam:
    """Fused: one pass over the memory instead of six, a third of the time on a CPU."""
    return torch.optim.Adam(parameters, lr=lr, betas=betas, fused=True)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Its parameters get no gradient inside; what goes through it still does."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)
