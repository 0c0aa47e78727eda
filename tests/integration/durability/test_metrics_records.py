"""The metrics file has one record per line, whatever threads do with it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from manyview.training.loggers import JsonLinesLogger

NUM_RECORDS = 3_000


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Switch threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_a_checkpoint_that_flushes_meanwhile_loses_no_record(tmp_path: Path) -> None:
    logger = JsonLinesLogger(tmp_path / "metrics.jsonl")
    stop_flags: list[bool] = []

    def flush() -> None:
        while not stop_flags:
            logger.flush()

    thread = Thread(target=flush)
    thread.start()
    expected = 0
    for number in range(NUM_RECORDS):
        logger.record({"number": number})
        expected += len(json.dumps({"number": number})) + 1
        assert logger.size == expected
    stop_flags.append(True)
    thread.join(60)
    logger.close()
    numbers = [json.loads(line)["number"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert numbers == list(range(NUM_RECORDS))
