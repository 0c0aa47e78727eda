"""Experiment trackers: their files contain the values of the metrics file."""

import json
import os
import struct
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from manyview.config.overrides import to_plain
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, run
from manyview.training.trackers import RunLabels, ServiceLogger, TrackioLogger, build_service_loggers
from tests.support.runs import make_short_config

LABELS = {"project": "robots", "entity": "lab", "group": "pick", "tags": ["night", "two cameras"]}


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Run directory that does not exist yet."""
    return RunDir(tmp_path / "run")


def list_expected_values(run_dir: RunDir, kind: str, name: str) -> list[tuple[int, Any]]:
    """Return frames and value of a metric from all records of a kind."""
    records = [record for record in read_records(run_dir.metrics_file) if record["kind"] == kind]
    return [(record["frames"], pytest.approx(record[name], rel=1e-5)) for record in records if name in record]


def iter_log(content: bytes) -> Iterator[bytes]:
    """Yield the entries of a file in LevelDB's log format.

    Its blocks of 32 KiB contain parts of entries with a header of 7 bytes.
    """
    position, entry = 7, b""  # after the header of the file
    while position + 7 <= len(content):
        if 0 < (remaining := -position % 2**15) < 7:  # no header fits into the rest of a block
            position += remaining
            continue
        size, kind = struct.unpack_from("<HB", content, position + 4)
        entry += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole entry, or the last part of one
            yield entry
            entry = b""


def read_wandb(run_dir: RunDir) -> tuple[Any, list[dict[str, Any]], list[Any]]:
    """Return run, history and metric definitions from the file of an offline run."""
    from wandb.proto import wandb_internal_pb2

    (file,) = run_dir.path.glob("wandb/offline-run-*/*.wandb")
    run_record, history, metrics = None, [], []
    for data in iter_log(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        match record.WhichOneof("record_type"):
            case "run":
                run_record = record.run
            case "history":
                items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                history.append(items)
            case "metric":
                metrics.append(record.metric)
    return run_record, history, metrics


def test_weights_and_biases_gets_labels_metrics_by_frames_and_videos(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("imageio")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = make_short_config(logging={"wandb": True, **LABELS}, evaluation={"video": True})
    assert run(config, run_dir)
    run_record, history, metrics = read_wandb(run_dir)
    assert (run_record.project, run_record.entity, run_record.run_group) == ("robots", "lab", "pick")
    assert list(run_record.tags) == LABELS["tags"]
    assert run_record.run_id == run_dir.read_manifest()["id"]
    assert {(metric.glob_name, metric.step_metric) for metric in metrics} >= {("*", "frames")}
    for kind, name in (("evaluation", "return"), ("train", "critic_loss"), ("episode", "length")):
        values = [(row["frames"], row[f"{kind}/{name}"]) for row in history if f"{kind}/{name}" in row]
        assert values == list_expected_values(run_dir, kind, name)
    videos = [row["frames"] for row in history if "evaluation/video" in row]
    assert videos == [int(path.stem) for path in sorted(run_dir.videos_dir.glob("*.mp4"))] != []


def test_trackio_gets_labels_metrics_by_frames_and_videos(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(run_dir.path.with_name("trackio")))  # read when it is imported
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    config = make_short_config(logging={"trackio": True, **LABELS}, evaluation={"video": True})
    assert run(config, run_dir)
    (name,) = SQLiteStorage.get_runs("robots")
    assert name.endswith(f"-run-{run_dir.read_manifest()['id']}")
    assert "/" not in name
    rows = SQLiteStorage.get_logs("robots", name)
    for kind, metric in (("evaluation", "return"), ("train", "critic_loss"), ("episode", "length")):
        values = [(row["step"], row[f"{kind}/{metric}"]) for row in rows if f"{kind}/{metric}" in row]
        assert sorted(values) == list_expected_values(run_dir, kind, metric)
    videos = [row["step"] for row in rows if "evaluation/video" in row]
    assert videos == [int(path.stem) for path in sorted(run_dir.videos_dir.glob("*.mp4"))] != []
    settings = SQLiteStorage.get_run_config("robots", name)
    assert settings["_Group"] == "pick"
    assert settings["tags"] == LABELS["tags"]


def test_tensorboard_has_every_metric_at_its_frames(run_dir: RunDir) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run(make_short_config(logging={"tensorboard": True}), run_dir)
    events = EventAccumulator(str(run_dir.tensorboard_dir), size_guidance={"scalars": 0})
    events.Reload()
    tags = set(events.Tags()["scalars"])
    expected = {
        f"{record['kind']}/{name}"
        for record in read_records(run_dir.metrics_file)
        for name, value in record.items()
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))  # None was NaN
    }
    assert tags == expected
    for kind, name in (("train", "critic_loss"), ("episode", "length"), ("evaluation", "return")):
        values = [(event.step, event.value) for event in events.Scalars(f"{kind}/{name}")]
        assert values == list_expected_values(run_dir, kind, name)


class FakeServiceLogger(ServiceLogger):
    """Service logger that keeps the values it sends."""

    def open_service(self) -> None:
        self.sent_values: list[tuple[int, dict[str, Any]]] = []

    def send(self, values: dict[str, Any], frames: int) -> None:
        self.sent_values.append((frames, values))

    def make_video(self, path: Path) -> Any:
        return SimpleNamespace(name=path.name)

    def finish(self) -> None:
        self.is_finished = True


def test_a_video_is_sent_once_at_its_own_frames_and_not_again_after_a_resume(run_dir: RunDir) -> None:
    run_dir.videos_dir.mkdir(parents=True)
    (run_dir.videos_dir / "000000010.mp4").touch()
    service = FakeServiceLogger(run_dir, RunLabels("a", "b"), {})
    for frames in (20, 30):
        service.record({"kind": "evaluation", "frames": frames, "return": 1.0})
        (run_dir.videos_dir / f"{frames:09d}.mp4").touch()  # after the record, as a run writes it
        service.record({"kind": "episode", "frames": frames + 1})
        service.record({"kind": "train", "frames": frames + 2})
    service.record({"kind": "end", "frames": 40, "state": "finished"})
    service.close()
    videos = [
        (frames, values["evaluation/video"].name)
        for frames, values in service.sent_values
        if "evaluation/video" in values
    ]
    assert videos == [(20, "000000020.mp4"), (30, "000000030.mp4")]
    assert service.is_finished
    assert all(values["frames"] == frames for frames, values in service.sent_values)


def test_a_slow_tracker_prints_nothing_while_the_run_prints(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackio prints from its thread while the display starts and prints."""
    terminal, has_printed, may_end = StringIO(), Event(), Event()

    def init(**_: Any) -> Any:
        print("a hint of trackio")
        has_printed.set()
        may_end.wait(10)
        return SimpleNamespace(finish=lambda: print("another hint"))

    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    service = TrackioLogger(run_dir, RunLabels("a", "b"), {})
    assert has_printed.wait(10)
    print("start of the display")
    previous, sys.stdout = sys.stdout, StringIO()  # as a live display does, which restores it at its end
    may_end.set()
    service.close()
    sys.stdout = previous
    print("saved in runs/first")
    assert terminal.getvalue() == "start of the display\nsaved in runs/first\n"


def test_services_are_chosen_by_the_settings(run_dir: RunDir) -> None:
    config = make_short_config(logging={"tensorboard": False})
    assert build_service_loggers(config, run_dir, run_id="a", since_frames=None) == []
    assert to_plain(make_short_config(logging=LABELS))["logging"]["group"] == "pick"
    with pytest.raises(ValueError, match=r"logging\.project: expected a name"):
        make_short_config(logging={"project": ""})


def test_without_trackio_the_error_names_the_extra(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "manyview\[trackio\]"'):
        build_service_loggers(
            make_short_config(logging={"trackio": True, "tensorboard": False}), run_dir, run_id="a", since_frames=None
        )
