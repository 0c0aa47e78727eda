"""Checkpoints: directories with a state tree, a manifest and checksums.

    state.safetensors   tensors and arrays of the state
    state.json          all other values, with references to the tensors and arrays
    manifest.json       software and machine of the run, and the replay segments that belong to the checkpoint
    SHA256SUMS          checksums of these three, in the format of `sha256sum -c`

A checkpoint is written under a temporary name and renamed once all of it is on the disk, so a directory with a
checkpoint's name is complete. Loading cannot run code: JSON and safetensors hold values only.
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
from safetensors.numpy import save as save_arrays  # torch's version leaks a type for every new size
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
FORMAT = 3
"""Format of checkpoints; 3 since config.json holds agent, representation and bonus instead of `method`."""
FILES = (TENSORS_FILE, VALUES_FILE, MANIFEST_FILE)
TENSOR_KEY, ARRAY_KEY = "tensor in " + TENSORS_FILE, "array in " + TENSORS_FILE
"""Keys of references in the JSON: `{TENSOR_KEY: name}` stands for a tensor."""
NAME_PATTERN = re.compile(r"([0-9]{9,18})(\.stop)?")
"""Frames, and `.stop` if a stop request caused the checkpoint: jobs due at these frames may still be pending."""
UNREADABLE, MAX_UNREADABLE = ".unreadable", 3
"""Suffix of checkpoints that could not be used, and the number of them to keep (the newest)."""
MAX_TENSOR_BYTES = 4 * 2**30
"""Upper limit of `state.safetensors`; the paper's networks take a twentieth of it."""
MAX_HEADER_BYTES = 2**20
"""Upper limit of the safetensors header: 100 bytes for each of some hundred tensors.

Parsing takes about 1 kB of memory for each tensor.
"""
MAX_FILE_BYTES = {
    CHECKSUMS_FILE: 4096,
    TENSORS_FILE: MAX_TENSOR_BYTES,
    VALUES_FILE: MAX_JSON_BYTES,
    MANIFEST_FILE: MAX_JSON_BYTES,
}

StateTree = dict[str, Any]


class CheckpointError(ValueError):
    """The directory is not a valid checkpoint; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """State tree and manifest of a checkpoint."""

    state: StateTree
    manifest: StateTree


def format_checkpoint_name(frames: int, *, stop: bool = False) -> str:
    """Return the directory name of a checkpoint, such as `000120000` or `000120000.stop`."""
    return f"{frames:09d}{'.stop' if stop else ''}"


def save_checkpoint(directory: Path, state: StateTree, manifest: StateTree) -> None:
    """Write a checkpoint to `directory`.

    An existing checkpoint of this name is of the same moment, so it stays; a damaged one is moved aside first.
    Raises `OSError` if the disk is full or the checkpoint exceeds the limits of `load_checkpoint`.
    """
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
        remove(unfinished)  # free the space on a full disk
        raise


def serialize_checkpoint(state: StateTree, manifest: StateTree) -> dict[str, bytes]:
    """Return the contents of each file by name; `OSError` if they exceed the limits of loading."""
    arrays: dict[str, NDArray[Any]] = {}
    values = _extract_tensors(state, arrays, "")
    contents = {TENSORS_FILE: save_arrays(arrays), VALUES_FILE: dump_json(values), MANIFEST_FILE: dump_json(manifest)}
    _check_readable(contents)
    return {**contents, CHECKSUMS_FILE: format_checksums(contents)}


def _check_readable(contents: Mapping[str, bytes]) -> None:
    """Raise OSError, as a full disk does, for contents that `load_checkpoint` would reject."""
    sizes = {f"bytes of {name}": (len(content), MAX_FILE_BYTES[name]) for name, content in contents.items()}
    sizes[f"bytes of the header of {TENSORS_FILE}"] = _read_header_bytes(contents[TENSORS_FILE]), MAX_HEADER_BYTES
    sizes |= {
        f"values of {name}": (count_values(contents[name]), MAX_JSON_VALUES) for name in (VALUES_FILE, MANIFEST_FILE)
    }
    for name, (size, limit) in sizes.items():
        if size > limit:
            raise OSError(
                f"checkpoint is too large: expected at most {limit:,} {name}, got {size:,}. Lower rollout.envs if "
                "there are very many environments"
            )


def _read_header_bytes(tensors: bytes) -> int:
    return int.from_bytes(tensors[:8], "little")


def format_checksums(contents: Mapping[str, bytes]) -> bytes:
    """Return the content of SHA256SUMS for these files."""
    return "".join(f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in FILES).encode()


def load_checkpoint(directory: Path) -> Checkpoint:
    """Load and verify a checkpoint, all tensors on the CPU; `CheckpointError` if it is not valid."""
    if directory.is_symlink():
        raise CheckpointError("checkpoint is a symbolic link: expected a directory")
    contents = {name: _read_file(directory / name, max_bytes) for name, max_bytes in MAX_FILE_BYTES.items()}
    return deserialize_checkpoint(contents)


def deserialize_checkpoint(contents: Mapping[str, bytes]) -> Checkpoint:
    """Return the checkpoint in these untrusted file contents; `CheckpointError` if they are not valid."""
    sums = _parse_checksums(contents[CHECKSUMS_FILE])
    for name in FILES:
        if (digest := hashlib.sha256(contents[name]).hexdigest()) != sums[name]:
            raise CheckpointError(
                f"{name} is not the file that was written: expected SHA-256 {sums[name][:12]}, got {digest[:12]}"
            )
    values, manifest = (_parse_json(contents[name], name) for name in (VALUES_FILE, MANIFEST_FILE))
    if (header_bytes := _read_header_bytes(contents[TENSORS_FILE])) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{TENSORS_FILE}: header is too large: expected at most {MAX_HEADER_BYTES:,} bytes, got {header_bytes:,}"
        )
    try:
        return Checkpoint(_insert_tensors(values, load_tensors(contents[TENSORS_FILE])), manifest)
    except CheckpointError:
        raise
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{TENSORS_FILE}: {error}") from None


def list_checkpoints(parent: Path) -> list[Path]:
    """Return the checkpoints in a directory, newest first."""
    return _sort_newest_first(parent)


def list_unreadable(parent: Path) -> list[Path]:
    """Return the checkpoints that were moved aside, newest first."""
    return _sort_newest_first(parent, suffix=UNREADABLE)


def move_checkpoint_aside(directory: Path) -> None:
    """Rename a checkpoint that cannot be used: a disk that fails to read it now may recover later.

    Links and files are removed.
    """
    if directory.is_symlink() or not directory.is_dir():
        remove(directory)
        return
    new_path = directory.with_name(directory.name + UNREADABLE)
    remove(new_path)
    rename(directory, new_path)


def iter_checkpoints(parent: Path) -> Iterator[tuple[Path, Checkpoint | CheckpointError]]:
    """Yield every checkpoint, newest first, with its contents or the error of loading it."""
    for directory in list_checkpoints(parent):
        try:
            yield directory, load_checkpoint(directory)
        except CheckpointError as error:
            yield directory, error


def load_newest_checkpoint(parent: Path) -> tuple[Path, Checkpoint]:
    """Load the newest valid checkpoint; `CheckpointError` lists the rejected ones if there is none."""
    rejected = []
    for directory, checkpoint in iter_checkpoints(parent):
        if isinstance(checkpoint, Checkpoint):
            return directory, checkpoint
        rejected.append(f"{directory.name}: {checkpoint}")
    raise CheckpointError("; ".join(rejected) or f"no checkpoint in {parent}")


def prune_checkpoints(parent: Path, count: int, *, keep: str | None = None) -> list[Path]:
    """Remove unfinished checkpoints and all but the newest `count` and the one named `keep`; return the rest."""
    directories = list_checkpoints(parent)
    remaining = [directory for index, directory in enumerate(directories) if index < count or directory.name == keep]
    old = [directory for directory in directories if directory not in remaining]
    old += list_unreadable(parent)[MAX_UNREADABLE:]
    if old := [*old, *parent.glob("*" + TEMP_SUFFIX)]:
        for path in old:
            remove(path)
        fsync_directory(parent)  # otherwise a power loss after the end of the run restores them permanently
    return remaining


def read_checkpoint_manifest(directory: Path) -> StateTree:
    """Return the manifest of a trusted checkpoint; its other files and checksums are not read."""
    return _parse_json(_read_file(directory / MANIFEST_FILE, MAX_JSON_BYTES), MANIFEST_FILE)


def _sort_newest_first(parent: Path, *, suffix: str = "") -> list[Path]:
    paths = [path for path in list_directory(parent) if path.name.endswith(suffix)]
    matches = [(match, path) for path in paths if (match := NAME_PATTERN.fullmatch(path.name.removesuffix(suffix)))]
    return [path for _, path in sorted(matches, key=lambda pair: _get_sort_key(pair[0]), reverse=True)]


def _get_sort_key(match: re.Match[str]) -> tuple[int, bool]:
    return int(match[1]), match[2] is None


def _read_file(path: Path, max_bytes: int) -> bytes:
    try:
        return read_bounded(path, max_bytes=max_bytes)
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror or error}") from None


def _parse_checksums(content: bytes) -> dict[str, str]:
    """Return the checksums by file name; only the exact format of `format_checksums` is valid."""
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise CheckpointError(f"{CHECKSUMS_FILE} is damaged: expected ASCII text") from None
    matches = [re.fullmatch(r"([0-9a-f]{64})  (.+)", line) for line in lines[:-1]]
    sums = {match[2]: match[1] for match in matches if match}
    if lines[-1] or tuple(sums) != FILES or len(matches) != len(FILES):
        raise CheckpointError(f"{CHECKSUMS_FILE} is damaged: expected one checksum for each of {', '.join(FILES)}")
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
        return [_extract_tensors(value, arrays, f"{path}/{index}") for index, value in enumerate(tree)]
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
        raise CheckpointError(f"{VALUES_FILE} refers to a tensor that {TENSORS_FILE} does not have")
    return tensor.numpy() if kind == ARRAY_KEY else tensor


PERIODIC_JOBS = ("evaluation", "checkpoint")
"""Names of the jobs that a runner repeats."""


@dataclass(frozen=True, kw_only=True)
class RunnerState:
    """State of a `Runner` beside its trainer; the defaults belong to a new run."""

    elapsed_s: float = 0.0
    metrics_bytes: int = 0
    """Size of the records so far; a resumed run writes later records again."""
    metrics_sha256: str | None = None
    """SHA-256 of these bytes; None before the first record."""
    pending_jobs: tuple[str, ...] = PERIODIC_JOBS
    """Jobs to run before the next step."""
    last_good: str = ""
    """Name of the last scheduled checkpoint; one caused by a stop request does not count."""

    def to_plain(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Any) -> "RunnerState":
        """Return the state in a checkpoint; `ValueError` names the first invalid field."""
        if not isinstance(plain, dict) or plain.keys() != {field.name for field in fields(cls)}:
            names = ", ".join(field.name for field in fields(cls))
            raise ValueError(f"invalid runner state: expected exactly the fields {names}")
        valid: dict[str, Callable[[Any], bool]] = {
            "elapsed_s": lambda value: type(value) is float and 0 <= value < math.inf,
            "metrics_bytes": is_count,
            "metrics_sha256": lambda value: isinstance(value, str | None),
            "pending_jobs": lambda value: (
                isinstance(value, list)
                and len(value) <= len(PERIODIC_JOBS)
                and all(name in PERIODIC_JOBS for name in value)
            ),
            # Checked strictly: it becomes a path.
            "last_good": lambda value: isinstance(value, str) and (not value or bool(NAME_PATTERN.fullmatch(value))),
        }
        for name, is_valid in valid.items():
            if not is_valid(plain[name]):
                raise ValueError(f"invalid runner state: `{name}` is {sanitize_text(repr(plain[name]), max_chars=80)}")
        return cls(**{**plain, "pending_jobs": tuple(plain["pending_jobs"])})
