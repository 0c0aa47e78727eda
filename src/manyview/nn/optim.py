"""Optimizer steps that check for non-finite values, and frozen parameters."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from manyview.utils.distributed import average_gradients


class NonFiniteError(ArithmeticError):
    """A loss or gradient is not a number. The step was not taken; all parameters are as they were before it."""


def optimizer_step(loss: Tensor, optimizer: torch.optim.Optimizer, *, max_grad_norm: float | None = None) -> Tensor:
    """One step of an optimiser down a loss, along a gradient clipped to the norm `max_grad_norm`; its length before."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    average_gradients(parameters)  # so that all learners see the same norm, and skip the same step
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    if not norm.isfinite():
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteError(f"the norm of a gradient is {norm.item()}, of a loss of {loss.item()}")
    if max_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    optimizer.step()
    return norm


def make_adam(
    parameters: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> torch.optim.Adam:
    """Fused: one pass over the memory instead of six, a third of the time on a CPU."""
    return torch.optim.Adam(parameters, lr=lr, betas=betas, eps=eps, fused=True)


@contextmanager
def freeze(module: nn.Module) -> Iterator[None]:
    """Its parameters get no gradient inside; what goes through it still does."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)
