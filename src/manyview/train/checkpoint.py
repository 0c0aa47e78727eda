"""A tree of tensors and plain values as a folder of two files: safetensors and JSON.

Written beside and renamed when whole, so that a folder with this name is a checkpoint.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

TENSORS, VALUES = "state.safetensors", "state.json"
TENSOR = "tensor in " + TENSORS
"""In the JSON, `{TENSOR: name}` stands where a tensor was."""


def save(folder: Path, tree: dict[str, Any]) -> None:
    """Write `tree` as `folder`, in the place of one of this name."""
    tensors: dict[str, Tensor] = {}
    values = _without_tensors(tree, tensors, "")
    beside = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    save_file(tensors, beside / TENSORS)
    (beside / VALUES).write_text(json.dumps(values, indent=1), encoding="utf-8")
    for name in (TENSORS, VALUES):
        with (beside / name).open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)


def load(folder: Path) -> dict[str, Any]:
    """The tree, with all tensors on the CPU."""
    values = json.loads((folder / VALUES).read_text(encoding="utf-8"))
    tree: dict[str, Any] = _with_tensors(values, load_file(folder / TENSORS))
    return tree


def newest(folder: Path) -> Path | None:
    """The checkpoint of the most frames in a folder of checkpoints."""
    found = _all(folder)
    return found[-1] if found else None


def keep_newest(folder: Path, count: int) -> None:
    for old in _all(folder)[:-count]:
        shutil.rmtree(old)


def _all(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("*") if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def _without_tensors(tree: Any, tensors: dict[str, Tensor], path: str) -> Any:
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach().cpu().contiguous()
        return {TENSOR: path}
    if isinstance(tree, dict):
        return {key: _without_tensors(value, tensors, f"{path}/{key}".lstrip("/")) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_tensors(value, tensors, f"{path}/{place}") for place, value in enumerate(tree)]
    return tree


def _with_tensors(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {TENSOR}:
            return tensors[tree[TENSOR]]
        return {key: _with_tensors(value, tensors) for key, value in tree.items()}
    return [_with_tensors(value, tensors) for value in tree] if isinstance(tree, list) else tree
