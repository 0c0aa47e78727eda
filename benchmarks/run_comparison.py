"""Compare two runs bit for bit: checkpoints, replay contents and records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manyview.data.segment_format import Segment
from manyview.data.segment_log import SEGMENT_NAME, SegmentRef
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, checkpoint
from manyview.training.resume import parse_segments

PROCESS_KEYS = {"id", "started", "pid", "host", "commit"}
"""Manifest keys that differ between processes."""
CLOCK_KEYS = ("elapsed_s", "metrics_bytes", "metrics_sha256")
"""Runner state keys that depend on time: records contain seconds."""


def compare_runs(first: RunDir, second: RunDir) -> list[str]:
    """Return the differences of two runs in checkpoints, replay contents and records, and their leftover files."""
    checkpoints = [checkpoint.list_checkpoints(run.checkpoints_dir) for run in (first, second)]
    names = [[path.name for path in paths] for paths in checkpoints]
    if names[0] != names[1]:
        return [f"checkpoints {names[0]} and {names[1]}"]
    differences = [
        f"{mine.name}: {place}"
        for mine, theirs in zip(*checkpoints, strict=True)
        for place in compare_trees(load_comparable_state(mine), load_comparable_state(theirs))
    ]
    left, right = (read_replay(run, newest[0]) for run, newest in zip((first, second), checkpoints, strict=True))
    differences += [f"replay: {place}" for place in compare_trees(left, right)]
    differences += [
        f"record {place}"
        for place in compare_trees(list(_read_comparable_records(first)), list(_read_comparable_records(second)))
    ]
    return differences + [f"{run.path}: {path}" for run in (first, second) for path in find_leftovers(run)]


def compare_trees(first: Any, second: Any, *, path: str = "") -> list[str]:
    """Return the paths at which two trees of values differ in any bit."""
    if type(first) is not type(second):
        return [f"{path}: {type(first).__name__} and {type(second).__name__}"]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [f"{path}: {sorted(map(str, first.keys() ^ second.keys()))}"]
        return [diff for name in first for diff in compare_trees(first[name], second[name], path=f"{path}/{name}")]
    if isinstance(first, list | tuple):
        if len(first) != len(second):
            return [f"{path}: {len(first)} and {len(second)} parts"]
        pairs = enumerate(zip(first, second, strict=True))
        return [diff for index, pair in pairs for diff in compare_trees(*pair, path=f"{path}/{index}")]
    if isinstance(first, torch.Tensor):
        first, second = first.detach().cpu().numpy(), second.detach().cpu().numpy()
    if isinstance(first, np.ndarray):
        is_equal = (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
        return [] if is_equal else [f"{path}: other numbers"]
    return [] if first == second or (first != first and second != second) else [f"{path}: {first} and {second}"]


def find_leftovers(run: RunDir) -> list[str]:
    """Return the files that no checkpoint needs and no run removes."""
    named = {
        entry.name for path in checkpoint.list_checkpoints(run.checkpoints_dir) for entry in _read_segment_refs(path)
    }
    segments = [
        path for path in run.replay_dir.glob("*") if SEGMENT_NAME.fullmatch(path.name) and path.name not in named
    ]
    return [str(path.relative_to(run.path)) for path in (*run.path.rglob("*.unfinished"), *segments)]


def load_comparable_state(path: Path) -> dict[str, Any]:
    """Load a checkpoint without the values that depend on time or process."""
    loaded = checkpoint.load_checkpoint(path)
    runner = {name: value for name, value in loaded.state["runner"].items() if name not in CLOCK_KEYS}
    manifest = {name: value for name, value in loaded.manifest.items() if name not in PROCESS_KEYS}
    return {"tree": {**loaded.state, "runner": runner}, "manifest": manifest}


def _read_segment_refs(path: Path) -> list[SegmentRef]:
    return parse_segments(checkpoint.read_checkpoint_manifest(path))


def read_replay(run: RunDir, path: Path) -> dict[str, Any]:
    """Return the replay contents of a checkpoint in order, read from its segments; empty for on-policy runs."""
    tree = checkpoint.load_checkpoint(path).state
    if "replay" not in tree:  # on-policy
        return {}
    state = tree["replay"]
    layout = state["layout"]
    record = np.dtype([(name, kind, tuple(shape)) for name, kind, *shape in layout["step"]])
    refs = _read_segment_refs(path)
    steps = np.zeros(refs[-1].end, record)
    rings: list[NDArray[Any]] = [np.zeros((len(steps), *shape), np.uint8) for shape in layout["frames"].values()]
    if "features" in layout:
        rings.append(np.zeros((len(steps), *layout["features"]), np.float32))
    for ref in refs:
        Segment((run.replay_dir / ref.name).read_bytes()).unpack_into(steps, rings, oldest=0)
    stored = slice(max(0, state["inserted"] - layout["capacity"]), None)
    return {
        "steps": {name: steps[name][stored] for name in record.names or ()},
        "rings": [ring[stored] for ring in rings],
    }


def _read_comparable_records(run: RunDir) -> Iterator[dict[str, Any]]:
    """Yield the records without their seconds, except those of kind `start` and `resume`."""
    for record in read_records(run.metrics_file):
        if record["kind"] not in ("start", "resume"):
            yield {name: value for name, value in record.items() if name != "seconds"}
