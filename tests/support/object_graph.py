"""Collection of all values that an object references."""

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import count
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

VALUES = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    Enum,
    Path,
    np.generic,
    np.dtype,
    torch.dtype,
    torch.device,
)
WITHOUT_STATE = (ModuleType, FunctionType, MethodType, BuiltinFunctionType, type)


def collect_values(root: Any) -> dict[str, Any]:
    """Return all values that `root` references, by path.

    An object is traversed once, on the first path to it.
    """
    return dict(_walk(root, "", {}))


def _walk(value: Any, path: str, visited: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, VALUES):
        yield path, value
        return
    if isinstance(value, torch.Tensor):
        detached = value.detach()
        yield (
            path,
            (str(value.dtype), tuple(value.shape), detached.contiguous().view(-1).view(torch.uint8).numpy().tobytes()),
        )
        if value.grad is not None:
            yield f"{path}.grad", True  # gradients are cleared at the start of an update
    elif isinstance(value, np.ndarray):
        yield path, (str(value.dtype), value.shape, value.tobytes())
    elif isinstance(value, torch.Generator):
        yield path, value.get_state().numpy().tobytes()
    elif isinstance(value, np.random.Generator):
        yield path, repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield path, repr(value.get_state())
    elif isinstance(value, count):
        yield path, repr(value)
    elif not isinstance(value, WITHOUT_STATE) and id(value) not in visited:
        visited[id(value)] = value  # kept alive, so that its id is not reused
        for name, part in _iter_parts(value):
            yield from _walk(part, f"{path}{name}", visited)


def _iter_parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        # Keys that are objects, such as the parameters of an optimizer, are named by their index.
        for index, (key, part) in enumerate(value.items()):
            yield f"[{key!r}]" if isinstance(key, str | int | tuple) else f"[#{index}]", part
    elif isinstance(value, list | tuple | deque):
        yield "#", len(value)
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif isinstance(value, set | frozenset):
        yield "", repr(sorted(map(repr, value)))
    for name, part in getattr(value, "__dict__", {}).items():
        yield f".{name}", part
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                yield f".{name}", getattr(value, name)
