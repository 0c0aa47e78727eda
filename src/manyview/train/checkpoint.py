"""A checkpoint: a folder of two files for a tree of tensors, arrays and plain values, a manifest, and their checksums.

    state.safetensors   the tensors and arrays
    state.json          the rest, and where in it they belong
    manifest.json       what it was made with, and which segments of the replay belong to it
    SHA256SUMS          of these three, as `sha256sum -c` reads it

Written beside and renamed when all of it is on the disk, so a folder with such a name is whole. Nothing that is read
can run code: JSON and safetensors hold values only.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save as save_arrays  # that of torch keeps a new type for ever for every new size
from safetensors.torch import load as load_tensors
from torch import Tensor

from manyview.data.durable import (
    flush_names,
    list_folder,
    make_folder,
    remove,
    rename,
    write_new,
)
from manyview.utils.files import UNFINISHED, read_bounded
from manyview.utils.json_io import MOST_BYTES, MOST_VALUES, as_json, parsed, value_count

TENSORS, VALUES, MANIFEST, SUMS = "state.safetensors", "state.json", "manifest.json", "SHA256SUMS"
FORMAT = 1
FILES = (TENSORS, VALUES, MANIFEST)
TENSOR, ARRAY = "tensor in " + TENSORS, "array in " + TENSORS
"""In the JSON, `{TENSOR: name}` stands where a tensor was."""
NAME = re.compile(r"([0-9]{9,18})(\.stop)?")
"""Frames; and whether it was made because somebody asked for a stop, perhaps before all was done that was due then."""
UNREADABLE, MAX_UNREADABLE = ".unreadable", 3
"""What the name of one that could not be used ends with, and how many of these are kept: the newest."""
MOST_TENSOR_BYTES = 4 * 2**30
"""Those of the paper's networks have a twentieth of it."""
MOST_HEADER_BYTES = 2**20
"""What safetensors says of its tensors, a hundred bytes each: ours are some hundreds, and each takes a kilobyte."""
MOST = {SUMS: 4096, TENSORS: MOST_TENSOR_BYTES, VALUES: MOST_BYTES, MANIFEST: MOST_BYTES}

Tree = dict[str, Any]


class CheckpointError(ValueError):
    """A folder that is no checkpoint of ours, or no longer: it says what is wrong."""


@dataclass(frozen=True)
class Checkpoint:
    tree: Tree
    manifest: Tree


def name_of(frames: int, *, stop: bool = False) -> str:
    return f"{frames:09d}{'.stop' if stop else ''}"


def save(folder: Path, tree: Tree, manifest: Tree) -> None:
    """Write a checkpoint as `folder`. One that is there is of the same moment and stays; a damaged one does not."""
    if folder.exists():
        with suppress(CheckpointError):
            load(folder)
            return
        set_aside(folder)
    contents = packed(tree, manifest)
    beside = folder.with_name(folder.name + UNFINISHED)
    remove(beside)
    try:
        make_folder(beside)
        for name, content in contents.items():
            write_new(beside / name, [content])
        flush_names(beside)
        rename(beside, folder)
    except OSError:
        remove(beside)  # a full disk needs the room
        raise


def packed(tree: Tree, manifest: Tree) -> dict[str, bytes]:
    """What is in each file."""
    arrays: dict[str, NDArray[Any]] = {}
    values = _without_tensors(tree, arrays, "")
    contents = {TENSORS: save_arrays(arrays), VALUES: as_json(values), MANIFEST: as_json(manifest)}
    _refuse_unreadable(contents)
    return {**contents, SUMS: sums_of(contents)}


def _refuse_unreadable(contents: Mapping[str, bytes]) -> None:
    """What `load` would not take must not look like a checkpoint: OSError, as if the disk were full."""
    sizes = {f"bytes of {name}": (len(content), MOST[name]) for name, content in contents.items()}
    sizes[f"bytes of the header of {TENSORS}"] = _header_bytes(contents[TENSORS]), MOST_HEADER_BYTES
    sizes |= {f"values of {name}": (value_count(contents[name]), MOST_VALUES) for name in (VALUES, MANIFEST)}
    for name, (size, most) in sizes.items():
        if size > most:
            raise OSError(
                f"a checkpoint would have {size:,} {name}, and no more than {most:,} are read: with very many "
                "environments lower rollout.envs"
            )


def _header_bytes(tensors: bytes) -> int:
    return int.from_bytes(tensors[:8], "little")


def sums_of(contents: Mapping[str, bytes]) -> bytes:
    """SHA256SUMS of these files."""
    return "".join(f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in FILES).encode()


def load(folder: Path) -> Checkpoint:
    """A checkpoint that is whole, with all tensors on the CPU; `CheckpointError` says why it is not."""
    if folder.is_symlink():
        raise CheckpointError("it is a link to somewhere else")
    contents = {name: _read(folder / name, most_bytes) for name, most_bytes in MOST.items()}
    return unpacked(contents)


def unpacked(contents: Mapping[str, bytes]) -> Checkpoint:
    """The checkpoint in these files, whoever made them; `CheckpointError` if they are none."""
    sums = _sums(contents[SUMS])
    for name in FILES:
        if hashlib.sha256(contents[name]).hexdigest() != sums[name]:
            raise CheckpointError(f"{name} is not the file that was written: its checksum differs")
    values, manifest = (_parsed(contents[name], name) for name in (VALUES, MANIFEST))
    if (header_bytes := _header_bytes(contents[TENSORS])) > MOST_HEADER_BYTES:
        raise CheckpointError(f"{TENSORS}: a header of {header_bytes:,} bytes, at most {MOST_HEADER_BYTES:,} expected")
    try:
        return Checkpoint(_with_tensors(values, load_tensors(contents[TENSORS])), manifest)
    except CheckpointError:
        raise
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{TENSORS}: {error}") from None


def every(parent: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    return _newest_first(parent)


def unreadable(parent: Path) -> list[Path]:
    """Return the checkpoints that were set aside, the newest first."""
    return _newest_first(parent, suffix=UNREADABLE)


def set_aside(folder: Path) -> None:
    """Give a checkpoint that cannot be used another name: a disk that fails today may be readable tomorrow."""
    if folder.is_symlink() or not folder.is_dir():
        remove(folder)
        return
    aside = folder.with_name(folder.name + UNREADABLE)
    remove(aside)
    rename(folder, aside)


def whole(parent: Path) -> Iterator[tuple[Path, Checkpoint | CheckpointError]]:
    """Every checkpoint, the newest first, each with what is in it or with why it cannot be used."""
    for folder in every(parent):
        try:
            yield folder, load(folder)
        except CheckpointError as error:
            yield folder, error


def newest(parent: Path) -> tuple[Path, Checkpoint]:
    """The newest one that is whole."""
    refused = []
    for folder, found in whole(parent):
        if isinstance(found, Checkpoint):
            return folder, found
        refused.append(f"{folder.name}: {found}")
    raise CheckpointError("; ".join(refused) or f"there is no checkpoint in {parent}")


def keep_newest(parent: Path, count: int, *, also: str | None = None) -> list[Path]:
    """Remove older ones but the one `also` named, and what was never finished; the kept ones."""
    found = every(parent)
    kept = [folder for place, folder in enumerate(found) if place < count or folder.name == also]
    old = [folder for folder in found if folder not in kept] + unreadable(parent)[MAX_UNREADABLE:]
    if old := [*old, *parent.glob("*" + UNFINISHED)]:
        for path in old:
            remove(path)
        flush_names(parent)  # or a power loss after the end brings them back for good
    return kept


def manifest_of(folder: Path) -> Tree:
    """Of a checkpoint of our own making, without a look at the rest."""
    return _parsed(_read(folder / MANIFEST, MOST_BYTES), MANIFEST)


def _newest_first(parent: Path, *, suffix: str = "") -> list[Path]:
    paths = [path for path in list_folder(parent) if path.name.endswith(suffix)]
    named = [(match, path) for path in paths if (match := NAME.fullmatch(path.name.removesuffix(suffix)))]
    return [path for _, path in sorted(named, key=lambda pair: _age(pair[0]), reverse=True)]


def _age(match: re.Match[str]) -> tuple[int, bool]:
    return int(match[1]), match[2] is None


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        return read_bounded(path, max_bytes=most_bytes)
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror or error}") from None


def _sums(content: bytes) -> dict[str, str]:
    """What SHA256SUMS says, in exactly the form in which we write it."""
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise CheckpointError(f"{SUMS} is damaged") from None
    found = [re.fullmatch(r"([0-9a-f]{64})  (.+)", line) for line in lines[:-1]]
    sums = {match[2]: match[1] for match in found if match}
    if lines[-1] or tuple(sums) != FILES or len(found) != len(FILES):
        raise CheckpointError(f"{SUMS} is damaged")
    return sums


def _parsed(content: bytes, name: str) -> Tree:
    try:
        return parsed(content)
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}") from None


def _without_tensors(tree: Any, arrays: dict[str, NDArray[Any]], path: str) -> Any:
    if isinstance(tree, Tensor):
        arrays[path] = tree.detach().cpu().contiguous().numpy()
        return {TENSOR: path}
    if isinstance(tree, np.ndarray):
        arrays[path] = np.ascontiguousarray(tree)
        return {ARRAY: path}
    if isinstance(tree, dict):
        return {key: _without_tensors(value, arrays, f"{path}/{key}".lstrip("/")) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_tensors(value, arrays, f"{path}/{place}") for place, value in enumerate(tree)]
    return tree.item() if isinstance(tree, np.generic) else tree


def _with_tensors(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() & {TENSOR, ARRAY}:
            return _tensor(tree, tensors)
        return {key: _with_tensors(value, tensors) for key, value in tree.items()}
    return [_with_tensors(value, tensors) for value in tree] if isinstance(tree, list) else tree


def _tensor(place: Tree, tensors: dict[str, Tensor]) -> Any:
    (kind, name), *more = place.items()
    found = tensors.get(name) if isinstance(name, str) and not more else None
    if found is None:
        raise CheckpointError(f"{VALUES} names a tensor that is not there")
    return found.numpy() if kind == ARRAY else found
