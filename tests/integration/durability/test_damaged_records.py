"""Records that somebody cut, removed or changed: said in a record, and no reason not to train on."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from manyview.report.metrics_file import read_records
from manyview.training import RunDir, run
from manyview.training.loggers import JsonLinesLogger
from manyview.training.runner import Runner
from tests.support.runners import abandon_runner, advance_to, make_quick_config, read_warnings

CONFIG = make_quick_config()
HOLDS = pytest.mark.attack("Records or a manifest that were cut, removed or changed are told of, and the run goes on")


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    """A run that was killed."""
    session = Runner(CONFIG, RunDir(tmp_path / "run"))
    advance_to(session, 45)
    abandon_runner(session)
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
    assert any(text.startswith(f"metrics.jsonl {says}") for text in read_warnings(folder)), read_warnings(folder)
    lines = folder.metrics_file.read_bytes().splitlines()
    assert sum(b'"resume"' in line for line in lines) == 1
    after = next(place for place, line in enumerate(lines) if b'"resume"' in line)
    assert all(json.loads(line)["kind"] for line in lines[after:]), "none is glued to what was cut"
    assert list(read_records(folder.metrics_file))[-1]["state"] == "finished"


@HOLDS
@pytest.mark.quality("D3")
@pytest.mark.parametrize(
    ("first", "later"),
    [
        (b'{"kind": "start"}\n', b'{"kind": "episode"}\n'),
        (b'{"kind": "start"}\n', b'{"kind": "ep'),
        (b'{"kind": "st', b""),
    ],
    ids=["lines", "partial line", "nothing later"],
)
def test_nothing_is_cut_off_from_a_file_that_is_not_the_checkpoints(tmp_path: Path, first: bytes, later: bytes) -> None:
    """Its later bytes may be records of another run, which nobody writes again."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(first + later)
    logger = JsonLinesLogger(path, keep_bytes=len(first), sha256=sha256(b"other records").hexdigest())
    assert logger.damage is not None
    logger.record({"kind": "resume"})
    logger.flush()
    content = path.read_bytes()
    assert content.startswith(first + later)
    assert content.removesuffix(b'{"kind": "resume"}\n').endswith(b"\n")
    assert (logger.size, logger.sha256) == (len(content), sha256(content).hexdigest())
    logger.close()


@pytest.mark.quality("D3")
def test_records_after_a_checkpoint_are_cut_off_if_the_others_are_whole(tmp_path: Path) -> None:
    path, first = tmp_path / "metrics.jsonl", b'{"kind": "start"}\n'
    path.write_bytes(first + b'{"kind": "episode"}\n')
    logger = JsonLinesLogger(path, keep_bytes=len(first), sha256=sha256(first).hexdigest())
    logger.close()
    assert (logger.damage, path.read_bytes()) == (None, first)


@pytest.mark.quality("D3")
def test_whole_records_are_not_warned_of(folder: RunDir) -> None:
    run(CONFIG, folder)
    assert read_warnings(folder) == []


@HOLDS
@pytest.mark.quality("D3")
def test_a_missing_manifest_is_rebuilt_from_the_checkpoint(folder: RunDir) -> None:
    before = folder.read_manifest()
    folder.manifest_file.unlink()
    run(CONFIG, folder)
    after = folder.read_manifest()
    assert after["id"] == before["id"]
    assert after["earlier"][0]["started"] == before["started"]
    assert "manifest.json was missing: rebuilt from checkpoint 000000040" in read_warnings(folder)
