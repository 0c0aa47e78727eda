"""Traces of a run: content, bit-exact replay, damage, and full or hanging disks."""

import errno
import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyview.runtime import PolicyRunner, RunnerSummary, TraceError, read_trace, replay_trace
from manyview.runtime import trace as trace_module
from manyview.runtime.trace import MAX_PENDING, Tick, TraceWriter, decode_array, encode_array, get_frames_dir
from tests.support.virtual_clock import FakeCamera, FakePolicy, FakeSpec, FakeVector, VirtualClock

SPEC = FakeSpec(vectors=(FakeVector("joints", 2),))


def record_trace(
    path: Path,
    *,
    seconds: float = 1.0,
    front: dict[str, float] | None = None,
    policy: FakePolicy | None = None,
    **options: Any,
) -> tuple[RunnerSummary, list[Any]]:
    """Run on a virtual clock with a trace and return the summary and the actions."""
    clock, rng, sent = VirtualClock(), np.random.default_rng(0), list[Any]()
    with PolicyRunner(
        policy or FakePolicy(SPEC),
        **{
            "cameras": {"front": FakeCamera(clock, front, size=12), "wrist": FakeCamera(clock)},
            "vectors": {"joints": lambda: rng.normal(size=2)},
            "send_action": sent.append,
            "safe_action": np.zeros(3),
            "trace": path,
            "store_frames": True,
            "clock": clock,
            **options,
        },
    ) as runner:
        summary = runner.run(seconds)
    return summary, sent


def list_frames(segment: Path) -> list[str]:
    with np.load(segment) as frames:
        return list(frames.files)


def test_a_trace_has_every_tick_with_its_ages_masks_and_actions(tmp_path: Path) -> None:
    summary, sent = record_trace(tmp_path / "run.jsonl", front={"die": 0.4})
    start, *ticks, end = read_trace(tmp_path / "run.jsonl")
    assert start["on_stale"] == "mask"
    assert [view["name"] for view in start["views"]] == ["front", "wrist"]
    assert [tick["tick"] for tick in ticks] == list(range(50))
    for tick, action in zip(ticks, sent, strict=False):
        decoded = decode_array(tick["sent"])
        assert decoded is not None
        assert decoded.tobytes() == action.tobytes()
        assert not tick["deadline_missed"]
        assert set(tick["ages_s"]) == {"front", "wrist"}
        assert set(tick["frames"]) | set(tick["masked"]) == {"front", "wrist"}
    assert ticks[-1]["masked"] == {"front": "stale"}
    assert ticks[-1]["errors"] == {"front": "OSError: unplugged"}
    assert end["reason"] == "finished"
    assert end["safe_action_sent"] is True
    assert end["dropped_records"] == summary.dropped_records == 0


def test_the_trace_shows_that_no_stale_frame_was_acted_on(tmp_path: Path) -> None:
    for fault in ("die", "freeze", "lag"):
        record_trace(tmp_path / "run.jsonl", front={fault: 0.4}, seconds=2.0)
        ticks = read_trace(tmp_path / "run.jsonl")[1:-1]
        for tick in ticks:
            assert all(0 <= tick["ages_s"][name] <= 0.2 for name in tick["frames"])
        first_s = next(tick["time_s"] for tick in ticks if "front" in tick["masked"])
        assert first_s - ticks[0]["time_s"] <= 0.4 + 0.2 + 0.02
        assert all("front" in tick["masked"] for tick in ticks if tick["time_s"] >= first_s)


@pytest.mark.parametrize("fault", [{}, {"die": 0.4}, {"lag": 0.3}])
@pytest.mark.parametrize("segment_bytes", [2000, 2**24])
def test_a_replay_gives_the_same_actions_bit_for_bit(
    tmp_path: Path, fault: dict[str, float], segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "SEGMENT_BYTES", segment_bytes)
    _, sent = record_trace(tmp_path / "run.jsonl", front=fault, seconds=2.0)
    assert len(list(get_frames_dir(tmp_path / "run.jsonl").iterdir())) == 1 or segment_bytes == 2000
    replay = replay_trace(FakePolicy(SPEC), tmp_path / "run.jsonl")
    assert not replay.mismatches
    assert [action.tobytes() for action in replay.replayed] == [action.tobytes() for action in sent[:-1]]
    assert len(replay.ticks) == 100


def test_a_replay_repeats_actions_that_were_discarded_as_late(tmp_path: Path) -> None:
    clock = VirtualClock()
    policy = FakePolicy(SPEC, on_act=lambda count: clock.sleep(0.3) if count == 11 else None)
    cameras = {"front": FakeCamera(clock), "wrist": FakeCamera(clock)}
    summary, _ = record_trace(tmp_path / "run.jsonl", policy=policy, clock=clock, cameras=cameras)
    assert summary.held_ticks == 1
    assert not replay_trace(FakePolicy(SPEC), tmp_path / "run.jsonl").mismatches


def test_a_replay_starts_with_a_reset(tmp_path: Path) -> None:
    policy = FakePolicy(SPEC)
    record_trace(tmp_path / "run.jsonl", policy=policy)  # the policy keeps its last observation
    assert not replay_trace(policy, tmp_path / "run.jsonl").mismatches


def test_a_replay_detects_another_policy(tmp_path: Path) -> None:
    class ChangedPolicy(FakePolicy):
        def act(self, observation: Any) -> Any:
            action = super().act(observation)
            return np.nextafter(action, 2, dtype=np.float32) if self.num_acts == 8 else action

    record_trace(tmp_path / "run.jsonl")
    assert replay_trace(ChangedPolicy(SPEC), tmp_path / "run.jsonl").mismatches == [7]


def test_a_static_camera_is_stored_once_and_replayed_over_many_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "SEGMENT_BYTES", 1000)
    record_trace(tmp_path / "run.jsonl", front={"freeze": 0.0}, max_frozen_s=math.inf, seconds=2.0)
    segments = sorted(get_frames_dir(tmp_path / "run.jsonl").iterdir())
    assert len(segments) > 5
    names = [name for path in segments for name in list_frames(path)]
    assert sum(name.startswith("front/") for name in names) == 1
    assert not replay_trace(FakePolicy(SPEC), tmp_path / "run.jsonl").mismatches


def test_a_new_trace_replaces_the_frames_of_an_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "SEGMENT_BYTES", 1000)
    record_trace(tmp_path / "run.jsonl", seconds=2.0)
    num_old_segments = len(list(get_frames_dir(tmp_path / "run.jsonl").iterdir()))
    record_trace(tmp_path / "run.jsonl", seconds=0.2, front={"lag": 0.0})
    assert len(list(get_frames_dir(tmp_path / "run.jsonl").iterdir())) < num_old_segments
    assert not replay_trace(FakePolicy(SPEC), tmp_path / "run.jsonl").mismatches


def test_damage_of_a_trace_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record_trace(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10] + lines[11:]))
    with pytest.raises(TraceError, match="expected tick 9, got 10"):
        replay_trace(FakePolicy(SPEC), path)
    path.write_bytes(b"".join(lines[:-3] + lines[-1:]))
    with pytest.raises(TraceError, match="expected 50 ticks, as its end says, got 48"):
        replay_trace(FakePolicy(SPEC), path)
    path.write_bytes(b"".join(lines[:10]) + b"{broken\n" + b"".join(lines[10:]))
    with pytest.raises(TraceError, match="line 11: expected a record"):
        replay_trace(FakePolicy(SPEC), path)
    path.write_bytes(b"".join(lines[:10]) + lines[10][:20])  # killed during a write
    assert len(replay_trace(FakePolicy(SPEC), path).ticks) == 9
    path.write_bytes(b"[]\n")
    with pytest.raises(TraceError, match="line 1"):
        read_trace(path)
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="starts with a record"):
        read_trace(path)
    path.write_bytes(b"".join(lines))
    (segment,) = get_frames_dir(path).iterdir()
    frames = dict(np.load(segment))
    frames["front/0"] = frames["front/0"] ^ 1
    np.savez(segment, **frames)
    with pytest.raises(TraceError, match="damaged frame front/0"):
        replay_trace(FakePolicy(SPEC), path)
    segment.write_bytes(segment.read_bytes()[:100])
    with pytest.raises(TraceError, match="damaged segment"):
        replay_trace(FakePolicy(SPEC), path)
    segment.unlink()
    with pytest.raises(TraceError, match="missing frame front/0"):
        replay_trace(FakePolicy(SPEC), path)


def test_a_full_disk_drops_records_and_no_ticks() -> None:
    summary, sent = record_trace(Path("/dev/full"), store_frames=False)
    assert (summary.reason, summary.ticks, len(sent)) == ("finished", 50, 51)
    assert summary.dropped_records == 52  # start, ticks and end
    assert summary.trace_error is not None
    assert "No space left" in summary.trace_error


class FlakyFile:
    """File that writes only some bytes, and may raise, at the calls in `partial_sizes`."""

    def __init__(self, file: Any, partial_sizes: dict[int, int]) -> None:
        self._file, self._partial_sizes, self.calls = file, partial_sizes, 0

    def write(self, line: bytes) -> int:
        self.calls += 1
        if self.calls in self._partial_sizes:
            self._file.write(line[: self._partial_sizes[self.calls]])
            if self.calls % 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self._partial_sizes[self.calls]
        return int(self._file.write(line))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_disk_that_is_full_for_a_while_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    writer = TraceWriter(path)
    monkeypatch.setattr(writer, "_file", FlakyFile(writer._file, {5: 3, 6: 10, 8: 0}))
    for number in range(12):
        writer.put(Tick(number, float(number)))
    assert writer.close(5.0)
    numbers = [json.loads(line)["tick"] for line in path.read_text().splitlines()]
    assert numbers == [0, 1, 2, 3, 6, 8, 9, 10, 11]
    assert writer.num_dropped == 3


def test_a_hanging_disk_drops_records_and_close_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    write_line = TraceWriter._write_line

    def hang(self: TraceWriter, line: bytes) -> None:
        release.wait(30)
        write_line(self, line)

    monkeypatch.setattr(TraceWriter, "_write_line", hang)
    start_s = time.monotonic()
    summary, sent = record_trace(tmp_path / "run.jsonl", seconds=20.0, close_timeout_s=0.2, store_frames=False)
    assert time.monotonic() - start_s < 10
    assert (summary.reason, summary.ticks, len(sent)) == ("finished", 1000, 1001)
    assert summary.dropped_records >= 1000 - MAX_PENDING - 2
    release.set()


def test_frames_that_cannot_be_stored_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    summary, _ = record_trace(tmp_path / "run.jsonl")
    assert summary.reason == "finished"
    assert summary.trace_error is not None
    assert summary.lost_frames > 50


def test_a_trace_that_cannot_be_opened_is_an_error_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no_directory"):
        record_trace(tmp_path / "no_directory" / "run.jsonl")


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.1, math.nan, math.inf, -0.0], np.float32),
        np.array(3),
        np.array(math.nan),
        np.array([1e-45, 3.4e38], np.float32),
    ],
)
def test_arrays_stay_exact(array: Any) -> None:
    decoded = decode_array(json.loads(json.dumps(encode_array(array), allow_nan=False)))
    assert decoded is not None
    assert decoded.dtype == array.dtype
    assert decoded.tobytes() == array.tobytes()
