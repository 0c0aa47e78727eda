"""Hostile checkpoints are rejected, and the run resumes from the previous one."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest

from manyview.training import checkpoint
from manyview.training.resume import MachineChangedError
from quality.plugin import Figure
from tests.support.corrupted_run import CorruptedRun
from tests.support.hostile_checkpoints import ATTACKS, EXECUTED_FILE, edit_json, make_nested_object, set_value

MB = 2**20
TIMEOUT_S = 120
"""Wall time after which a call counts as hanging."""


def read_memory_bytes(field: str) -> int:
    """Return a field of this process's memory status, such as `VmRSS`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@contextmanager
def fail_if_hanging() -> Iterator[None]:
    """Raise an AssertionError in a call that takes longer than `TIMEOUT_S`."""

    def fail(*_: Any) -> None:
        raise AssertionError("it hangs")

    handler = signal.signal(signal.SIGALRM, fail)
    signal.alarm(TIMEOUT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def list_outside_files(run: Path) -> dict[str, tuple[int, int]]:
    """Return the sizes and modification times of the files outside the run."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in run.parent.rglob("*")
        if run not in path.parents and path != run
    }


@pytest.mark.attack(
    "A hostile checkpoint is refused in bounded time and memory, and nothing is executed or written outside"
)
@pytest.mark.quality("X1")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_checkpoint_is_refused_and_the_one_before_is_used(
    corrupted_run: CorruptedRun, attack: str, figure: Figure
) -> None:
    newest, previous = corrupted_run.newest_checkpoint, corrupted_run.previous_checkpoint
    ATTACKS[attack](corrupted_run)
    file_bytes = sum(
        path.stat().st_size for path in (*newest.iterdir(), *corrupted_run.segment_files) if path.is_file()
    )
    outside_files = list_outside_files(corrupted_run.run_dir.path)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, start_s = read_memory_bytes("VmRSS"), process_time()
    with fail_if_hanging():
        resume_info = corrupted_run.resume()
    figure(process_time() - start_s, "seconds")
    figure((read_memory_bytes("VmHWM") - before - file_bytes) / MB, "MB above the file")
    assert resume_info is not None
    assert resume_info.checkpoint_dir == previous
    assert len(resume_info.rejected) == 1
    assert resume_info.rejected[0].isprintable()
    assert not os.path.lexists(newest)
    assert not (corrupted_run.run_dir.path / EXECUTED_FILE).exists()
    assert list_outside_files(corrupted_run.run_dir.path) == outside_files


@pytest.mark.attack(
    "A hostile checkpoint is refused in bounded time and memory, and nothing is executed or written outside"
)
@pytest.mark.quality("X1")
@pytest.mark.parametrize(
    "versions", [dict.fromkeys(map(str, range(50_000)), 0), make_nested_object(200)], ids=["many", "deep"]
)
def test_oversized_versions_give_a_short_error(corrupted_run: CorruptedRun, versions: Any) -> None:
    """As with any change of versions, the user may accept them."""
    set_value(checkpoint.MANIFEST_FILE, "versions", versions)(corrupted_run)
    with fail_if_hanging(), pytest.raises(MachineChangedError) as error:
        corrupted_run.resume()
    assert len(str(error.value)) < 1000


def iter_paths(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all values in nested dictionaries."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield (*path, name)
            yield from iter_paths(value, (*path, name))


INVALID_VALUES: list[Any] = [None, "x", -1, 10**30, float("nan"), float("inf"), 0.5, True, [], {}, [[1]], {"": {}}]
NUM_SAMPLES = 120


@pytest.mark.quality("X1")
def test_an_invalid_value_anywhere_is_rejected_or_harmless(intact_run: CorruptedRun, tmp_path: Path) -> None:
    """A partly loaded checkpoint does not harm the load of the previous one."""
    tree = json.loads((intact_run.newest_checkpoint / checkpoint.VALUES_FILE).read_bytes())
    paths, rng = list(iter_paths(tree)), np.random.default_rng(0)
    accepted_changes = []
    for sample in range(NUM_SAMPLES):
        path, value = paths[rng.integers(len(paths))], INVALID_VALUES[rng.integers(len(INVALID_VALUES))]
        corrupted_run = intact_run.copy_to(tmp_path / str(sample))

        def change(tree: Any, path: tuple[str, ...] = path, value: Any = value) -> None:
            for name in path[:-1]:
                tree = tree[name]
            tree[path[-1]] = value

        edit_json(corrupted_run, checkpoint.VALUES_FILE, change)
        resume_info = corrupted_run.resume()
        assert resume_info is not None, path
        if not resume_info.rejected:
            accepted_changes.append((path, value))
        if not resume_info.rejected or sample % 10 == 0:
            for _ in range(3):
                corrupted_run.trainer.advance()
    assert len(accepted_changes) < NUM_SAMPLES / 4, accepted_changes
