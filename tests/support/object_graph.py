"""Every value that an object holds, directly or through others, by the path that leads to it."""

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


def values(root: Any) -> dict[str, Any]:
    """Objects that hold others are entered once, on the first path that leads to them."""
    return dict(_walk(root, "", {}))


def _walk(found: Any, path: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(found, VALUES):
        yield path, found
        return
    if isinstance(found, torch.Tensor):
        detached = found.detach()
        yield (
            path,
            (str(found.dtype), tuple(found.shape), detached.contiguous().view(-1).view(torch.uint8).numpy().tobytes()),
        )
        if found.grad is not None:
            yield f"{path}.grad", True  # an update begins without it
    elif isinstance(found, np.ndarray):
        yield path, (str(found.dtype), found.shape, found.tobytes())
    elif isinstance(found, torch.Generator):
        yield path, found.get_state().numpy().tobytes()
    elif isinstance(found, np.random.Generator):
        yield path, repr(found.bit_generator.state)
    elif isinstance(found, np.random.RandomState):
        yield path, repr(found.get_state())
    elif isinstance(found, count):
        yield path, repr(found)
    elif not isinstance(found, WITHOUT_STATE) and id(found) not in seen:
        seen[id(found)] = found  # and so it stays alive: its number is not given to another
        for name, part in _parts(found):
            yield from _walk(part, f"{path}{name}", seen)


def _parts(found: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(found, Mapping):
        # Keys that are objects, such as the parameters of an optimiser, are named by their place.
        for place, (key, part) in enumerate(found.items()):
            yield f"[{key!r}]" if isinstance(key, str | int | tuple) else f"[#{place}]", part
    elif isinstance(found, list | tuple | deque):
        yield "#", len(found)
        for place, part in enumerate(found):
            yield f"[{place}]", part
    elif isinstance(found, set | frozenset):
        yield "", repr(sorted(map(repr, found)))
    for name, part in getattr(found, "__dict__", {}).items():
        yield f".{name}", part
    for kind in type(found).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(found, name) and name not in ("__dict__", "__weakref__"):
                yield f".{name}", getattr(found, name)
