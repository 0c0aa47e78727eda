"""Write episodes as a LeRobot dataset of version 3."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyview.data.lerobot.layout import (
    ACTION,
    CAMERA_PREFIX,
    CHUNK_FILES,
    DATA_PATH,
    DONE,
    EPISODES_PATH,
    FEATURE_NAME,
    INFO_FILE,
    MAX_FPS,
    PRESENT,
    REWARD,
    STATE,
    STATS_FILE,
    TASKS_FILE,
    TERMINATED,
    TRUNCATED,
    VERSION,
    VIDEO_PATH,
    DatasetError,
)
from manyview.data.lerobot.parquet import import_pyarrow
from manyview.data.lerobot.stats import FeatureStats
from manyview.data.lerobot.video import VideoWriter, get_pixel_format
from manyview.envs.views import Image
from manyview.utils.atomic_io import make_directory
from manyview.utils.json_io import dump_json, is_number
from manyview.utils.text import sanitize_text

FILE_FRAMES = 10_000
"""Frames after which the next episode starts new files."""


@dataclass(frozen=True)
class RecordedFrame:
    """One frame: what the policy saw, its action, and what came of it."""

    images: Mapping[str, Image]
    """Image [H, W, 3] by camera, black for an absent one."""
    present: Sequence[bool]
    """Flags of the cameras, in their order."""
    state: NDArray[np.float32] | None  # [D]
    action: NDArray[np.float32]  # [A], in the units of the environment
    reward: float
    terminated: bool
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """Features of a dataset to write."""

    fps: float
    task: str
    """Text that describes the task."""
    cameras: Mapping[str, tuple[int, int]]
    """Height and width by camera, without the prefix of its feature."""
    state_names: Sequence[str] = ()
    action_names: Sequence[str]

    def __post_init__(self) -> None:
        if not is_number(self.fps) or not 0 < self.fps <= MAX_FPS:
            raise DatasetError(f"invalid fps: expected a number above 0, at most {MAX_FPS}, got {self.fps}")
        for camera in self.cameras:
            if not FEATURE_NAME.fullmatch(camera):
                raise DatasetError(
                    f"camera {sanitize_text(camera)!r} cannot be the name of a directory: expected letters, digits and "
                    ". _ - + only. Rename the view"
                )

    @property
    def columns(self) -> dict[str, tuple[str, tuple[str, ...] | None, int]]:
        """Type, names and size of each column of numbers, in order."""
        state = {STATE: ("float32", tuple(self.state_names), len(self.state_names))} if self.state_names else {}
        return {
            **state,
            ACTION: ("float32", tuple(self.action_names), len(self.action_names)),
            REWARD: ("float32", None, 1),
            DONE: ("bool", None, 1),
            TERMINATED: ("bool", None, 1),
            TRUNCATED: ("bool", None, 1),
            PRESENT: ("bool", tuple(self.cameras), len(self.cameras)),
            "timestamp": ("float32", None, 1),
            "frame_index": ("int64", None, 1),
            "episode_index": ("int64", None, 1),
            "index": ("int64", None, 1),
            "task_index": ("int64", None, 1),
        }


@dataclass
class _OpenFiles:
    """Parquet writer and videos that episodes are appended to."""

    number: int
    data: Any
    videos: Mapping[str, VideoWriter]
    frames: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Chunk and file."""
        return divmod(self.number, CHUNK_FILES)

    def close(self) -> None:
        """Finish all files, also if one cannot be finished."""
        with ExitStack() as cleanup:
            for video in self.videos.values():
                cleanup.callback(video.close)
            self.data.close()


class DatasetWriter:
    """Write episodes one after another to a new folder; `close` writes the metadata.

    Videos are compressed, so images come back a few levels off; all numbers come back as float32.
    """

    def __init__(self, folder: Path, spec: DatasetSpec) -> None:
        self.folder, self.spec = folder, spec
        self.num_frames = 0
        self._files: _OpenFiles | None = None
        self._episodes: list[dict[str, Any]] = []
        self._stats: dict[str, FeatureStats] = {}
        self._num_files = 0

    @property
    def num_episodes(self) -> int:
        return len(self._episodes)

    def add_episode(self, frames: Sequence[RecordedFrame]) -> None:
        """Append an episode of at least one frame."""
        if self._files is None or self._files.frames >= FILE_FRAMES:
            self._open_next_files()
        files = self._files
        assert files is not None  # noqa: S101
        columns = self._make_columns(frames)
        files.data.write_table(self._make_table(columns))
        stats = {name: FeatureStats.make_empty(values.shape[1]) for name, values in columns.items()}
        for name, values in columns.items():
            stats[name].add_rows(values)
        for camera, video in files.videos.items():
            stats[CAMERA_PREFIX + camera] = camera_stats = FeatureStats.make_empty(3)
            for frame in frames:
                video.add(frame.images[camera])
                camera_stats.add_image(frame.images[camera])
        self._episodes.append(self._make_row(files, len(frames), stats))
        self._stats = {name: part.merge([self._stats[name]] if self._stats else []) for name, part in stats.items()}
        files.frames += len(frames)
        self.num_frames += len(frames)

    def close(self) -> None:
        """Write the metadata. Raises `DatasetError` without an episode."""
        if self._files is None:
            raise DatasetError("no episode to write: expected at least one, got none")
        self._close_files()
        arrow, parquet = import_pyarrow()
        place = {"chunk_index": 0, "file_index": 0}
        path = self.folder / EPISODES_PATH.format(**place)
        make_directory(path.parent)
        parquet.write_table(arrow.Table.from_pylist(self._episodes), path)
        parquet.write_table(self._make_tasks(), self.folder / TASKS_FILE)
        stats = {name: part.to_plain(is_camera=self._is_camera(name)) for name, part in self._stats.items()}
        (self.folder / STATS_FILE).write_bytes(dump_json(stats))
        (self.folder / INFO_FILE).write_bytes(dump_json(self._make_info()))

    def abort(self) -> None:
        """Close the files without metadata, and ignore their errors."""
        with suppress(OSError):
            self._close_files()

    def _close_files(self) -> None:
        if self._files is not None:
            self._files.close()

    def _open_next_files(self) -> None:
        self._close_files()
        _, parquet = import_pyarrow()
        chunk, file = divmod(self._num_files, CHUNK_FILES)
        data = self.folder / DATA_PATH.format(chunk_index=chunk, file_index=file)
        make_directory(data.parent)
        videos = {
            camera: VideoWriter(
                self.folder / VIDEO_PATH.format(video_key=CAMERA_PREFIX + camera, chunk_index=chunk, file_index=file),
                shape,
                self.spec.fps,
            )
            for camera, shape in self.spec.cameras.items()
        }
        self._files = _OpenFiles(self._num_files, parquet.ParquetWriter(data, self._make_schema()), videos)
        self._num_files += 1

    def _make_columns(self, frames: Sequence[RecordedFrame]) -> dict[str, NDArray[Any]]:
        """Return the columns [N, size] of an episode."""
        count, last = len(frames), np.arange(len(frames)) == len(frames) - 1
        ends = {name: [getattr(frame, kind) for frame in frames] for name, kind in _ENDS.items()}
        columns: dict[str, Any] = {
            **({STATE: [frame.state for frame in frames]} if self.spec.state_names else {}),
            ACTION: [frame.action for frame in frames],
            REWARD: [frame.reward for frame in frames],
            DONE: last,
            **ends,
            PRESENT: [frame.present for frame in frames],
            "timestamp": np.arange(count) / self.spec.fps,
            "frame_index": np.arange(count),
            "episode_index": np.full(count, self.num_episodes),
            "index": self.num_frames + np.arange(count),
            "task_index": np.zeros(count),
        }
        return {
            name: np.asarray(columns[name]).astype(kind).reshape(count, size)
            for name, (kind, _, size) in self.spec.columns.items()
        }

    def _make_schema(self) -> Any:
        arrow, _ = import_pyarrow()
        fields = []
        for name, (kind, names, size) in self.spec.columns.items():
            value = arrow.bool_() if kind == "bool" else arrow.from_numpy_dtype(np.dtype(kind))
            fields.append((name, value if names is None else arrow.list_(value, size)))
        return arrow.schema(fields)

    def _make_table(self, columns: Mapping[str, NDArray[Any]]) -> Any:
        arrow, _ = import_pyarrow()
        schema = self._make_schema()
        arrays = []
        for name, values in columns.items():
            kind, flat = schema.field(name).type, arrow.array(values.reshape(-1))
            is_list = arrow.types.is_fixed_size_list(kind)
            arrays.append(arrow.FixedSizeListArray.from_arrays(flat, type=kind) if is_list else flat)
        return arrow.Table.from_arrays(arrays, schema=schema)

    def _make_row(self, files: _OpenFiles, length: int, stats: Mapping[str, FeatureStats]) -> dict[str, Any]:
        """Return the row of the next episode, whose frames are the next of the open files."""
        chunk, file = files.place
        row: dict[str, Any] = {
            "episode_index": self.num_episodes,
            "tasks": [self.spec.task],
            "length": length,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self.num_frames,
            "dataset_to_index": self.num_frames + length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for camera in self.spec.cameras:
            prefix = f"videos/{CAMERA_PREFIX}{camera}"
            row |= {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": file}
            row |= {
                f"{prefix}/from_timestamp": files.frames / self.spec.fps,
                f"{prefix}/to_timestamp": (files.frames + length) / self.spec.fps,
            }
        for name, part in stats.items():
            plain = part.to_plain(is_camera=self._is_camera(name))
            row |= {f"stats/{name}/{stat}": value for stat, value in plain.items()}
        return row

    def _make_tasks(self) -> Any:
        """Return the table of tasks with their text as the index of the data frame that LeRobot reads."""
        arrow, _ = import_pyarrow()
        table = arrow.table({"task_index": arrow.array([0], arrow.int64()), "task": [self.spec.task]})
        kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
        columns = [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_type, "metadata": None}
            for name, (kind, numpy_type) in kinds.items()
        ]
        index = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
        return table.replace_schema_metadata({"pandas": json.dumps(index)})

    def _make_info(self) -> dict[str, Any]:
        cameras = {CAMERA_PREFIX + camera: self._describe_camera(*shape) for camera, shape in self.spec.cameras.items()}
        columns = {
            name: {"dtype": kind, "shape": [size], "names": None if names is None else list(names)}
            for name, (kind, names, size) in self.spec.columns.items()
        }
        fps = self.spec.fps
        return {
            "codebase_version": VERSION,
            "robot_type": None,
            "total_episodes": self.num_episodes,
            "total_frames": self.num_frames,
            "total_tasks": 1,
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": int(fps) if fps == int(fps) else fps,
            "splits": {"train": f"0:{self.num_episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
            "features": {**cameras, **columns},
        }

    def _describe_camera(self, height: int, width: int) -> dict[str, Any]:
        info = {
            "video.height": height,
            "video.width": width,
            "video.codec": "h264",
            "video.pix_fmt": get_pixel_format((height, width)),
            "video.is_depth_map": False,
            "video.fps": self.spec.fps,
            "video.channels": 3,
            "has_audio": False,
        }
        return {"dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channels"], "info": info}

    def _is_camera(self, name: str) -> bool:
        return name.startswith(CAMERA_PREFIX)


_ENDS = {TERMINATED: "terminated", TRUNCATED: "truncated"}
"""Columns of the ends by the field of a frame."""
