"""Bad people: checkpoints that were made to do harm are refused, and the run goes on from the one before."""

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
HANGS_S = 120
"""In time of the wall: so long only waits for something that never comes."""


def memory_bytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


@contextmanager
def hang_refused() -> Iterator[None]:
    def hangs(*_: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outside(run: Path) -> dict[str, tuple[int, int]]:
    """Everything beside the run, as far as a change would show."""
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
    victim: CorruptedRun, attack: str, figure: Figure
) -> None:
    newest, older = victim.newest_checkpoint, victim.previous_checkpoint
    ATTACKS[attack](victim)
    files = sum(path.stat().st_size for path in (*newest.iterdir(), *victim.segment_files) if path.is_file())
    beside = outside(victim.run_dir.path)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began_s = memory_bytes("VmRSS"), process_time()
    with hang_refused():
        resumed = victim.resume()
    figure(process_time() - began_s, "seconds")
    figure((memory_bytes("VmHWM") - before - files) / MB, "MB above the file")
    assert resumed is not None
    assert resumed.checkpoint_dir == older
    assert len(resumed.rejected) == 1
    assert resumed.rejected[0].isprintable()
    assert not os.path.lexists(newest)
    assert not (victim.run_dir.path / EXECUTED_FILE).exists()
    assert outside(victim.run_dir.path) == beside


@pytest.mark.attack(
    "A hostile checkpoint is refused in bounded time and memory, and nothing is executed or written outside"
)
@pytest.mark.quality("X1")
@pytest.mark.parametrize(
    "versions", [dict.fromkeys(map(str, range(50_000)), 0), make_nested_object(200)], ids=["many", "deep"]
)
def test_versions_without_end_are_told_in_a_line(victim: CorruptedRun, versions: Any) -> None:
    """As with any other versions, the user decides."""
    set_value(checkpoint.MANIFEST_FILE, "versions", versions)(victim)
    with hang_refused(), pytest.raises(MachineChangedError) as refused:
        victim.resume()
    assert len(str(refused.value)) < 1000


def places(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield (*path, name)
            yield from places(value, (*path, name))


WRONG: list[Any] = [None, "x", -1, 10**30, float("nan"), float("inf"), 0.5, True, [], {}, [[1]], {"": {}}]
SAMPLES = 120


@pytest.mark.quality("X1")
def test_a_wrong_value_anywhere_is_refused_or_does_no_harm(whole: CorruptedRun, tmp_path: Path) -> None:
    """Also: a checkpoint that was taken half is no trap for the one before."""
    tree = json.loads((whole.newest_checkpoint / checkpoint.VALUES_FILE).read_bytes())
    every, rng = list(places(tree)), np.random.default_rng(0)
    accepted = []
    for sample in range(SAMPLES):
        path, value = every[rng.integers(len(every))], WRONG[rng.integers(len(WRONG))]
        victim = whole.copy_to(tmp_path / str(sample))

        def change(tree: Any, path: tuple[str, ...] = path, value: Any = value) -> None:
            for name in path[:-1]:
                tree = tree[name]
            tree[path[-1]] = value

        edit_json(victim, checkpoint.VALUES_FILE, change)
        resumed = victim.resume()
        assert resumed is not None, path
        if not resumed.rejected:
            accepted.append((path, value))
        if not resumed.rejected or sample % 10 == 0:
            for _ in range(3):
                victim.trainer.advance()
    assert len(accepted) < SAMPLES / 4, accepted
