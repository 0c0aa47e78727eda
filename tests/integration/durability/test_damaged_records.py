"""Damaged metrics files and manifests are reported in a record, and the run resumes."""

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
DAMAGED_RECORDS = pytest.mark.attack(
    "Records or a manifest that were cut, removed or changed are told of, and the run goes on"
)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Return the run directory of a killed run."""
    runner = Runner(CONFIG, RunDir(tmp_path / "run"))
    advance_to(runner, 45)
    abandon_runner(runner)
    return runner.run_dir


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


CORRUPTIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut within a line": (lambda path: path.write_bytes(path.read_bytes()[:100]), "was cut off: expected at least"),
    "removed": (lambda path: path.unlink(), "was cut off: expected at least"),
    "a flipped bit": (lambda path: flip_bit(path, 20), "was changed: its first"),
}


@DAMAGED_RECORDS
@pytest.mark.quality("D3")
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_damaged_records_are_reported_and_later_ones_are_complete(run_dir: RunDir, corruption: str) -> None:
    corrupt, message = CORRUPTIONS[corruption]
    corrupt(run_dir.metrics_file)
    run(CONFIG, run_dir)
    assert any(text.startswith(f"metrics.jsonl {message}") for text in read_warnings(run_dir)), read_warnings(run_dir)
    lines = run_dir.metrics_file.read_bytes().splitlines()
    assert sum(b'"resume"' in line for line in lines) == 1
    resume_line = next(number for number, line in enumerate(lines) if b'"resume"' in line)
    assert all(json.loads(line)["kind"] for line in lines[resume_line:]), "none is glued to what was cut"
    assert list(read_records(run_dir.metrics_file))[-1]["state"] == "finished"


@DAMAGED_RECORDS
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
def test_a_metrics_file_that_differs_from_the_checkpoint_is_not_truncated(
    tmp_path: Path, first: bytes, later: bytes
) -> None:
    """Its later bytes may be records of another run, which no resume writes again."""
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
def test_intact_records_give_no_warning(run_dir: RunDir) -> None:
    run(CONFIG, run_dir)
    assert read_warnings(run_dir) == []


@DAMAGED_RECORDS
@pytest.mark.quality("D3")
def test_a_missing_manifest_is_rebuilt_from_the_checkpoint(run_dir: RunDir) -> None:
    before = run_dir.read_manifest()
    run_dir.manifest_file.unlink()
    run(CONFIG, run_dir)
    after = run_dir.read_manifest()
    assert after["id"] == before["id"]
    assert after["earlier"][0]["started"] == before["started"]
    assert "manifest.json was missing: rebuilt from checkpoint 000000040" in read_warnings(run_dir)
