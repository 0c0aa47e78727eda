"""Fuzzed files, as many as fit into the gate; `python -m benchmarks.fuzz` reads a million."""

import json
from pathlib import Path

import pytest

from benchmarks.fuzz import fuzz, run_blocks
from quality.plugin import Figure

NUM_INPUTS, MAX_CPU_S = 100_000, 35.0


@pytest.mark.slow
@pytest.mark.quality("X3")
def test_no_input_crashes_hangs_or_fills_the_memory(figure: Figure) -> None:
    outcome = fuzz(0, NUM_INPUTS, max_cpu_s=MAX_CPU_S)
    figure(outcome.inputs, "inputs")
    figure(outcome.slowest_s, "seconds")
    figure(outcome.grown_mb, "MB grown")
    assert 0 < outcome.read < outcome.inputs / 2  # most inputs are rejected, some are still valid


def test_fuzzing_continues_after_the_last_block(tmp_path: Path) -> None:
    path = tmp_path / "fuzz.jsonl"
    for inputs in (200, 300):
        list(run_blocks(inputs, path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["first"], line["inputs"]) for line in lines] == [(0, 200), (200, 100)]
