"""The device, number type and threads of a run, and what they resolve to here."""

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache

import torch

from manyview.train.config import MachineConfig


def resolved(config: MachineConfig) -> MachineConfig:
    """With nothing left open, as the manifest records it."""
    return replace(config, device=str(device_of(config)), threads=config.threads or torch.get_num_threads())


def device_of(config: MachineConfig) -> torch.device:
    return _device(config.device)


@cache  # asked at every step
def _device(asked: str) -> torch.device:
    if asked == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if found is None else found
    try:
        device = torch.device(asked)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {asked!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return device


def prepare(config: MachineConfig) -> None:
    """Settings that torch keeps for the whole process."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)


def autocast(config: MachineConfig) -> AbstractContextManager[None]:
    """What networks compute in, inside of it."""
    return torch.autocast(device_of(config).type, torch.bfloat16, enabled=config.precision == "bfloat16")
