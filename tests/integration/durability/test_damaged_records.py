"""Records that somebody cut, removed or changed: said in a record, and no reason not to train on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from manyview.report.metrics_file import read_records
from manyview.train import RunDir, run
from manyview.train.runner import Runner
from tests.support.runners import abandon, advance_to, quick_run, warnings_of

CONFIG = quick_run()
HOLDS = pytest.mark.attack("Records or a manifest that were cut, removed or changed are told of, and the run goes on")


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    """A run that was killed."""
    session = Runner(CONFIG, RunDir(tmp_path / "run"))
    advance_to(session, 45)
    abandon(session)
    return session.run_dir


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut within a line": (lambda path: path.write_bytes(path.read_bytes()[:100]), "was cut off: expected at least"),
    "removed": (lambda path: path.unlink(), "was cut off: expected at least"),
    "a flipped bit": (lambda path: flip(path, 20), "was changed: its first"),
}


@HOLDS
@pytest.mark.quality("D3")
@pytest.mark.parametrize("harm", HARMS)
def test_damaged_records_are_told_of_and_the_next_ones_are_whole(folder: RunDir, harm: str) -> None:
    damage, says = HARMS[harm]
    damage(folder.metrics_file)
    run(CONFIG, folder)
    assert any(text.startswith(f"metrics.jsonl {says}") for text in warnings_of(folder)), warnings_of(folder)
    lines = folder.metrics_file.read_bytes().splitlines()
    assert sum(b'"resume"' in line for line in lines) == 1
    after = next(place for place, line in enumerate(lines) if b'"resume"' in line)
    assert all(json.loads(line)["kind"] for line in lines[after:]), "none is glued to what was cut"
    assert list(read_records(folder.metrics_file))[-1]["state"] == "finished"


@pytest.mark.quality("D3")
def test_whole_records_are_not_warned_of(folder: RunDir) -> None:
    run(CONFIG, folder)
    assert warnings_of(folder) == []


@HOLDS
@pytest.mark.quality("D3")
def test_a_missing_manifest_is_rebuilt_from_the_checkpoint(folder: RunDir) -> None:
    before = folder.read_manifest()
    folder.manifest_file.unlink()
    run(CONFIG, folder)
    after = folder.read_manifest()
    assert after["id"] == before["id"]
    assert after["earlier"][0]["started"] == before["started"]
    assert "manifest.json was missing: rebuilt from checkpoint 000000040" in warnings_of(folder)
