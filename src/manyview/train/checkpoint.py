"""A checkpoint: a folder of two files for a tree of tensors, arrays and plain values, a manifest, and their checksums.

    state.safetensors   the tensors and arrays
    state.json          the rest, and where in it they belong
    manifest.json       what it was made with, and which segments of the replay belong to it
    SHA256SUMS          of these three, as `sha256sum -c` reads it

Written beside and renamed when all of it is on the disk, so a folder with such a name is whole. Nothing that is read
can run code: JSON and safetensors hold values only.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save as save_arrays  # that of torch keeps a new type for ever for every new size
from safetensors.torch import load as load_tensors
from torch import Tensor

from manyview.utils.atomic_io import fsync_directory, list_directory, make_directory, remove, rename, write_new_file
from manyview.utils.files import TEMP_SUFFIX, read_bounded
from manyview.utils.json_io import MAX_JSON_BYTES, MAX_JSON_VALUES, count_values, dump_json, is_count, parse_json
from manyview.utils.text import sanitize_text

TENSORS_FILE, VALUES_FILE, MANIFEST_FILE, CHECKSUMS_FILE = (
    "state.safetensors",
    "state.json",
    "manifest.json",
    "SHA256SUMS",
)
FORMAT = 2
FILES = (TENSORS_FILE, VALUES_FILE, MANIFEST_FILE)
TENSOR_KEY, ARRAY_KEY = "tensor in " + TENSORS_FILE, "array in " + TENSORS_FILE
"""In the JSON, `{TENSOR_KEY: name}` stands where a tensor was."""
NAME_PATTERN = re.compile(r"([0-9]{9,18})(\.stop)?")
"""Frames; and whether it was made because somebody asked for a stop, perhaps before all was done that was due then."""
UNREADABLE, MAX_UNREADABLE = ".unreadable", 3
"""What the name of one that could not be used ends with, and how many of these are kept: the newest."""
MAX_TENSOR_BYTES = 4 * 2**30
"""Those of the paper's networks have a twentieth of it."""
MAX_HEADER_BYTES = 2**20
"""What safetensors says of its tensors, a hundred bytes each: ours are some hundreds, and each takes a kilobyte."""
MAX_FILE_BYTES = {
    CHECKSUMS_FILE: 4096,
    TENSORS_FILE: MAX_TENSOR_BYTES,
    VALUES_FILE: MAX_JSON_BYTES,
    MANIFEST_FILE: MAX_JSON_BYTES,
}

StateTree = dict[str, Any]


class CheckpointError(ValueError):
    """A folder that is no checkpoint of ours, or no longer: it says what is wrong."""


@dataclass(frozen=True)
class Checkpoint:
    state: StateTree
    manifest: StateTree


def format_checkpoint_name(frames: int, *, stop: bool = False) -> str:
    return f"{frames:09d}{'.stop' if stop else ''}"


def save_checkpoint(directory: Path, state: StateTree, manifest: StateTree) -> None:
    """Write a checkpoint as `folder`. One that is there is of the same moment and stays; a damaged one does not."""
    if directory.exists():
        with suppress(CheckpointError):
            load_checkpoint(directory)
            return
        move_checkpoint_aside(directory)
    contents = serialize_checkpoint(state, manifest)
    unfinished = directory.with_name(directory.name + TEMP_SUFFIX)
    remove(unfinished)
    try:
        make_directory(unfinished)
        for name, content in contents.items():
            write_new_file(unfinished / name, [content])
        fsync_directory(unfinished)
        rename(unfinished, directory)
    except OSError:
        remove(unfinished)  # a full disk needs the room
        raise


def serialize_checkpoint(state: StateTree, manifest: StateTree) -> dict[str, bytes]:
    """What is in each file."""
    arrays: dict[str, NDArray[Any]] = {}
    values = _extract_tensors(state, arrays, "")
    contents = {TENSORS_FILE: save_arrays(arrays), VALUES_FILE: dump_json(values), MANIFEST_FILE: dump_json(manifest)}
    _check_readable(contents)
    return {**contents, CHECKSUMS_FILE: format_checksums(contents)}


def _check_readable(contents: Mapping[str, bytes]) -> None:
    """What `load` would not take must not look like a checkpoint: OSError, as if the disk were full."""
    sizes = {f"bytes of {name}": (len(content), MAX_FILE_BYTES[name]) for name, content in contents.items()}
    sizes[f"bytes of the header of {TENSORS_FILE}"] = _read_header_bytes(contents[TENSORS_FILE]), MAX_HEADER_BYTES
    sizes |= {
        f"values of {name}": (count_values(contents[name]), MAX_JSON_VALUES) for name in (VALUES_FILE, MANIFEST_FILE)
    }
    for name, (size, limit) in sizes.items():
        if size > limit:
            raise OSError(
                f"a checkpoint would have {size:,} {name}, and no more than {limit:,} are read: with very many "
                "environments lower rollout.envs"
            )


def _read_header_bytes(tensors: bytes) -> int:
    return int.from_bytes(tensors[:8], "little")


def format_checksums(contents: Mapping[str, bytes]) -> bytes:
    """SHA256SUMS of these files."""
    return "".join(f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in FILES).encode()


def load_checkpoint(directory: Path) -> Checkpoint:
    """A checkpoint that is whole, with all tensors on the CPU; `CheckpointError` says why it is not."""
    if directory.is_symlink():
        raise CheckpointError("it is a link to somewhere else")
    contents = {name: _read_file(directory / name, max_bytes) for name, max_bytes in MAX_FILE_BYTES.items()}
    return deserialize_checkpoint(contents)


def deserialize_checkpoint(contents: Mapping[str, bytes]) -> Checkpoint:
    """The checkpoint in these files, whoever made them; `CheckpointError` if they are none."""
    sums = _parse_checksums(contents[CHECKSUMS_FILE])
    for name in FILES:
        if hashlib.sha256(contents[name]).hexdigest() != sums[name]:
            raise CheckpointError(f"{name} is not the file that was written: its checksum differs")
    values, manifest = (_parse_json(contents[name], name) for name in (VALUES_FILE, MANIFEST_FILE))
    if (header_bytes := _read_header_bytes(contents[TENSORS_FILE])) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{TENSORS_FILE}: a header of {header_bytes:,} bytes, at most {MAX_HEADER_BYTES:,} expected"
        )
    try:
        return Checkpoint(_insert_tensors(values, load_tensors(contents[TENSORS_FILE])), manifest)
    except CheckpointError:
        raise
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{TENSORS_FILE}: {error}") from None


def list_checkpoints(parent: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    return _sort_newest_first(parent)


def list_unreadable(parent: Path) -> list[Path]:
    """Return the checkpoints that were set aside, the newest first."""
    return _sort_newest_first(parent, suffix=UNREADABLE)


def move_checkpoint_aside(folder: Path) -> None:
    """Give a checkpoint that cannot be used another name: a disk that fails today may be readable tomorrow."""
    if folder.is_symlink() or not folder.is_dir():
        remove(folder)
        return
    aside = folder.with_name(folder.name + UNREADABLE)
    remove(aside)
    rename(folder, aside)


def iter_checkpoints(parent: Path) -> Iterator[tuple[Path, Checkpoint | CheckpointError]]:
    """Every checkpoint, the newest first, each with what is in it or with why it cannot be used."""
    for directory in list_checkpoints(parent):
        try:
            yield directory, load_checkpoint(directory)
        except CheckpointError as error:
            yield directory, error


def load_newest_checkpoint(parent: Path) -> tuple[Path, Checkpoint]:
    """The newest one that is whole."""
    rejected = []
    for directory, checkpoint in iter_checkpoints(parent):
        if isinstance(checkpoint, Checkpoint):
            return directory, checkpoint
        rejected.append(f"{directory.name}: {checkpoint}")
    raise CheckpointError("; ".join(rejected) or f"there is no checkpoint in {parent}")


def prune_checkpoints(parent: Path, count: int, *, keep: str | None = None) -> list[Path]:
    """Remove older ones but the one `also` named, and what was never finished; the kept ones."""
    directories = list_checkpoints(parent)
    kept = [directory for index, directory in enumerate(directories) if index < count or directory.name == keep]
    old = [folder for folder in directories if folder not in kept] + list_unreadable(parent)[MAX_UNREADABLE:]
    if old := [*old, *parent.glob("*" + TEMP_SUFFIX)]:
        for path in old:
            remove(path)
        fsync_directory(parent)  # or a power loss after the end brings them back for good
    return kept


def read_checkpoint_manifest(directory: Path) -> StateTree:
    """Of a checkpoint of our own making, without a look at the rest."""
    return _parse_json(_read_file(directory / MANIFEST_FILE, MAX_JSON_BYTES), MANIFEST_FILE)


def _sort_newest_first(parent: Path, *, suffix: str = "") -> list[Path]:
    paths = [path for path in list_directory(parent) if path.name.endswith(suffix)]
    named = [(match, path) for path in paths if (match := NAME_PATTERN.fullmatch(path.name.removesuffix(suffix)))]
    return [path for _, path in sorted(named, key=lambda pair: _get_sort_key(pair[0]), reverse=True)]


def _get_sort_key(match: re.Match[str]) -> tuple[int, bool]:
    return int(match[1]), match[2] is None


def _read_file(path: Path, max_bytes: int) -> bytes:
    try:
        return read_bounded(path, max_bytes=max_bytes)
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror or error}") from None


def _parse_checksums(content: bytes) -> dict[str, str]:
    """What SHA256SUMS says, in exactly the form in which we write it."""
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise CheckpointError(f"{CHECKSUMS_FILE} is damaged") from None
    matches = [re.fullmatch(r"([0-9a-f]{64})  (.+)", line) for line in lines[:-1]]
    sums = {match[2]: match[1] for match in matches if match}
    if lines[-1] or tuple(sums) != FILES or len(matches) != len(FILES):
        raise CheckpointError(f"{CHECKSUMS_FILE} is damaged")
    return sums


def _parse_json(content: bytes, name: str) -> StateTree:
    try:
        return parse_json(content)
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}") from None


def _extract_tensors(tree: Any, arrays: dict[str, NDArray[Any]], path: str) -> Any:
    if isinstance(tree, Tensor):
        arrays[path] = tree.detach().cpu().contiguous().numpy()
        return {TENSOR_KEY: path}
    if isinstance(tree, np.ndarray):
        arrays[path] = np.ascontiguousarray(tree)
        return {ARRAY_KEY: path}
    if isinstance(tree, dict):
        return {key: _extract_tensors(value, arrays, f"{path}/{key}".lstrip("/")) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_extract_tensors(value, arrays, f"{path}/{place}") for place, value in enumerate(tree)]
    return tree.item() if isinstance(tree, np.generic) else tree


def _insert_tensors(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() & {TENSOR_KEY, ARRAY_KEY}:
            return _lookup_tensor(tree, tensors)
        return {key: _insert_tensors(value, tensors) for key, value in tree.items()}
    return [_insert_tensors(value, tensors) for value in tree] if isinstance(tree, list) else tree


def _lookup_tensor(reference: StateTree, tensors: dict[str, Tensor]) -> Any:
    (kind, name), *more = reference.items()
    tensor = tensors.get(name) if isinstance(name, str) and not more else None
    if tensor is None:
        raise CheckpointError(f"{VALUES_FILE} names a tensor that is not there")
    return tensor.numpy() if kind == ARRAY_KEY else tensor


PERIODIC_JOBS = ("evaluation", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class RunnerState:
    """State of a `Runner` beside its trainer; the defaults belong to a new run."""

    elapsed_s: float = 0.0
    metrics_bytes: int = 0
    """Size of the records so far. Records behind it are written again."""
    metrics_sha256: str | None = None
    """Checksum of these bytes; None before the first record."""
    pending_jobs: tuple[str, ...] = PERIODIC_JOBS
    """Jobs to run before the next step."""
    last_good: str = ""
    """The last scheduled checkpoint; one made because of a stop does not count."""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Any) -> "RunnerState":
        """Return the state in a checkpoint; `ValueError` names the first field that is invalid."""
        if not isinstance(plain, dict) or plain.keys() != {field.name for field in fields(cls)}:
            raise ValueError("invalid runner state: expected its fields, got others")
        valid: dict[str, Callable[[Any], bool]] = {
            "elapsed_s": lambda value: type(value) is float and 0 <= value < math.inf,
            "metrics_bytes": is_count,
            "metrics_sha256": lambda value: isinstance(value, str | None),
            "pending_jobs": lambda value: (
                isinstance(value, list)
                and len(value) <= len(PERIODIC_JOBS)
                and all(name in PERIODIC_JOBS for name in value)
            ),
            # It becomes a path.
            "last_good": lambda value: isinstance(value, str) and (not value or bool(NAME_PATTERN.fullmatch(value))),
        }
        for name, is_valid in valid.items():
            if not is_valid(plain[name]):
                raise ValueError(f"invalid runner state: `{name}` is {sanitize_text(repr(plain[name]), max_chars=80)}")
        return cls(**{**plain, "pending_jobs": tuple(plain["pending_jobs"])})
