"""All-reduce helpers for several learners of a run; no-ops at world size 1.

The learners are the ranks of torch's default process group (gloo or NCCL), each with its part of a batch. Parameters
that start equal stay equal: every step uses the mean gradient of all ranks, and running moments use the full batch.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, distributed

_sync_disabled = ContextVar("sync_disabled", default=False)


def is_distributed() -> bool:
    """Return whether there are several ranks and synchronization is enabled."""
    initialized = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return initialized and not _sync_disabled.get()


@contextmanager
def no_sync() -> Iterator[None]:
    """Disable synchronization for code that only one rank runs.

    A collective call of a single rank would wait forever.
    """
    token = _sync_disabled.set(True)
    try:
        yield
    finally:
        _sync_disabled.reset(token)


def all_reduce_sum(value: Tensor) -> Tensor:
    """Return the sum of `value` over all ranks."""
    if not is_distributed():
        return value
    total = value.clone()
    distributed.all_reduce(total)
    return total


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Average the gradients over all ranks, in place and in one all-reduce.

    All ranks must have gradients for the same parameters.
    """
    if not is_distributed():
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = all_reduce_sum(torch.cat([gradient.reshape(-1) for gradient in gradients])) / distributed.get_world_size()
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
