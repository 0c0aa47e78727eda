"""Written LeRobot datasets: layout and statistics by other readers, and the round trip."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from manyview.data.lerobot import writer as writer_module
from manyview.data.lerobot.layout import DatasetError
from manyview.data.lerobot.reader import LeRobotDataset
from manyview.data.lerobot.video import VideoWriter
from manyview.data.lerobot.writer import DatasetSpec, DatasetWriter, RecordedFrame
from tests.support.lerobot import draw_frame

SPEC = DatasetSpec(
    fps=30, task="toy/x", cameras={"front": (32, 32), "wrist": (21, 33)}, state_names=["a"], action_names=["x", "y"]
)
SHAPES = SPEC.cameras


def make_episode(episode: int, length: int, *, terminated: bool) -> list[RecordedFrame]:
    return [
        RecordedFrame(
            images={name: draw_frame(episode, frame, number, SHAPES[name]) for number, name in enumerate(SHAPES)},
            present=[True, frame % 2 == 0],
            state=np.array([10.0 * episode + frame], np.float32),
            action=np.array([frame / 3, -episode], np.float32),
            reward=frame / 7,
            terminated=terminated and frame == length - 1,
            truncated=not terminated and frame == length - 1,
        )
        for frame in range(length)
    ]


EPISODES = [
    make_episode(0, 5, terminated=True),
    make_episode(1, 3, terminated=False),
    make_episode(2, 4, terminated=True),
]


@pytest.fixture(params=[10_000, 6], ids=["one file", "two files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(writer_module, "FILE_FRAMES", request.param)
    writer = DatasetWriter(tmp_path, SPEC)
    for episode in EPISODES:
        writer.add_episode(episode)
    writer.close()
    return tmp_path


def test_numbers_are_read_exactly_and_images_within_the_codec_error(folder: Path) -> None:
    columns = ("observation.state", "action", "next.reward", "next.done", "next.terminated", "next.truncated")
    errors = []
    with LeRobotDataset(folder) as dataset:
        cameras = [feature.name for feature in dataset.info.cameras]
        for episode in dataset.iter_episodes([*columns, "complementary_info.present"], cameras):
            frames = EPISODES[episode.index]
            expected: dict[str, Any] = {
                "observation.state": [frame.state[0] for frame in frames if frame.state is not None],
                "action": [frame.action for frame in frames],
                "next.reward": np.array([frame.reward for frame in frames], np.float32),
                "next.done": [frame.terminated or frame.truncated for frame in frames],
                "next.terminated": [frame.terminated for frame in frames],
                "next.truncated": [frame.truncated for frame in frames],
                "complementary_info.present": [frame.present for frame in frames],
            }
            for name, values in expected.items():
                assert np.array_equal(episode.columns[name], values), name
            for name in SHAPES:
                images = list(episode.images[f"observation.images.{name}"])
                errors += [
                    np.abs(image.astype(int) - frame.images[name]).mean()
                    for image, frame in zip(images, frames, strict=True)
                ]
    assert max(errors) < 3


def test_the_files_are_where_lerobot_looks_for_them(folder: Path) -> None:
    info = json.loads((folder / "meta/info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"]) == ("v3.0", 3, 12)
    assert info["fps"] == 30
    assert info["splits"] == {"train": "0:3"}
    episodes = pd.concat([pd.read_parquet(path) for path in sorted((folder / "meta/episodes").glob("*/*.parquet"))])
    index = 0
    for _, row in episodes.iterrows():
        data = folder / info["data_path"].format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])
        table = pd.read_parquet(data)
        rows = table[table["index"].between(row["dataset_from_index"], row["dataset_to_index"] - 1)]
        assert list(rows["episode_index"]) == [row["episode_index"]] * row["length"]
        assert list(rows["frame_index"]) == list(range(row["length"]))
        assert np.allclose(rows["timestamp"], np.arange(row["length"]) / 30)
        assert row["dataset_from_index"] == index
        assert list(row["tasks"]) == ["toy/x"]
        index += row["length"]
        for name in SHAPES:
            key = f"observation.images.{name}"
            chunk, file = row[f"videos/{key}/chunk_index"], row[f"videos/{key}/file_index"]
            assert (folder / info["video_path"].format(video_key=key, chunk_index=chunk, file_index=file)).is_file()
            seconds = row[f"videos/{key}/to_timestamp"] - row[f"videos/{key}/from_timestamp"]
            assert seconds == pytest.approx(row["length"] / 30)


def test_features_describe_the_columns(folder: Path) -> None:
    features = json.loads((folder / "meta/info.json").read_text())["features"]
    assert features["observation.images.wrist"]["shape"] == [21, 33, 3]
    assert features["observation.images.wrist"]["info"]["video.pix_fmt"] == "yuv444p"
    assert features["observation.state"] == {"dtype": "float32", "shape": [1], "names": ["a"]}
    assert features["action"] == {"dtype": "float32", "shape": [2], "names": ["x", "y"]}
    schema = pq.read_schema(folder / "data/chunk-000/file-000.parquet")
    assert set(schema.names) == {name for name, feature in features.items() if feature["dtype"] != "video"}
    assert str(schema.field("action").type).startswith("fixed_size_list<")


def test_the_task_table_is_a_data_frame_by_its_text(folder: Path) -> None:
    tasks = pd.read_parquet(folder / "meta/tasks.parquet")
    assert tasks.index.name == "task"
    assert int(tasks.loc["toy/x"].task_index) == 0


def test_statistics_are_those_of_all_frames_and_of_each_episode(folder: Path) -> None:
    stats = json.loads((folder / "meta/stats.json").read_text())
    frames = [frame for episode in EPISODES for frame in episode]
    actions = np.array([frame.action for frame in frames], np.float64)
    for name, values in {
        "min": actions.min(0),
        "max": actions.max(0),
        "mean": actions.mean(0),
        "std": actions.std(0),
    }.items():
        assert np.allclose(stats["action"][name], values, atol=1e-6), name
    assert stats["action"]["count"] == [12]
    images = np.array([frame.images["front"] for frame in frames]) / 255
    camera = stats["observation.images.front"]
    assert np.allclose(np.array(camera["mean"])[:, 0, 0], images.mean((0, 1, 2)))
    assert np.allclose(np.array(camera["std"])[:, 0, 0], images.std((0, 1, 2)))
    assert camera["count"] == [12]
    rows = pd.read_parquet(folder / "meta/episodes/chunk-000/file-000.parquet")
    second = np.array([frame.action for frame in EPISODES[1]])
    assert np.allclose(rows.iloc[1]["stats/action/mean"], second.mean(0))
    assert list(rows.iloc[1]["stats/action/count"]) == [3]


def test_a_camera_name_that_is_no_directory_name_is_refused() -> None:
    with pytest.raises(DatasetError, match="Rename the view"):
        DatasetSpec(fps=30, task="", cameras={"../up": (8, 8)}, action_names=["x"])


@pytest.mark.parametrize("fps", [0, -5, float("nan"), float("inf"), 5_000])
def test_an_invalid_fps_is_refused(fps: float) -> None:
    with pytest.raises(DatasetError, match="invalid fps: expected a number above 0, at most 1000"):
        DatasetSpec(fps=fps, task="", cameras={}, action_names=["x"])


def add_frames(video: VideoWriter, count: int) -> None:
    for _ in range(count):
        video.add(np.zeros((1000, 1000, 3), np.uint8))


def test_an_incomplete_video_is_an_error(tmp_path: Path) -> None:
    """The frame fits into the pipe, so only the exit of the encoder shows the error."""
    (tmp_path / "file.mp4").mkdir()
    video = VideoWriter(tmp_path / "file.mp4", (8, 8), 10)
    video.add(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(OSError, match=r"file\.mp4 cannot be written: .*[Dd]irectory"):
        video.close()
    large_video = VideoWriter(tmp_path / "file.mp4", (1000, 1000), 10)
    with pytest.raises(OSError, match=r"file\.mp4 cannot be written: .*[Dd]irectory"):
        add_frames(large_video, 100)  # until the encoder has exited
    large_video.close()


def test_a_dataset_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no episode to write"):
        DatasetWriter(tmp_path, SPEC).close()
