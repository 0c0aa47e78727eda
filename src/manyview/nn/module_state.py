"""The whole state of an agent: its tensors, the moments of its optimisers, its generators."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Kind = TypeVar("Kind")

ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
"""What Adam keeps of a parameter."""


def get_module_state(module: nn.Module) -> dict[str, Any]:
    """A tree of tensors that nothing shares memory with; parts that are referred to twice occur once."""
    return {
        "tensors": {name: tensor.detach().clone() for name, tensor in _iter_tensors(module)},
        "optimizers": {
            name: {
                str(place): {key: torch.as_tensor(value).clone() for key, value in moments.items()}
                for place, moments in optimizer.state_dict()["state"].items()
            }
            for name, optimizer in _iter_attributes(module, Optimizer)
        },
        "generators": {name: generator.get_state() for name, generator in _iter_attributes(module, torch.Generator)},
    }


@torch.no_grad()
def load_module_state(module: nn.Module, state: dict[str, Any]) -> None:
    """Go on from a state of a module of the same build; anything missing or left over is an error."""
    tensors, optimizers = dict(_iter_tensors(module)), dict(_iter_attributes(module, Optimizer))
    generators = dict(_iter_attributes(module, torch.Generator))
    for kind, expected in (("tensors", tensors), ("optimizers", optimizers), ("generators", generators)):
        if expected.keys() != state[kind].keys():
            different = ", ".join(sorted(expected.keys() ^ state[kind].keys())[:5])
            raise ValueError(f"the state is of another build: its {kind} differ in {different}")
    for name, tensor in tensors.items():
        tensor.copy_(_validate_tensor(state["tensors"][name], tensor, name))
    for name, optimizer in optimizers.items():
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments = {
            int(place): {key: _match_layout(parameters[int(place)], saved[key], name) for key in ADAM_STATE}
            for place, saved in state["optimizers"][name].items()
        }
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    for name, generator in generators.items():
        generator.set_state(_validate_generator_state(state["generators"][name]))


def _iter_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def _iter_attributes(module: nn.Module, kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    """What parts of a module keep as plain attributes."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, kind):
                yield f"{path}.{name}".lstrip("."), value


def _match_layout(parameter: Tensor, value: Tensor, name: str) -> Tensor:
    """Fused Adam walks through memory: moments must lie in it as their parameter does, channels last or not."""
    if value.dim() == 0:  # how many steps it has made
        return _validate_tensor(value, torch.zeros(()), name)
    return torch.empty_like(parameter).copy_(_validate_tensor(value, parameter, name))


def _validate_tensor(value: Tensor, expected: Tensor, name: str) -> Tensor:
    """The value, which must be of this shape and type: copying would stretch and round it without a word."""
    if (value.shape, value.dtype) != (expected.shape, expected.dtype):
        got, required = ([*tensor.shape, str(tensor.dtype)] for tensor in (value, expected))
        raise ValueError(f"the state is of another build: {name} is {got}, expected {required}")
    if value.is_floating_point() and not value.isfinite().all():
        raise ValueError(f"{name} is not finite")
    return value


def _validate_generator_state(state: Tensor) -> Tensor:
    """A state that a generator on the CPU can be in. PyTorch reads past its memory where these two do not agree."""
    left, _, after, _ = state[8:24].clone().view(torch.int32).tolist()
    if left + after != 625 and (left, after) != (1, 0):  # of 624 numbers; and before the first is drawn
        raise ValueError("the state of a random generator makes no sense")
    return state
