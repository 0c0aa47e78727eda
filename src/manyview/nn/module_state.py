"""Complete state of a module: parameters, buffers, Adam moments and random generators."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Kind = TypeVar("Kind")

ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")
"""Adam's state of one parameter."""


def get_module_state(module: nn.Module) -> dict[str, Any]:
    """Return the state as a tree of copied tensors; submodules referenced twice occur once."""
    return {
        "tensors": {name: tensor.detach().clone() for name, tensor in _iter_tensors(module)},
        "optimizers": {
            name: {
                str(index): {key: torch.as_tensor(value).clone() for key, value in moments.items()}
                for index, moments in optimizer.state_dict()["state"].items()
            }
            for name, optimizer in _iter_attributes(module, Optimizer)
        },
        "generators": {name: generator.get_state() for name, generator in _iter_attributes(module, torch.Generator)},
    }


@torch.no_grad()
def load_module_state(module: nn.Module, state: dict[str, Any]) -> None:
    """Restore a state of `get_module_state`.

    Raises ValueError if names, shapes or dtypes differ from those of `module`, or a value is not finite.
    """
    tensors, optimizers = dict(_iter_tensors(module)), dict(_iter_attributes(module, Optimizer))
    generators = dict(_iter_attributes(module, torch.Generator))
    for kind, expected in (("tensors", tensors), ("optimizers", optimizers), ("generators", generators)):
        if expected.keys() != state[kind].keys():
            missing, unexpected = expected.keys() - state[kind].keys(), state[kind].keys() - expected.keys()
            raise ValueError(
                f"state does not fit this module: {kind}: missing {sorted(missing)[:5]}, "
                f"unexpected {sorted(unexpected)[:5]}"
            )
    for name, tensor in tensors.items():
        tensor.copy_(_validate_tensor(state["tensors"][name], tensor, name))
    for name, optimizer in optimizers.items():
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments = {
            int(index): {key: _match_layout(parameters[int(index)], saved[key], name) for key in ADAM_STATE}
            for index, saved in state["optimizers"][name].items()
        }
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    for name, generator in generators.items():
        generator.set_state(_validate_generator_state(state["generators"][name]))


def find_differences(first: Any, second: Any, path: str = "") -> list[str]:
    """Return the paths at which two trees of values differ in any bit."""
    if isinstance(first, list) and isinstance(second, list):
        first, second = dict(enumerate(first)), dict(enumerate(second))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        pairs = {name: (first.get(name), second.get(name)) for name in (*first, *second)}
        return [place for name, pair in pairs.items() for place in find_differences(*pair, f"{path}/{name}")]
    first, second = (_get_bits(value) if hasattr(value, "dtype") else value for value in (first, second))
    return [] if first == second else [path]


def _get_bits(array: Any) -> tuple[str, Any, bytes]:
    """Return dtype, shape and content of a tensor or array."""
    return str(array.dtype), array.shape, torch.as_tensor(array).cpu().numpy().tobytes()


def _iter_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def _iter_attributes(module: nn.Module, kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    """Yield path and value of attributes of type `kind` of a module and its submodules."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, kind):
                yield f"{path}.{name}".lstrip("."), value


def _match_layout(parameter: Tensor, value: Tensor, name: str) -> Tensor:
    """Return an Adam moment in the memory format of its parameter, as fused Adam requires."""
    if value.dim() == 0:  # the step count
        return _validate_tensor(value, torch.zeros(()), name)
    return torch.empty_like(parameter).copy_(_validate_tensor(value, parameter, name))


def _validate_tensor(value: Tensor, expected: Tensor, name: str) -> Tensor:
    """Return `value` after checks: `copy_` would broadcast and round it silently."""
    if (value.shape, value.dtype) != (expected.shape, expected.dtype):
        got, required = ([*tensor.shape, str(tensor.dtype)] for tensor in (value, expected))
        raise ValueError(f"state does not fit this module: {name}: expected {required}, got {got}")
    if value.is_floating_point() and not value.isfinite().all():
        raise ValueError(f"invalid state: {name}: expected finite values, got NaN or infinity")
    return value


def _validate_generator_state(state: Tensor) -> Tensor:
    """Return `state` if a CPU generator can have it.

    PyTorch reads out of bounds if the two position counters of its Mersenne Twister disagree.
    """
    left, _, position, _ = state[8:24].clone().view(torch.int32).tolist()
    if left + position != 625 and (left, position) != (1, 0):  # of 624 numbers; (1, 0) before the first draw
        raise ValueError(
            f"invalid generator state: expected positions that sum to 625, or (1, 0), got {(left, position)}"
        )
    return state
