"""Flipped bits and truncated, missing or swapped files of a checkpoint are detected and reported."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from manyview.data import SegmentError
from manyview.report.metrics_file import read_records
from manyview.training import checkpoint
from manyview.training.checkpoint import CheckpointError
from manyview.training.resume import parse_segments
from manyview.training.runner import Runner
from quality.plugin import Figure
from tests.support.corrupted_run import CorruptedRun, make_config

NUM_FLIPS, NUM_TRUNCATIONS = 1000, 200
FILES = ("SHA256SUMS", "manifest.json", "state.json", "state.safetensors", "first segment", "second segment")


def find_file(corrupted_run: CorruptedRun, name: str) -> Path:
    """Return the path of one of `FILES`."""
    segments = {"first segment": corrupted_run.segment_files[0], "second segment": corrupted_run.segment_files[1]}
    return segments.get(name, corrupted_run.newest_checkpoint / name)


def is_corruption_detected(corrupted_run: CorruptedRun) -> bool:
    """Return whether loading the newest checkpoint raises an error with a reason."""
    try:
        loaded = checkpoint.load_checkpoint(corrupted_run.newest_checkpoint)
        corrupted_run.trainer.replay.load_state(loaded.state["replay"])
        corrupted_run.open_log().load(parse_segments(loaded.manifest))
    except (CheckpointError, SegmentError) as error:
        return bool(str(error))
    return False


def count_missed(corrupted_run: CorruptedRun, count: int, corrupt: Callable[[bytes, float], bytes]) -> int:
    """Return how many of at least `count` corruptions, spread over all files, are missed."""
    assert not is_corruption_detected(corrupted_run)
    num_missed = 0
    for path in (find_file(corrupted_run, name) for name in FILES):
        content = path.read_bytes()
        for position in np.linspace(0, 1, -(-count // len(FILES)), endpoint=False):
            path.write_bytes(corrupt(content, position))
            num_missed += not is_corruption_detected(corrupted_run)
        path.write_bytes(content)
    assert not is_corruption_detected(corrupted_run)
    return num_missed


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
def test_every_flipped_bit_is_found(corrupted_run: CorruptedRun, figure: Figure) -> None:
    def flip_bit(content: bytes, position: float) -> bytes:
        byte, bit = divmod(int(position * 8 * len(content)), 8)
        return content[:byte] + bytes([content[byte] ^ 1 << bit]) + content[byte + 1 :]

    figure(count_missed(corrupted_run, NUM_FLIPS, flip_bit), "of 1,000 flipped bits missed")


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
def test_every_truncation_is_found(corrupted_run: CorruptedRun, figure: Figure) -> None:
    num_missed = count_missed(
        corrupted_run, NUM_TRUNCATIONS, lambda content, position: content[: int(position * len(content))]
    )
    figure(num_missed, "of 200 truncations missed")


def swap_files(first: Path, second: Path) -> None:
    temporary = first.with_name("aside")
    first.rename(temporary)
    second.rename(first)
    temporary.rename(second)


def copy_previous(corrupted_run: CorruptedRun, *names: str) -> None:
    """Replace files of the newest checkpoint by those of the previous one."""
    for name in names:
        shutil.copy(corrupted_run.previous_checkpoint / name, corrupted_run.newest_checkpoint / name)


def replace_with_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


CORRUPTIONS: dict[str, Callable[[CorruptedRun], object]] = {
    **{f"no {name}": lambda run, name=name: find_file(run, name).unlink() for name in FILES[:4]},  # type: ignore[misc]
    **{f"an older {name}": lambda run, name=name: copy_previous(run, name) for name in FILES[:4]},  # type: ignore[misc]
    "all files of an older one": lambda run: copy_previous(run, *FILES[:4]),
    "the second segment missing": lambda run: run.segment_files[1].unlink(),
    "the second segment cut off": lambda run: run.segment_files[1].write_bytes(run.segment_files[1].read_bytes()[:-1]),
    "the first segment as the second": lambda run: shutil.copy(*run.segment_files),
    "a folder in the place of a file": lambda run: replace_with_directory(run.newest_checkpoint / "state.json"),
}


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_the_previous_checkpoint_is_used_and_the_reason_is_reported(
    corrupted_run: CorruptedRun, corruption: str
) -> None:
    newest, previous = corrupted_run.newest_checkpoint, corrupted_run.previous_checkpoint
    CORRUPTIONS[corruption](corrupted_run)
    resume_info = corrupted_run.resume()
    assert resume_info is not None
    assert resume_info.checkpoint_dir == previous
    (reason,) = resume_info.rejected
    assert reason.startswith(f"checkpoint {newest.name} is not used: ")
    assert not newest.exists()  # it would be mistaken for the checkpoint of the repeated steps
    assert not is_corruption_detected(corrupted_run)


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
@pytest.mark.parametrize("corruption", ["swapped segments", "swapped checkpoints"])
def test_without_a_valid_checkpoint_an_error_is_raised_and_nothing_removed(
    corrupted_run: CorruptedRun, corruption: str
) -> None:
    if corruption == "swapped segments":
        swap_files(*corrupted_run.segment_files)
    else:
        swap_files(corrupted_run.newest_checkpoint, corrupted_run.previous_checkpoint)
    with pytest.raises(
        CheckpointError, match=r"000000045 is not used.*000000025 is not used.*Start again with --fresh"
    ):
        corrupted_run.resume()
    assert (
        len(checkpoint.list_checkpoints(corrupted_run.run_dir.checkpoints_dir)) == len(corrupted_run.segment_files) == 2
    )


def resume_run(corrupted_run: CorruptedRun) -> bool:
    """Resume the run and return whether it finished."""
    runner = Runner(make_config(), corrupted_run.run_dir, accept_changes=True)
    try:
        return runner.run()
    finally:
        runner.close()


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
def test_a_run_resumes_from_the_previous_checkpoint_and_records_the_reason(corrupted_run: CorruptedRun) -> None:
    (corrupted_run.newest_checkpoint / "state.safetensors").write_bytes(b"")
    assert resume_run(corrupted_run)
    records = [
        record for record in read_records(corrupted_run.run_dir.metrics_file) if record["kind"] in ("resume", "warning")
    ]
    assert [(record["kind"], record["frames"]) for record in records[:2]] == [("resume", 25), ("warning", 25)]
    assert "000000045 is not used: state.safetensors is not the file that was written" in records[1]["text"]


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
def test_an_older_checkpoint_that_is_damaged_later_does_not_end_a_run(corrupted_run: CorruptedRun) -> None:
    """No other checkpoint needs the segments that it names."""
    (corrupted_run.previous_checkpoint / "manifest.json").write_bytes(b"{")
    assert resume_run(corrupted_run)
    assert [path.name for path in checkpoint.list_checkpoints(corrupted_run.run_dir.checkpoints_dir)] == [
        "000000050",
        "000000045",
    ]
