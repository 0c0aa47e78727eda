"""Optimizer steps with gradient clipping and non-finite checks, and frozen parameters."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from manyview.utils.distributed import average_gradients


class NonFiniteError(ArithmeticError):
    """Non-finite gradient. The step was skipped: the optimizer's parameters are unchanged."""


def optimizer_step(loss: Tensor, optimizer: torch.optim.Optimizer, *, max_grad_norm: float | None = None) -> Tensor:
    """Take one optimizer step on `loss` and return the gradient norm.

    The gradient is clipped to `max_grad_norm`; the returned norm is the one before clipping. Raises `NonFiniteError`,
    without a step, if the norm is not finite.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    average_gradients(parameters)  # all learners must see the same norm and skip the same steps
    norm = compute_grad_norm(parameters)
    if not norm.isfinite():
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteError(f"non-finite gradient: norm {norm.item()}, loss {loss.item()}. The step was skipped.")
    if max_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    optimizer.step()
    return norm


def compute_grad_norm(parameters: list[Tensor]) -> Tensor:
    """Return the norm of all gradients, which must be on one device; 0 without parameters."""
    # `torch.nn.utils.get_total_norm` takes twice as long on small networks: it groups them by device first.
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).norm() if gradients else torch.zeros(())


def make_adam(
    parameters: ParamsT, *, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> torch.optim.Adam:
    """Return a fused Adam of parameters or groups: one pass over memory, a third of the time on a CPU."""
    return torch.optim.Adam(parameters, lr=lr, betas=betas, eps=eps, fused=True)


@contextmanager
def freeze(module: nn.Module) -> Iterator[None]:
    """Give the module's parameters no gradient inside the context; its inputs still get one."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)
