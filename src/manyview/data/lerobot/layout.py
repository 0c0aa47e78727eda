"""File names, features and metadata of a LeRobot dataset of version 3.

    meta/info.json                                        counts, frames per second, features
    meta/stats.json                                       minimum, maximum, mean and deviation of each feature
    meta/tasks.parquet                                    text of each task
    meta/episodes/chunk-000/file-000.parquet              one row per episode: its length and where its data is
    data/chunk-000/file-000.parquet                       one row per frame, several episodes in a file
    videos/observation.images.NAME/chunk-000/file-000.mp4 one video per camera, several episodes in a file

A dataset is untrusted. Its file names are built from checked parts, never taken from its metadata.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyview.utils.files import can_hold_code
from manyview.utils.json_io import is_count, is_number, read_json
from manyview.utils.text import sanitize_text

VERSION = "v3.0"
INFO_FILE, STATS_FILE, TASKS_FILE, EPISODES_DIR = (
    "meta/info.json",
    "meta/stats.json",
    "meta/tasks.parquet",
    "meta/episodes",
)
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PATH = EPISODES_DIR + "/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
CAMERA_PREFIX, STATE, ACTION = "observation.images.", "observation.state", "action"
REWARD, DONE = "next.reward", "next.done"
TERMINATED, TRUNCATED = "next.terminated", "next.truncated"
"""Kinds of an end, which `next.done` does not tell apart; manyview writes and reads these two columns."""
PRESENT = "complementary_info.present"
"""Flags of the cameras that saw something in a frame, by their names; manyview writes and reads this column."""
CHUNK_FILES = 1_000
"""Files of a chunk directory."""
MAX_FRAMES, MAX_EPISODES, MAX_FEATURES, MAX_FEATURE_SIZE = 20_000_000, 1_000_000, 256, 4_096
MAX_FILES, MAX_FILE_INDEX, MAX_FPS, MAX_SIDE = 200_000, 999_999, 1_000, 4_096
FEATURE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .+-]{0,199}")
"""Valid names of features: those of cameras become directories."""


class DatasetError(ValueError):
    """The folder is not a valid dataset; the message says why in one line."""


@dataclass(frozen=True)
class Feature:
    """A column, or a video."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...] | None = None
    """Names of the numbers of a vector; None if the dataset gives none."""

    @property
    def is_camera(self) -> bool:
        return self.dtype in ("video", "image")

    @property
    def size(self) -> int:
        """Numbers of a scalar or vector."""
        return self.shape[0]

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width of a video."""
        return self.shape[1:3] if self.shape[0] in (1, 3) and self.shape[2] not in (1, 3) else self.shape[:2]  # type: ignore[return-value]


@dataclass(frozen=True)
class DatasetInfo:
    """Content of `meta/info.json`."""

    fps: float
    num_episodes: int
    num_frames: int
    features: Mapping[str, Feature]

    @property
    def cameras(self) -> tuple[Feature, ...]:
        return tuple(feature for feature in self.features.values() if feature.is_camera)


def check_folder(folder: Path) -> None:
    """Raise `DatasetError` for links, special files, files that can hold code, and too many files."""
    if folder.is_symlink() or not folder.is_dir():
        raise DatasetError(f"{sanitize_text(folder)}: expected the folder of a dataset, got a link, a file or nothing")
    count = 0
    for directory, names, files in os.walk(folder):
        for name in (*names, *files):
            path = Path(directory) / name
            shown, mode = sanitize_text(path.relative_to(folder), max_chars=200), path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise DatasetError(f"{shown} is a symbolic link: expected files only. Copy the dataset with `cp -rL`")
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise DatasetError(f"{shown} is a pipe or a device: expected files only. Remove it")
            if stat.S_ISREG(mode) and can_hold_code(name):
                raise DatasetError(f"{shown} can hold code: expected Parquet, MP4 and JSON only. Remove it")
        if (count := count + len(names) + len(files)) > MAX_FILES:
            raise DatasetError(f"too many files: expected at most {MAX_FILES:,}")


def read_info(folder: Path) -> DatasetInfo:
    """Read and check `meta/info.json`. Raises `DatasetError` if it is invalid."""
    path = folder / INFO_FILE
    if not path.is_file():
        raise DatasetError(f"{sanitize_text(folder)} is not a LeRobot dataset: expected {INFO_FILE} in it, got none")
    try:
        plain = read_json(path)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{INFO_FILE}: {sanitize_text(error)}") from None
    version = plain.get("codebase_version")
    if version != VERSION:
        raise DatasetError(
            f"unsupported codebase_version: expected {VERSION}, got {sanitize_text(version, max_chars=40)!r}. Convert "
            "the dataset with LeRobot's converter to version 3"
        )
    _check_path(plain, "data_path", DATA_PATH)
    features = _parse_features(plain.get("features"))
    if any(feature.dtype == "video" for feature in features.values()):
        _check_path(plain, "video_path", VIDEO_PATH)
    fps = plain.get("fps")
    if not is_number(fps) or not 0 < fps <= MAX_FPS:
        raise DatasetError(f"invalid fps: expected a number above 0, at most {MAX_FPS}, got {sanitize_text(fps)}")
    return DatasetInfo(
        fps=float(fps),
        num_episodes=_read_count(plain, "total_episodes", MAX_EPISODES),
        num_frames=_read_count(plain, "total_frames", MAX_FRAMES),
        features=features,
    )


def check_file_index(value: int, name: str) -> int:
    """Return the index of a file or chunk. Raises `DatasetError` if it is out of range."""
    if not 0 <= value <= MAX_FILE_INDEX:
        raise DatasetError(f"invalid {name}: expected 0 to {MAX_FILE_INDEX:,}, got {value}")
    return int(value)


def _check_path(plain: Mapping[str, Any], name: str, expected: str) -> None:
    if plain.get(name) != expected:
        raise DatasetError(
            f"unsupported {name}: expected {expected!r}, got {sanitize_text(plain.get(name), max_chars=120)!r}"
        )


def _read_count(plain: Mapping[str, Any], name: str, maximum: int) -> int:
    value = plain.get(name)
    if not is_count(value, min_value=1) or value > maximum:
        raise DatasetError(
            f"invalid {name}: expected 1 to {maximum:,}, got {sanitize_text(value, max_chars=40)}. Split a dataset "
            "that is larger"
        )
    return value


def _parse_features(plain: Any) -> dict[str, Feature]:
    if not isinstance(plain, dict) or not 0 < len(plain) <= MAX_FEATURES:
        raise DatasetError(f"invalid features: expected an object of 1 to {MAX_FEATURES} entries")
    return {name: _parse_feature(name, entry) for name, entry in plain.items()}


def _parse_feature(name: str, entry: Any) -> Feature:
    shown = sanitize_text(name, max_chars=80)
    if not FEATURE_NAME.fullmatch(name):
        raise DatasetError(f"invalid name of a feature: expected letters, digits and . _ - + only, got {shown!r}")
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise DatasetError(f"invalid feature {shown}: expected an object with a dtype")
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(is_count(size, min_value=1) and size < 2**16 for size in shape):
        raise DatasetError(f"invalid shape of {shown}: expected a list of sizes, got {sanitize_text(shape)}")
    feature = Feature(name, entry["dtype"], tuple(shape) or (1,), _parse_names(entry.get("names")))
    if feature.is_camera and (len(shape) != 3 or max(shape) > MAX_SIDE):
        raise DatasetError(
            f"invalid shape of {shown}: expected height, width and channels, at most {MAX_SIDE} each, got {shape}"
        )
    return feature


def _parse_names(names: Any) -> tuple[str, ...] | None:
    """Return the names of a vector's numbers, which some datasets keep in an object with a single list."""
    if isinstance(names, dict) and len(names) == 1:
        names = next(iter(names.values()))
    if not isinstance(names, Sequence) or isinstance(names, str) or len(names) > MAX_FEATURE_SIZE:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None
