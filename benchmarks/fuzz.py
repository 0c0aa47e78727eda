"""Fuzz the readers of segments and checkpoints: inputs load or are rejected, without crash, hang or memory growth.

    python -m benchmarks.fuzz --inputs 1000000

Valid segments and checkpoints are mutated at random. Half of them get matching checksums, so that the code behind the
checksum test is reached too. Input `i` is always the same. Each block of inputs appends a line to results/fuzz.jsonl;
the same command continues after the last line.
"""

import argparse
import hashlib
import json
import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import thread_time

import numpy as np
import torch

from manyview.data import ReplayBuffer, SegmentError
from manyview.data.segment_format import DIGEST_BYTES, Segment, pack_segment
from manyview.envs import View
from manyview.training import checkpoint
from manyview.training.checkpoint import (
    CHECKSUMS_FILE,
    MANIFEST_FILE,
    TENSORS_FILE,
    VALUES_FILE,
    CheckpointError,
    RunnerState,
)
from manyview.training.counters import Counters
from manyview.training.resume import convert_load_errors, list_changes, parse_segments

BLOCK = 50_000
STEPS = 6
RESULTS = Path(__file__).parents[1] / "results" / "fuzz.jsonl"
NUMBERS = [value % 2**64 for value in (0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, -(2**63), 2**16, 255)]
WORDS = (
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
    b"9" * 40,
    b"[[",
    b'{"',
    b"\\ud800",
    b"..",
    b"/",
)

Random = np.random.Generator


@dataclass
class Outcome:
    """Outcome of a block of inputs that starts at `first`."""

    first: int
    inputs: int = 0
    read: int = 0
    """Inputs that loaded; all others were rejected."""
    slowest_s: float = 0.0
    cpu_s: float = 0.0
    grown_mb: float = 0.0


class FuzzTargets:
    """Minimal segment and checkpoint to mutate."""

    def __init__(self) -> None:
        self.replay = ReplayBuffer(
            [View("a", 4, 4, 1, fill=(0,))], action_shape=(1,), capacity=2 * STEPS, frame_stack=1
        )
        frames = np.random.default_rng(0).integers(256, size=(STEPS, 1, 4, 4), dtype=np.uint8)
        self.segment, _ = pack_segment(0, np.zeros(STEPS, self.replay.steps.dtype), [frames])
        tree = {
            "counters": Counters().get_state(),
            "runner": RunnerState().to_plain(),
            "agent": {"weight": torch.ones(2, 3), "picture": np.zeros((2, 2), np.uint8)},
        }
        self.checkpoint = checkpoint.serialize_checkpoint(
            tree, {"format": 1, "versions": {}, "segments": [[0, STEPS, "0" * 64]]}
        )

    def make_reader(self, rng: Random) -> Callable[[], None]:
        """Mutate a segment or a checkpoint file and return a function that reads the result."""
        fits, name = (
            rng.random() < 0.5,
            (CHECKSUMS_FILE, TENSORS_FILE, VALUES_FILE, MANIFEST_FILE, "segment")[rng.integers(5)],
        )
        if name == "segment":
            body = mutate(self.segment[:-DIGEST_BYTES], rng)
            packed = body + (hashlib.sha256(body).digest() if fits else self.segment[-DIGEST_BYTES:])
            return lambda: self._read_segment(packed)
        contents = {**self.checkpoint, name: mutate(self.checkpoint[name], rng)}
        if fits and name != CHECKSUMS_FILE:
            contents[CHECKSUMS_FILE] = checkpoint.format_checksums(contents)
        return lambda: _read_checkpoint(contents)

    def _read_segment(self, packed: bytes) -> None:
        Segment(packed).unpack_into(self.replay.steps, self.replay.frames, oldest=0)


def _read_checkpoint(contents: dict[str, bytes]) -> None:
    loaded = checkpoint.deserialize_checkpoint(contents)
    with convert_load_errors():
        list_changes(loaded.manifest, {"versions": {}})
        parse_segments(loaded.manifest)
        RunnerState.from_plain(loaded.state["runner"])
        Counters().load_state(loaded.state["counters"])


def mutate(content: bytes, rng: Random) -> bytes:
    """Apply one to three changes: flip bits, replace numbers, drop, repeat or move parts, insert parser edge cases."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        if not changed:
            break
        start, length = int(rng.integers(len(changed))), int(rng.integers(1, 24))
        piece = slice(start, start + length)
        match rng.integers(8):
            case 0 | 1:
                changed[start] ^= 1 << int(rng.integers(8))
            case 2:
                changed[piece] = rng.bytes(length)
            case 3:
                changed[start : start + 8] = NUMBERS[rng.integers(len(NUMBERS))].to_bytes(8, "little")
            case 4:
                changed[start : start + int(rng.integers(8))] = WORDS[rng.integers(len(WORDS))]
            case 5:
                del changed[piece if rng.random() < 0.8 else slice(start, None)]
            case 6:
                changed[start:start] = changed[piece] * int(rng.integers(1, 40))
            case _:
                target = int(rng.integers(len(changed)))
                changed[target:target] = changed[piece]
    return bytes(changed)


def fuzz(first: int, inputs: int, *, max_cpu_s: float = float("inf")) -> Outcome:
    """Read `inputs` inputs, or as many as fit into `max_cpu_s` seconds.

    Raises AssertionError if a reader fails with anything but CheckpointError or SegmentError.
    """
    targets, outcome = FuzzTargets(), Outcome(first)
    for number in range(first, first + inputs):
        read = targets.make_reader(np.random.Generator(np.random.Philox(number)))
        start_s = thread_time()
        try:
            read()
            outcome.read += 1
        except (CheckpointError, SegmentError):
            pass
        except BaseException as error:
            raise AssertionError(f"input {number} breaks the reader") from error
        taken_s = thread_time() - start_s
        outcome.inputs += 1
        outcome.cpu_s += taken_s
        outcome.slowest_s = max(outcome.slowest_s, taken_s)
        if outcome.inputs == inputs // 10:
            peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if outcome.cpu_s > max_cpu_s:
            break
    if outcome.inputs > inputs // 10:
        outcome.grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb) / 1024
    return outcome


def run_blocks(inputs: int, path: Path) -> Iterator[Outcome]:
    """Run the blocks that are not in the file yet, append each to it, and yield it."""
    lines = path.read_text().splitlines() if path.exists() else []
    done = max((line["first"] + line["inputs"] for line in map(json.loads, lines)), default=0)
    for first in range(done, inputs, BLOCK):
        outcome = fuzz(first, min(BLOCK, inputs - first))
        with path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        yield outcome


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    for outcome in run_blocks(args.inputs, args.results):
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
