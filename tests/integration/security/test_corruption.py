"""A bad disk: bits flipped, files cut off, missing, or in each other's place. All of it is found and told."""

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

FLIPS, TRUNCATIONS = 1000, 200
FILES = ("SHA256SUMS", "manifest.json", "state.json", "state.safetensors", "first segment", "second segment")


def file_named(victim: CorruptedRun, name: str) -> Path:
    named = {"first segment": victim.segment_files[0], "second segment": victim.segment_files[1]}
    return named.get(name, victim.newest_checkpoint / name)


def found_out(victim: CorruptedRun) -> bool:
    """Whether the newest checkpoint is refused, with a reason, by whoever reads the files."""
    try:
        found = checkpoint.load_checkpoint(victim.newest_checkpoint)
        victim.trainer.replay.load_state(found.state["replay"])
        victim.open_log().load(parse_segments(found.manifest))
    except (CheckpointError, SegmentError) as error:
        return bool(str(error))
    return False


def missed(victim: CorruptedRun, count: int, harmed: Callable[[bytes, float], bytes]) -> int:
    """How many of at least `count` harms, spread over all files, are not found out."""
    assert not found_out(victim)
    missed = 0
    for path in (file_named(victim, name) for name in FILES):
        content = path.read_bytes()
        for place in np.linspace(0, 1, -(-count // len(FILES)), endpoint=False):
            path.write_bytes(harmed(content, place))
            missed += not found_out(victim)
        path.write_bytes(content)
    assert not found_out(victim)
    return missed


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
def test_every_flipped_bit_is_found(victim: CorruptedRun, figure: Figure) -> None:
    def flipped(content: bytes, place: float) -> bytes:
        byte, bit = divmod(int(place * 8 * len(content)), 8)
        return content[:byte] + bytes([content[byte] ^ 1 << bit]) + content[byte + 1 :]

    figure(missed(victim, FLIPS, flipped), "of 1,000 flipped bits missed")


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
def test_every_truncation_is_found(victim: CorruptedRun, figure: Figure) -> None:
    cut_off = missed(victim, TRUNCATIONS, lambda content, place: content[: int(place * len(content))])
    figure(cut_off, "of 200 truncations missed")


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def older_copy(victim: CorruptedRun, *names: str) -> None:
    for name in names:
        shutil.copy(victim.previous_checkpoint / name, victim.newest_checkpoint / name)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: dict[str, Callable[[CorruptedRun], object]] = {
    **{f"no {name}": lambda victim, name=name: file_named(victim, name).unlink() for name in FILES[:4]},  # type: ignore[misc]
    **{f"an older {name}": lambda victim, name=name: older_copy(victim, name) for name in FILES[:4]},  # type: ignore[misc]
    "all files of an older one": lambda victim: older_copy(victim, *FILES[:4]),
    "the second segment missing": lambda victim: victim.segment_files[1].unlink(),
    "the second segment cut off": lambda victim: victim.segment_files[1].write_bytes(
        victim.segment_files[1].read_bytes()[:-1]
    ),
    "the first segment as the second": lambda victim: shutil.copy(*victim.segment_files),
    "a folder in the place of a file": lambda victim: folder_instead(victim.newest_checkpoint / "state.json"),
}


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
@pytest.mark.parametrize("harm", HARMS)
def test_the_checkpoint_before_is_used_and_the_reason_is_told(victim: CorruptedRun, harm: str) -> None:
    damaged, older = victim.newest_checkpoint, victim.previous_checkpoint
    HARMS[harm](victim)
    resumed = victim.resume()
    assert resumed is not None
    assert resumed.checkpoint_dir == older
    (reason,) = resumed.rejected
    assert reason.startswith(f"checkpoint {damaged.name} is not used: ")
    assert not damaged.exists()  # it would be taken for one of the steps that come again
    assert not found_out(victim)


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
@pytest.mark.parametrize("harm", ["swapped segments", "swapped checkpoints"])
def test_where_nothing_is_left_this_is_said_and_nothing_removed(victim: CorruptedRun, harm: str) -> None:
    if harm == "swapped segments":
        swap(*victim.segment_files)
    else:
        swap(victim.newest_checkpoint, victim.previous_checkpoint)
    with pytest.raises(
        CheckpointError, match=r"000000045 is not used.*000000025 is not used.*Start again with --fresh"
    ):
        victim.resume()
    assert len(checkpoint.list_checkpoints(victim.run_dir.checkpoints_dir)) == len(victim.segment_files) == 2


def played(victim: CorruptedRun) -> bool:
    session = Runner(make_config(), victim.run_dir, accept_changes=True)
    try:
        return session.run()
    finally:
        session.close()


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
def test_a_run_goes_on_from_the_checkpoint_before_and_writes_down_why(victim: CorruptedRun) -> None:
    (victim.newest_checkpoint / "state.safetensors").write_bytes(b"")
    assert played(victim)
    told = [record for record in read_records(victim.run_dir.metrics_file) if record["kind"] in ("resume", "warning")]
    assert [(record["kind"], record["frames"]) for record in told[:2]] == [("resume", 25), ("warning", 25)]
    assert "000000045 is not used: state.safetensors is not the file that was written" in told[1]["text"]


@pytest.mark.attack("A damaged checkpoint is found out, the one before is used, and the reason is told")
@pytest.mark.quality("D3")
def test_an_older_checkpoint_that_is_damaged_later_does_not_end_a_run(victim: CorruptedRun) -> None:
    """The segments that it named are of no use any more."""
    (victim.previous_checkpoint / "manifest.json").write_bytes(b"{")
    assert played(victim)
    assert [path.name for path in checkpoint.list_checkpoints(victim.run_dir.checkpoints_dir)] == [
        "000000050",
        "000000045",
    ]
