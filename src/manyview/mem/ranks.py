"""What several learners of one run do together, each with its part of a batch. One alone does nothing here.

They are the ranks of torch's default process group (gloo or NCCL). Parameters that begin equal stay equal: every step
is taken along the mean gradient of all, and running moments are those of the whole batch.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, distributed


def together() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def summed(value: Tensor) -> Tensor:
    """Over all ranks."""
    if not together():
        return value
    total = value.clone()
    distributed.all_reduce(total)
    return total


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Of all ranks, in place and in one exchange. They have gradients for the same parameters."""
    if not together():
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = summed(torch.cat([gradient.reshape(-1) for gradient in gradients])) / distributed.get_world_size()
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
