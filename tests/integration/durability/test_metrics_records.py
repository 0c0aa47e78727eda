"""A record a line, however many threads have to do with the file."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from manyview.training.loggers import JsonLinesLogger

RECORDS = 3_000


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_a_checkpoint_that_flushes_meanwhile_loses_no_record(tmp_path: Path) -> None:
    lines = JsonLinesLogger(tmp_path / "metrics.jsonl")
    over: list[bool] = []

    def flush() -> None:
        while not over:
            lines.flush()

    thread = Thread(target=flush)
    thread.start()
    expected = 0
    for number in range(RECORDS):
        lines.record({"number": number})
        expected += len(json.dumps({"number": number})) + 1
        assert lines.size == expected
    over.append(True)
    thread.join(60)
    lines.close()
    told = [json.loads(line)["number"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert told == list(range(RECORDS))
