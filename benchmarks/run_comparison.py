"""Two runs compared to the bit: their checkpoints, what their replays hold, and their records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyview.data.segment_format import Segment
from manyview.data.segment_log import SEGMENT_NAME, SegmentRef
from manyview.report.metrics_file import read_records
from manyview.train import RunDir, checkpoint
from manyview.train.resume import parse_segments

PROCESS_KEYS = {"id", "started", "pid", "host", "commit"}
"""In a manifest."""
CLOCK_KEYS = ("elapsed_s", "metrics_bytes", "metrics_sha256")
"""In a session's state: records hold seconds."""


def compare_runs(one: RunDir, other: RunDir) -> list[str]:
    """What is not the same in two runs: their checkpoints, what their replays hold, and their records."""
    checkpoints = [checkpoint.list_checkpoints(run.checkpoints_dir) for run in (one, other)]
    names = [[path.name for path in found] for found in checkpoints]
    if names[0] != names[1]:
        return [f"checkpoints {names[0]} and {names[1]}"]
    found = [
        f"{mine.name}: {place}"
        for mine, theirs in zip(*checkpoints, strict=True)
        for place in compare_trees(load_comparable_state(mine), load_comparable_state(theirs))
    ]
    left, right = (read_replay(run, newest[0]) for run, newest in zip((one, other), checkpoints, strict=True))
    found += [f"replay: {place}" for place in compare_trees(left, right)]
    found += [
        f"record {place}"
        for place in compare_trees(list(_read_comparable_records(one)), list(_read_comparable_records(other)))
    ]
    return found + [f"{run.path}: {path}" for run in (one, other) for path in find_leftovers(run)]


def compare_trees(one: Any, other: Any, *, path: str = "") -> list[str]:
    """Where two trees of values are not the same to the bit."""
    if type(one) is not type(other):
        return [f"{path}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{path}: {sorted(map(str, one.keys() ^ other.keys()))}"]
        return [found for name in one for found in compare_trees(one[name], other[name], path=f"{path}/{name}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [f"{path}: {len(one)} and {len(other)} parts"]
        pairs = enumerate(zip(one, other, strict=True))
        return [found for place, pair in pairs for found in compare_trees(*pair, path=f"{path}/{place}")]
    if isinstance(one, torch.Tensor):
        one, other = one.detach().cpu().numpy(), other.detach().cpu().numpy()
    if isinstance(one, np.ndarray):
        alike = (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        return [] if alike else [f"{path}: other numbers"]
    return [] if one == other or (one != one and other != other) else [f"{path}: {one} and {other}"]


def find_leftovers(run: RunDir) -> list[str]:
    """Files that nothing needs and nobody would ever remove."""
    named = {
        entry.name for path in checkpoint.list_checkpoints(run.checkpoints_dir) for entry in _read_segment_refs(path)
    }
    segments = [
        path for path in run.replay_dir.glob("*") if SEGMENT_NAME.fullmatch(path.name) and path.name not in named
    ]
    return [str(path.relative_to(run.path)) for path in (*run.path.rglob("*.unfinished"), *segments)]


def load_comparable_state(folder: Path) -> dict[str, Any]:
    found = checkpoint.load_checkpoint(folder)
    session = {name: value for name, value in found.state["runner"].items() if name not in CLOCK_KEYS}
    manifest = {name: value for name, value in found.manifest.items() if name not in PROCESS_KEYS}
    return {"tree": {**found.state, "runner": session}, "manifest": manifest}


def _read_segment_refs(folder: Path) -> list[SegmentRef]:
    return parse_segments(checkpoint.read_checkpoint_manifest(folder))


def read_replay(run: RunDir, folder: Path) -> dict[str, Any]:
    """Every step that the replay of a checkpoint holds, in order, from its segments."""
    tree = checkpoint.load_checkpoint(folder).state
    if "replay" not in tree:  # on-policy
        return {}
    state = tree["replay"]
    of = state["layout"]
    record = np.dtype([(name, kind, tuple(shape)) for name, kind, *shape in of["step"]])
    entries = _read_segment_refs(folder)
    steps = np.zeros(entries[-1].end, record)
    frames = [np.zeros((len(steps), *shape), np.uint8) for shape in of["frames"].values()]
    for entry in entries:
        Segment((run.replay_dir / entry.name).read_bytes()).unpack_into(steps, frames, oldest=0)
    held = slice(max(0, state["inserted"] - of["capacity"]), None)
    return {
        "steps": {name: steps[name][held] for name in record.names or ()},
        "frames": [ring[held] for ring in frames],
    }


def _read_comparable_records(run: RunDir) -> Iterator[dict[str, Any]]:
    """Records but for those of a process, and for their seconds."""
    for record in read_records(run.metrics_file):
        if record["kind"] not in ("start", "resume"):
            yield {name: value for name, value in record.items() if name != "seconds"}
