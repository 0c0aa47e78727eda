"""LeRobot datasets: exact reading, and refusal of invalid or hostile ones in one line."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manyview.data.lerobot.layout import DatasetError
from manyview.data.lerobot.reader import LeRobotDataset
from tests.support.lerobot import (
    DATA_FILE,
    EPISODES_FILE,
    INFO_FILE,
    draw_frame,
    edit_features,
    edit_info,
    edit_table,
    make_dataset,
    write_video,
)

LENGTHS = (4, 6, 3)
CAMERAS = ("observation.images.front", "observation.images.wrist")
COLUMNS = ("observation.state", "action", "next.reward", "next.done")


def read_all(
    folder: Path, *, columns: Any = COLUMNS, cameras: Any = CAMERAS
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the columns and images of every episode."""
    with LeRobotDataset(folder) as dataset:
        return [
            (dict(episode.columns), {name: list(images) for name, images in episode.images.items()})
            for episode in dataset.iter_episodes(columns, cameras)
        ]


@pytest.fixture(scope="module")
def source_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "dataset"
    make_dataset(folder, lengths=LENGTHS)
    return folder


@pytest.fixture
def folder(source_dataset: Path, tmp_path: Path) -> Path:
    """Return a copy of the dataset to corrupt."""
    return Path(shutil.copytree(source_dataset, tmp_path / "dataset"))


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_every_row_and_image_is_that_of_its_episode(tmp_path: Path, codec: str) -> None:
    rows = make_dataset(tmp_path, lengths=LENGTHS, codec=codec)
    start = 0
    for number, (columns, images) in enumerate(read_all(tmp_path)):
        length = LENGTHS[number]
        for name in COLUMNS:
            assert np.array_equal(columns[name], rows[name][start : start + length])
        for camera, name in enumerate(CAMERAS):
            assert len(images[name]) == length
            for frame, image in enumerate(images[name]):
                error = np.abs(image.astype(int) - draw_frame(number, frame, camera))
                assert error.mean() < 3, f"{codec}: episode {number}, frame {frame}"
        start += length
    assert start == sum(LENGTHS)


def test_cameras_that_are_not_requested_are_not_decoded(folder: Path) -> None:
    shutil.rmtree(folder / "videos" / CAMERAS[1])
    edit_table(folder / EPISODES_FILE, **{f"videos__{CAMERAS[1]}__chunk_index": [-1, -1, -1]})
    assert len(read_all(folder, cameras=CAMERAS[:1])) == 3


def test_episodes_may_skip_frames_of_a_video_and_files_may_differ(folder: Path) -> None:
    """The second episode begins after a gap, and the third one in another file."""
    video = folder / "videos" / CAMERAS[0] / "chunk-000"
    frames = [draw_frame(0, frame, 0) for frame in range(4)] + [draw_frame(9, 0, 0)] * 3
    frames += [draw_frame(1, frame, 0) for frame in range(6)]
    write_video(video / "file-000.mp4", frames)
    write_video(video.with_name("chunk-001") / "file-007.mp4", [draw_frame(2, frame, 0) for frame in range(3)])
    prefix = f"videos__{CAMERAS[0]}__"
    edit_table(
        folder / EPISODES_FILE,
        **{
            f"{prefix}from_timestamp": [0.0, 0.7, 0.0],
            f"{prefix}chunk_index": [0, 0, 1],
            f"{prefix}file_index": [0, 0, 7],
        },
    )
    for number, (_, images) in enumerate(read_all(folder)):
        for frame, image in enumerate(images[CAMERAS[0]]):
            assert np.abs(image.astype(int) - draw_frame(number, frame, 0)).mean() < 3


def test_episodes_are_read_in_order_for_any_order_of_their_rows(folder: Path) -> None:
    table = pq.read_table(folder / EPISODES_FILE)
    (folder / EPISODES_FILE).unlink()
    pq.write_table(table.slice(2, 1), folder / EPISODES_FILE)
    pq.write_table(table.slice(0, 2), folder / "meta/episodes/chunk-000/file-001.parquet")
    assert [columns["episode_index"][0] for columns, _ in read_all(folder)] == [0, 1, 2]


def test_rows_of_episodes_may_have_any_order_in_a_file(folder: Path) -> None:
    table = pq.read_table(folder / DATA_FILE)
    pq.write_table(pa.concat_tables([table.slice(10, 3), table.slice(0, 10)]), folder / DATA_FILE)
    assert [list(columns["index"]) for columns, _ in read_all(folder, columns=(*COLUMNS, "index"), cameras=())] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7, 8, 9],
        [10, 11, 12],
    ]


def replace_by_link(path: Path) -> None:
    target = path.with_suffix(".real")
    path.rename(target)
    path.symlink_to(target)


def rename_feature(folder: Path, name: str) -> None:
    features = json.loads((folder / INFO_FILE).read_text())["features"]
    edit_info(folder, features={**features, name: {"dtype": "video", "shape": [8, 8, 3], "names": None}})


def pad_rows(folder: Path) -> None:
    table = pq.read_table(folder / DATA_FILE)
    pq.write_table(pa.concat_tables([table] * 9), folder / DATA_FILE)


class PickledCommand:
    """Object whose pickle runs a shell command when loaded."""

    def __reduce__(self) -> Any:
        return (os.system, ("echo opened",))


def store_objects(folder: Path) -> None:
    import pickle

    edit_table(folder / DATA_FILE, action=[pickle.dumps(PickledCommand())] * sum(LENGTHS))


def rename_elements(folder: Path) -> None:
    """Store lists whose elements have another field name than LeRobot's."""
    list_type = pa.list_(pa.field("x", pa.float64()))
    table = pq.read_table(folder / DATA_FILE).drop_columns("action")
    table = table.append_column("action", pa.array([[0.0] * 10**5] * sum(LENGTHS), list_type))
    pq.write_table(table, folder / DATA_FILE, use_compliant_nested_type=False)


def repeat_column(folder: Path) -> None:
    table = pq.read_table(folder / DATA_FILE)
    pq.write_table(table.append_column("action", table["action"]), folder / DATA_FILE)


def hide_playlist(folder: Path) -> None:
    """Replace a video by a playlist, which ffmpeg would follow to any file."""
    secret = folder / "secret"
    secret.write_text("secret")
    (folder / "videos" / CAMERAS[0] / "chunk-000" / "file-000.mp4").write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n"
    )


def shrink_video(folder: Path) -> None:
    write_video(folder / "videos" / CAMERAS[0] / "chunk-000" / "file-000.mp4", [draw_frame(0, 0, 0, (16, 16))] * 13)


def cut_video(folder: Path) -> None:
    write_video(folder / "videos" / CAMERAS[0] / "chunk-000" / "file-000.mp4", [draw_frame(0, 0, 0)] * 12)


CORRUPTIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no info": (lambda f: (f / INFO_FILE).unlink(), r"is not a LeRobot dataset: expected meta/info\.json"),
    "not JSON": (lambda f: (f / INFO_FILE).write_text("{"), r"meta/info\.json: "),
    "huge info": (lambda f: (f / INFO_FILE).write_text("[" * 10_000_000), "too large"),
    "older version": (lambda f: edit_info(f, codebase_version="v2.1"), "unsupported codebase_version: expected v3.0"),
    "escape in version": (lambda f: edit_info(f, codebase_version="\x1b[2Jv3"), "unsupported codebase_version"),
    "path of data": (lambda f: edit_info(f, data_path="../../etc/{chunk_index}"), "unsupported data_path"),
    "path of video": (lambda f: edit_info(f, video_path="/etc/passwd"), "unsupported video_path"),
    "format of path": (lambda f: edit_info(f, data_path="{chunk_index.__class__}"), "unsupported data_path"),
    "no fps": (lambda f: edit_info(f, fps=0), "invalid fps"),
    "text as fps": (lambda f: edit_info(f, fps="10"), "invalid fps"),
    "huge count of frames": (lambda f: edit_info(f, total_frames=10**12), "invalid total_frames"),
    "huge count of episodes": (lambda f: edit_info(f, total_episodes=10**9), "invalid total_episodes"),
    "wrong count of frames": (lambda f: edit_info(f, total_frames=14), "lengths of the episodes differ: expected 14"),
    "wrong count of episodes": (lambda f: edit_info(f, total_episodes=4), "episodes are incomplete"),
    "fewer episodes": (lambda f: edit_info(f, total_episodes=2), "too many rows: expected at most 2, got 3"),
    "features as list": (lambda f: edit_info(f, features=[]), "invalid features"),
    "feature elsewhere": (lambda f: rename_feature(f, "../../escape"), "invalid name of a feature"),
    "escape in a name": (lambda f: rename_feature(f, "observation.images.\x1b[31mred"), "invalid name of a feature"),
    "huge shape": (
        lambda f: edit_features(f, action={"dtype": "float32", "shape": [10**9]}),
        "invalid shape of action",
    ),
    "huge image": (
        lambda f: edit_features(f, observation__images__front={"dtype": "video", "shape": [60_000, 60_000, 3]}),
        "at most 4096 each",
    ),
    "images": (
        lambda f: edit_features(f, observation__images__front={"dtype": "image", "shape": [32, 32, 3]}),
        "expected a video in color, got image",
    ),
    "linked file": (lambda f: replace_by_link(f / DATA_FILE), "is a symbolic link.*cp -rL"),
    "linked folder": (lambda f: replace_by_link(f / "data"), "is a symbolic link"),
    "pipe": (lambda f: os.mkfifo(f / "pipe"), "is a pipe or a device"),
    "code": (lambda f: (f / "loader.py").write_text("1"), r"loader\.py can hold code"),
    "pickled file": (lambda f: (f / "meta" / "stats.pkl").write_bytes(b"1"), r"stats\.pkl can hold code"),
    "pickled cells": (store_objects, "column action: expected numbers, got binary"),
    "text cells": (
        lambda f: edit_table(f / DATA_FILE, action=["a"] * 13),
        "column action: expected numbers, got string",
    ),
    "another size": (lambda f: edit_table(f / DATA_FILE, action=[[0.0]] * 13), "column action is incomplete"),
    "uneven lists": (
        lambda f: edit_table(f / DATA_FILE, action=[[0.0] * (1 + row % 3) for row in range(13)]),
        "column action is incomplete|too many values",
    ),
    "huge lists": (
        lambda f: edit_table(f / DATA_FILE, action=[[0.0] * 10**5] * 13),
        "column action has too many values",
    ),
    "huge lists of another name": (rename_elements, "column action has too many values"),
    "column twice": (repeat_column, "has column action 2 times: expected once"),
    "missing cells": (
        lambda f: edit_table(f / DATA_FILE, action=[None] + [[0.0, 0.0]] * 12),
        "column action is incomplete",
    ),
    "missing column": (
        lambda f: edit_features(f, reward={"dtype": "float32", "shape": [1]}),
        "has column reward 0 times: expected once",
    ),
    "more rows": (pad_rows, "too many rows: expected at most 13"),
    "rows in another order": (
        lambda f: edit_table(f / DATA_FILE, frame_index=list(range(12, -1, -1))),
        "expected 4 rows in order",
    ),
    "episode without rows": (lambda f: edit_table(f / DATA_FILE, episode_index=[0] * 13), "expected 4 rows in order"),
    "not Parquet": (lambda f: (f / DATA_FILE).write_bytes(b"PAR1" * 9), "cannot be read"),
    "cut Parquet": (lambda f: (f / DATA_FILE).write_bytes((f / DATA_FILE).read_bytes()[:-200]), "cannot be read"),
    "no Parquet": (lambda f: (f / DATA_FILE).unlink(), "cannot be read: .*No such file"),
    "no episodes": (lambda f: (f / EPISODES_FILE).unlink(), "no episodes"),
    "episode twice": (lambda f: edit_table(f / EPISODES_FILE, episode_index=[0, 0, 1]), "episodes are incomplete"),
    "negative length": (lambda f: edit_table(f / EPISODES_FILE, length=[-4, 14, 3]), "episode 0: invalid length"),
    "length in fractions": (lambda f: edit_table(f / EPISODES_FILE, length=[4.5, 5.5, 3.0]), "expected whole numbers"),
    "file index elsewhere": (
        lambda f: edit_table(f / EPISODES_FILE, data__file_index=[-1, 0, 0]),
        "invalid data/file_index",
    ),
    "huge chunk": (
        lambda f: edit_table(f / EPISODES_FILE, data__chunk_index=[10**9, 0, 0]),
        "invalid data/chunk_index",
    ),
    "start is no number": (
        lambda f: edit_table(f / EPISODES_FILE, **{f"videos__{CAMERAS[0]}__from_timestamp": [float("nan"), 0.4, 1.0]}),
        "invalid start in the video",
    ),
    "no video": (lambda f: shutil.rmtree(f / "videos" / CAMERAS[0]), r"file-000\.mp4 is missing"),
    "not a video": (
        lambda f: (f / "videos" / CAMERAS[0] / "chunk-000" / "file-000.mp4").write_bytes(b"\x00" * 500),
        "cannot be decoded",
    ),
    "playlist": (hide_playlist, "cannot be decoded"),
    "another size of the video": (shrink_video, "another size than declared: expected 32x32, got 16x16"),
    "short video": (cut_video, "is too short: expected a frame 12"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_dataset_is_refused_in_one_line(folder: Path, name: str) -> None:
    corrupt, message = CORRUPTIONS[name]
    corrupt(folder)
    columns = (*COLUMNS, "reward") if name == "missing column" else COLUMNS
    with pytest.raises(DatasetError, match=message) as excinfo:
        read_all(folder, columns=columns)
    assert str(excinfo.value).isprintable()
    assert len(str(excinfo.value)) < 700


def test_a_nested_column_with_the_path_of_a_feature_is_not_decompressed(folder: Path) -> None:
    expected = read_all(folder)
    noise = np.random.default_rng(0).random((sum(LENGTHS), 100))
    edit_table(folder / DATA_FILE, observation=pa.array([{"state": row.tolist()} for row in noise]))
    nested_column = (
        pq.ParquetFile(folder / DATA_FILE).metadata.row_group(0).column(len(pq.read_schema(folder / DATA_FILE)) - 1)
    )
    assert nested_column.path_in_schema.startswith("observation.state")
    content = bytearray((folder / DATA_FILE).read_bytes())
    start = nested_column.dictionary_page_offset
    content[start : start + nested_column.total_compressed_size] = bytes(nested_column.total_compressed_size)
    (folder / DATA_FILE).write_bytes(content)  # reading this column would fail
    for (columns, _), (expected_columns, _) in zip(read_all(folder), expected, strict=True):
        for name, values in expected_columns.items():
            np.testing.assert_array_equal(columns[name], values)


def test_a_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(DatasetError, match="expected the folder of a dataset"):
        LeRobotDataset(tmp_path / "link")


def test_without_pyarrow_the_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "manyview\[datasets\]"'):
        read_all(folder)
