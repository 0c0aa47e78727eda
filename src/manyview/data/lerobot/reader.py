"""Read a LeRobot dataset of version 3, episode by episode.

The folder is untrusted: every count, index and file is checked before it is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from manyview.data.lerobot.layout import (
    DATA_PATH,
    EPISODES_DIR,
    MAX_FEATURE_SIZE,
    VIDEO_PATH,
    DatasetError,
    DatasetInfo,
    Feature,
    check_file_index,
    check_folder,
    read_info,
)
from manyview.data.lerobot.parquet import read_columns
from manyview.data.lerobot.video import VideoReader
from manyview.envs.views import Image
from manyview.utils.text import sanitize_text


@dataclass(frozen=True)
class Episode:
    """Columns and images of an episode of N frames."""

    index: int
    columns: Mapping[str, NDArray[Any]]  # [N] or [N, size]
    images: Mapping[str, Iterator[Image]]
    """N images [H, W, 3] by camera, to be taken in order before the next episode."""

    @property
    def length(self) -> int:
        return len(self.columns["frame_index"])


@dataclass(frozen=True)
class _EpisodeRef:
    index: int
    length: int
    data: tuple[int, int]
    """Chunk and file of its rows."""
    videos: Mapping[str, tuple[int, int, int]]
    """Chunk, file and first frame of its video by camera."""


class _DataFile(NamedTuple):
    """Columns of a data file, and its rows in the order of their episodes."""

    place: tuple[int, int]
    """Chunk and file."""
    columns: Mapping[str, NDArray[Any]]
    order: NDArray[np.intp]

    def find_rows(self, episode: int) -> NDArray[np.intp]:
        """Return the rows of an episode, in the order of the file."""
        ends = np.searchsorted(self.columns["episode_index"], (episode, episode + 1), sorter=self.order)
        return self.order[slice(*ends)]


class LeRobotDataset:
    """A dataset in a folder, checked by the constructor. Use it as a context manager, or call `close`.

    Raises:
        DatasetError: The folder is not a valid dataset.
        ModuleNotFoundError: The extra `datasets` is not installed.

    """

    def __init__(self, folder: Path) -> None:
        check_folder(folder)
        self.folder, self.info = folder, read_info(folder)
        self._data: _DataFile | None = None
        self._readers: dict[str, tuple[tuple[int, int], VideoReader]] = {}

    def iter_episodes(self, columns: Sequence[str], cameras: Sequence[str]) -> Iterator[Episode]:
        """Yield all episodes in order, with these columns and the images of these cameras."""
        sizes = {name: self._get_column_size(name) for name in columns}
        for name in cameras:
            self._check_camera(name)
        for ref in self._list_episodes(cameras):
            rows = self._read_rows(ref, sizes)
            images = {name: self._read_images(ref, name) for name in cameras}
            yield Episode(ref.index, rows, images)

    def close(self) -> None:
        """End the decoders."""
        for _, reader in self._readers.values():
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get_column_size(self, name: str) -> int:
        feature = self.info.features[name]
        if feature.is_camera or len(feature.shape) != 1 or feature.size > MAX_FEATURE_SIZE:
            raise DatasetError(
                f"unsupported {name}: expected one list of at most {MAX_FEATURE_SIZE} numbers, got {feature.dtype} of "
                f"shape {list(feature.shape)}"
            )
        return feature.size

    def _check_camera(self, name: str) -> None:
        feature = self.info.features[name]
        if feature.dtype != "video" or 3 not in (feature.shape[0], feature.shape[2]):
            raise DatasetError(
                f"unsupported camera {name}: expected a video in color, got {sanitize_text(feature.dtype)} of shape "
                f"{list(feature.shape)}. Record or convert it as video"
            )

    def _list_episodes(self, cameras: Sequence[str]) -> list[_EpisodeRef]:
        """Return where the parts of each episode are; they must add up to the counts of the dataset."""
        names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        names += [
            f"videos/{camera}/{part}" for camera in cameras for part in ("chunk_index", "file_index", "from_timestamp")
        ]
        tables = [
            read_columns(
                path, str(path.relative_to(self.folder)), dict.fromkeys(names, 1), max_rows=self.info.num_episodes
            )
            for path in sorted((self.folder / EPISODES_DIR).glob("chunk-*/file-*.parquet"))
        ]
        if not tables:
            raise DatasetError(f"no episodes: expected Parquet files in {EPISODES_DIR}, got none")
        rows = {name: np.concatenate([table[name] for table in tables]) for name in names}
        for name, values in rows.items():
            if not (values.dtype.kind in "iu" or (name.endswith("from_timestamp") and values.dtype.kind == "f")):
                raise DatasetError(f"{EPISODES_DIR}: column {name}: expected whole numbers, got {values.dtype}")
        order = np.argsort(rows["episode_index"], kind="stable")
        refs = [self._make_ref({name: values[row] for name, values in rows.items()}, cameras) for row in order]
        if [ref.index for ref in refs] != list(range(self.info.num_episodes)):
            raise DatasetError(
                f"episodes are incomplete: expected one row for each of {self.info.num_episodes}, got {len(refs)} rows"
            )
        if (total := sum(ref.length for ref in refs)) != self.info.num_frames:
            raise DatasetError(
                f"lengths of the episodes differ: expected {self.info.num_frames:,} in all, got {total:,}"
            )
        return refs

    def _make_ref(self, row: Mapping[str, Any], cameras: Sequence[str]) -> _EpisodeRef:
        index, length = int(row["episode_index"]), int(row["length"])
        if not 0 < length <= self.info.num_frames:
            raise DatasetError(f"episode {index}: invalid length: expected 1 to {self.info.num_frames:,}, got {length}")
        videos = {}
        for camera in cameras:
            start = float(row[f"videos/{camera}/from_timestamp"]) * self.info.fps
            if not 0 <= start <= self.info.num_frames:
                raise DatasetError(f"episode {index}: invalid start in the video of {camera}: got frame {start:.0f}")
            videos[camera] = (*_read_file(row, f"videos/{camera}"), round(start))
        return _EpisodeRef(index, length, _read_file(row, "data"), videos)

    def _read_rows(self, ref: _EpisodeRef, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
        data = self._read_data(ref.data, {**sizes, "episode_index": 1, "frame_index": 1})
        rows = data.find_rows(ref.index)
        if len(rows) != ref.length or not np.array_equal(data.columns["frame_index"][rows], np.arange(ref.length)):
            raise DatasetError(
                f"episode {ref.index}: expected {ref.length} rows in order in {_format_data_path(ref.data)}, got "
                f"{len(rows)} rows or another order"
            )
        return {name: values[rows] for name, values in data.columns.items()}

    def _read_data(self, place: tuple[int, int], sizes: Mapping[str, int]) -> _DataFile:
        """Return the columns of a data file; the newest one stays in memory."""
        if self._data is None or self._data.place != place or self._data.columns.keys() != sizes.keys():
            self._data = None  # two files need not fit into memory
            name = _format_data_path(place)
            columns = read_columns(self.folder / name, name, sizes, max_rows=self.info.num_frames)
            self._data = _DataFile(place, columns, np.argsort(columns["episode_index"], kind="stable"))
        return self._data

    def _read_images(self, ref: _EpisodeRef, camera: str) -> Iterator[Image]:
        chunk, file, start = ref.videos[camera]
        opened = self._readers.get(camera)
        if opened is None or opened[0] != (chunk, file):
            if opened is not None:
                opened[1].close()
            name = VIDEO_PATH.format(video_key=camera, chunk_index=chunk, file_index=file)
            if not (self.folder / name).is_file():
                raise DatasetError(f"{name} is missing: expected the video of episode {ref.index}")
            reader = VideoReader(self.folder / name, name, self.info.features[camera].image_shape)
            self._readers[camera] = opened = ((chunk, file), reader)
        return opened[1].read(start, ref.length)


def _read_file(row: Mapping[str, Any], prefix: str) -> tuple[int, int]:
    chunk, file = (check_file_index(int(row[name]), name) for name in (f"{prefix}/chunk_index", f"{prefix}/file_index"))
    return chunk, file


def _format_data_path(file: tuple[int, int]) -> str:
    return DATA_PATH.format(chunk_index=file[0], file_index=file[1])


def find_feature(info: DatasetInfo, name: str) -> Feature:
    """Return a feature by its name. Raises `DatasetError` if the dataset has none of that name."""
    if name not in info.features:
        raise DatasetError(f"no feature {sanitize_text(name)!r}: expected one of {', '.join(info.features)}")
    return info.features[name]
