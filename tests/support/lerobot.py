"""Small LeRobot datasets written without the library's writer, and edits of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

FPS = 10
IMAGE_SIZE = 32
INFO_FILE, DATA_FILE = Path("meta/info.json"), Path("data/chunk-000/file-000.parquet")
EPISODES_FILE = Path("meta/episodes/chunk-000/file-000.parquet")


def draw_frame(
    episode: int, frame: int, camera: int, shape: tuple[int, int] = (IMAGE_SIZE, IMAGE_SIZE)
) -> NDArray[np.uint8]:
    """Return a smooth image whose channels encode episode, frame and camera."""
    ramp = np.linspace(0, 40, shape[1])[None, :, None]
    colors = np.array([60 * episode + 10, 20 * frame + 10, 100 * camera + 20])
    image: NDArray[np.uint8] = np.clip(np.ones((*shape, 1)) * colors + ramp, 0, 255).astype(np.uint8)
    return image


def write_video(path: Path, frames: Sequence[NDArray[np.uint8]], *, codec: str = "libx264") -> None:
    """Write a video of images [H, W, 3] at `FPS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = frames[0].shape[:2]
    quality = ["-crf", "20", "-preset", "10"] if codec == "libsvtav1" else ["-crf", "10"]
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (width, height),
        fps=FPS,
        codec=codec,
        macro_block_size=1,
        quality=None,
        output_params=[*quality, "-g", "2"],
    )
    writer.send(None)
    for frame in frames:
        writer.send(frame)
    writer.close()


def make_columns(lengths: Sequence[int], *, action_size: int, state_size: int) -> dict[str, Any]:
    """Return the columns of all episodes.

    Actions are in [-1, 1]; the reward is 1 at the last frame of an episode.
    """
    total = sum(lengths)
    steps = np.arange(total)
    frame = np.concatenate([np.arange(length) for length in lengths])
    last = np.concatenate([np.arange(length) == length - 1 for length in lengths])
    return {
        "observation.state": (steps[:, None] + np.arange(state_size) / 10).astype(np.float32),
        "action": np.sin(steps[:, None] + np.arange(action_size)).astype(np.float32),
        "next.reward": last.astype(np.float32),
        "next.done": last,
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": steps,
        "task_index": np.zeros(total, np.int64),
    }


def make_dataset(
    folder: Path,
    *,
    lengths: Sequence[int] = (4, 6, 3),
    cameras: Sequence[str] = ("front", "wrist"),
    shape: tuple[int, int] = (IMAGE_SIZE, IMAGE_SIZE),
    action_size: int = 2,
    state_size: int = 3,
    leave_out: Sequence[str] = (),
    columns: Mapping[str, Any] | None = None,
    codec: str = "libx264",
    state_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Write all episodes into one file per kind and return the columns."""
    rows = {**make_columns(lengths, action_size=action_size, state_size=state_size), **(columns or {})}
    rows = {name: values for name, values in rows.items() if name not in leave_out}
    write_table(folder / DATA_FILE, rows)
    starts = np.cumsum([0, *lengths])[:-1]
    episodes: dict[str, Any] = {
        "episode_index": np.arange(len(lengths)),
        "length": np.array(lengths),
        "data/chunk_index": np.zeros(len(lengths), np.int64),
        "data/file_index": np.zeros(len(lengths), np.int64),
        "dataset_from_index": starts,
        "dataset_to_index": starts + lengths,
    }
    for number, camera in enumerate(cameras):
        key = f"observation.images.{camera}"
        frames = [draw_frame(e, f, number, shape) for e, length in enumerate(lengths) for f in range(length)]
        write_video(folder / "videos" / key / "chunk-000" / "file-000.mp4", frames, codec=codec)
        episodes |= {f"videos/{key}/{part}_index": np.zeros(len(lengths), np.int64) for part in ("chunk", "file")}
        episodes |= {
            f"videos/{key}/from_timestamp": starts / FPS,
            f"videos/{key}/to_timestamp": (starts + lengths) / FPS,
        }
    write_table(folder / EPISODES_FILE, episodes)
    features: dict[str, Any] = {
        f"observation.images.{camera}": {
            "dtype": "video",
            "shape": [*shape, 3],
            "names": ["height", "width", "channels"],
        }
        for camera in cameras
    }
    for name, values in rows.items():
        names = list(state_names) if name == "observation.state" and state_names else None
        size = 1 if values.ndim == 1 else values.shape[1]
        features[name] = {"dtype": str(values.dtype), "shape": [size], "names": names}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "so100",
        "total_episodes": len(lengths),
        "total_frames": int(sum(lengths)),
        "total_tasks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    (folder / INFO_FILE).write_text(json.dumps(info))
    return rows


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns, [N] or [N, size], the latter as lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: pa.array(list(values) if np.ndim(values) > 1 else values) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path)


def edit_info(folder: Path, **changes: Any) -> None:
    """Replace fields of the info file."""
    info = json.loads((folder / INFO_FILE).read_text())
    (folder / INFO_FILE).write_text(json.dumps({**info, **changes}))


def edit_features(folder: Path, **changes: Any) -> None:
    """Replace features; None removes a feature. `__` in a name stands for a dot."""
    features = json.loads((folder / INFO_FILE).read_text())["features"]
    features |= {name.replace("__", "."): value for name, value in changes.items()}
    edit_info(folder, features={name: value for name, value in features.items() if value is not None})


def edit_table(path: Path, **changes: Any) -> None:
    """Replace columns of a Parquet file. `__` in a name stands for `/`."""
    table = pq.read_table(path)
    for name, values in changes.items():
        column = name.replace("__", "/")
        array = values if isinstance(values, pa.Array) else pa.array(values)
        index = table.schema.get_field_index(column)
        table = table.append_column(column, array) if index < 0 else table.set_column(index, column, array)
    pq.write_table(table, path)
