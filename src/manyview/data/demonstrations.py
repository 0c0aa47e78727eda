"""Demonstrations: transitions of a dataset in the segment format, in a folder that runs read and never change.

    demonstrations.json            views, state vectors and action size, references to the segments, the source
    000000000000-000000000512.segment ...

The folder holds single frames without features, so any number of stacked frames and any n-step return fits.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from manyview.data.chunks import check_self_contained
from manyview.data.n_step import count_reserve_steps
from manyview.data.replay_buffer import ReplayBuffer
from manyview.data.segment_format import MAX_SEGMENT_STEPS, SegmentError
from manyview.data.segment_log import SegmentRef, read_segment, write_segment
from manyview.envs.views import Observation, StateVector, View
from manyview.utils.atomic_io import write_atomic
from manyview.utils.files import read_bounded
from manyview.utils.json_io import MAX_JSON_BYTES, dump_json, is_count, parse_json
from manyview.utils.text import sanitize_text

MANIFEST_FILE = "demonstrations.json"
FORMAT = 1
MAX_STEPS = 20_000_000
"""Limit of the steps in a folder: far above what fits in memory, and its references fit in the manifest."""


@dataclass(frozen=True)
class DemonstrationsManifest:
    """Content of a folder of demonstrations, without its steps."""

    views: tuple[View, ...]
    state_vectors: tuple[StateVector, ...]
    action_size: int
    episodes: int
    transitions: int
    segments: tuple[SegmentRef, ...]
    source: Mapping[str, Any]
    """Text and numbers about the dataset, for people."""
    sha256: str = ""
    """SHA-256 of the manifest file, which names those of all segments."""

    @property
    def steps(self) -> int:
        """Number of steps; an episode has one more than transitions."""
        return self.segments[-1].end

    @property
    def capacity(self) -> int:
        """Capacity of a replay buffer that never overwrites a step, with one empty step after them."""
        capacity = self.steps + 1
        while capacity - count_reserve_steps(capacity) < self.steps + 1:
            capacity += 1
        return capacity

    def to_plain(self) -> dict[str, Any]:
        """Return the manifest as JSON values."""
        return {
            "format": FORMAT,
            "views": [_describe_view(view) for view in self.views],
            "state_vectors": [[vector.name, vector.size] for vector in self.state_vectors],
            "action_size": self.action_size,
            "episodes": self.episodes,
            "transitions": self.transitions,
            "segments": [ref.to_plain() for ref in self.segments],
            "source": dict(self.source),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], sha256: str) -> Self:
        """Parse an untrusted manifest. Raises ValueError if it is invalid."""
        if plain.get("format") != FORMAT:
            raise ValueError(f"unsupported format: expected {FORMAT}, got {sanitize_text(plain.get('format'))}")
        segments = tuple(SegmentRef.from_plain(ref) for ref in plain["segments"])
        starts = [0, *(ref.end for ref in segments)]
        if not segments or [ref.start for ref in segments] != starts[:-1] or starts[-1] > MAX_STEPS:
            raise ValueError(f"invalid segments: expected consecutive ones from step 0 to at most {MAX_STEPS:,}")
        counts = {name: plain[name] for name in ("action_size", "episodes", "transitions")}
        if invalid := [name for name, count in counts.items() if not is_count(count, min_value=1)]:
            raise ValueError(
                f"invalid {invalid[0]}: expected an integer from 1, got {sanitize_text(plain[invalid[0]])}"
            )
        return cls(
            views=tuple(_parse_view(view) for view in plain["views"]),
            state_vectors=tuple(StateVector(str(name), int(size)) for name, size in plain["state_vectors"]),
            segments=segments,
            source=dict(plain["source"]),
            sha256=sha256,
            **counts,
        )

    def check_fits(self, views: Sequence[View], state_vectors: Sequence[StateVector], action_size: int) -> None:
        """Raise ValueError unless a run with these views, vectors and actions can use the steps."""
        for name, expected, got in (
            ("views", _format_views(views), _format_views(self.views)),
            ("state vectors", _format_vectors(state_vectors), _format_vectors(self.state_vectors)),
            ("action size", str(action_size), str(self.action_size)),
        ):
            if expected != got:
                raise ValueError(
                    f"other {name} than the run: expected {expected}, got {sanitize_text(got)}. Import the dataset "
                    "again with the task and the `env` settings of the run"
                )


@dataclass(frozen=True)
class Demonstrations:
    """Steps of a folder of demonstrations in a replay buffer, which nothing is added to."""

    replay: ReplayBuffer
    manifest: DemonstrationsManifest


class DemonstrationWriter:
    """Write demonstrations to a new folder, transition by transition; memory holds two segments.

    Call `start_episode` and `add` as those of a `ReplayBuffer`, and `close` at the end.
    """

    def __init__(
        self, directory: Path, views: Sequence[View], *, action_size: int, state_vectors: Sequence[StateVector] = ()
    ) -> None:
        self._directory, self._action_size = directory, action_size
        self._replay = ReplayBuffer(
            views,
            action_shape=(action_size,),
            capacity=2 * MAX_SEGMENT_STEPS,
            frame_stack=1,
            state_vectors=state_vectors,
        )
        self._segments: list[SegmentRef] = []
        self.episodes = self.transitions = 0

    def start_episode(self, observation: Observation) -> None:
        """Start an episode with its first observation, of single frames."""
        self._replay.start_episode(observation)
        self.episodes += 1
        self._write_full_segments()

    def add(
        self, action: Any, reward: float, terminated: bool, observation: Observation, *, repeated: bool = False
    ) -> None:
        """Append one transition; `repeated` marks an observation that repeats the one before."""
        self._replay.add(action, reward, terminated, observation, repeated=repeated)
        self.transitions += 1
        self._write_full_segments()

    def close(self, source: Mapping[str, Any]) -> DemonstrationsManifest:
        """Write the last steps and the manifest. Raises ValueError if there is no transition."""
        if not self.transitions:
            raise ValueError("no transition: expected at least one episode with a known outcome of an action, got none")
        while self._num_written < self._replay.inserted:
            self._write_segment(min(MAX_SEGMENT_STEPS, self._replay.inserted - self._num_written))
        manifest = DemonstrationsManifest(
            views=self._replay.views,
            state_vectors=self._replay.state_vectors,
            action_size=self._action_size,
            episodes=self.episodes,
            transitions=self.transitions,
            segments=tuple(self._segments),
            source=source,
        )
        write_atomic(self._directory / MANIFEST_FILE, [dump_json(manifest.to_plain())])
        return read_manifest(self._directory)

    @property
    def _num_written(self) -> int:
        return self._segments[-1].end if self._segments else 0

    def _write_full_segments(self) -> None:
        # The newest step is not final: the next action belongs to its record.
        if self._replay.inserted - self._num_written > MAX_SEGMENT_STEPS:
            self._write_segment(MAX_SEGMENT_STEPS)

    def _write_segment(self, count: int) -> None:
        start, replay = self._num_written, self._replay
        indices = range(start, start + count)
        steps = replay.steps.take(indices, mode="wrap")
        for name in ("action", "reward", "terminated"):  # of a step without an action: what its slot held before
            steps[name][~steps["acted"]] = 0
        arrays = [ring.take(indices, axis=0, mode="wrap") for ring in replay.rings]
        self._segments.append(write_segment(self._directory, start, steps, arrays))


def read_manifest(directory: Path) -> DemonstrationsManifest:
    """Read the manifest of a folder of demonstrations. Raises ValueError or OSError if it is not one."""
    path = directory / MANIFEST_FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{sanitize_text(directory)} holds no demonstrations: expected {MANIFEST_FILE} in it, got none. Write it "
            "with `manyview import-dataset`"
        )
    content = read_bounded(path, max_bytes=MAX_JSON_BYTES)
    try:
        return DemonstrationsManifest.from_plain(parse_json(content), hashlib.sha256(content).hexdigest())
    except (ValueError, TypeError, KeyError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is invalid: {sanitize_text(reason)}. Import the dataset again") from None


def load_demonstrations(
    directory: Path,
    views: Sequence[View],
    *,
    action_size: int,
    frame_stack: int,
    state_vectors: Sequence[StateVector] = (),
    state_stack: int = 1,
    storage: Path | None = None,
) -> Demonstrations:
    """Load a folder of demonstrations into a replay buffer for a run.

    Args:
        directory: Folder of `DemonstrationWriter`.
        views: Views of the run, which those of the folder must equal, as the vectors and actions.
        action_size: Numbers of an action.
        frame_stack: As for `ReplayBuffer`; so are the arguments after it.
        state_vectors: State vectors of the run.
        state_stack: Consecutive values of the state vectors.
        storage: Directory for memory-mapped files; None for memory.

    Raises:
        ValueError: The folder does not fit the run, or a file in it is not the one that was written.
        OSError: A file cannot be read.

    """
    manifest = read_manifest(directory)
    try:
        manifest.check_fits(views, state_vectors, action_size)
        replay = ReplayBuffer(
            views,
            action_shape=(action_size,),
            capacity=manifest.capacity,
            frame_stack=frame_stack,
            directory=storage,
            state_vectors=state_vectors,
            state_stack=state_stack,
        )
        for ref in manifest.segments:
            read_segment(directory, ref).unpack_into(replay.steps, replay.rings, oldest=0)
        records = replay.steps[: manifest.steps]
        check_self_contained(records)
        if (np.abs(records["action"]) > 1).any():
            raise SegmentError("invalid step: expected actions in [-1, 1]")
    except ValueError as error:
        raise ValueError(f"demonstrations in {sanitize_text(directory)}: {error}") from None
    # The empty step after the last one shows samplers that the last episode has ended.
    replay.inserted = manifest.steps + 1
    return Demonstrations(replay, manifest)


def _describe_view(view: View) -> dict[str, Any]:
    derived = {} if view.derived_from is None else {"derived_from": view.derived_from, "fill": list(view.fill)}
    return {"name": view.name, "height": view.height, "width": view.width, "channels": view.channels, **derived}


def _parse_view(plain: Mapping[str, Any]) -> View:
    sizes = [plain[name] for name in ("height", "width", "channels")]
    if not all(is_count(size, min_value=1) for size in sizes):
        raise ValueError(f"invalid view: expected sizes from 1, got {sizes}")
    derived_from = plain.get("derived_from")
    fill = tuple(int(value) for value in plain.get("fill", (0, 0, 0)))
    camera = None if derived_from is None else str(derived_from)
    return View(str(plain["name"]), sizes[0], sizes[1], sizes[2], derived_from=camera, fill=fill)


def _format_views(views: Sequence[View]) -> str:
    return ", ".join(
        f"{view.name} {view.height}x{view.width}x{view.channels}"
        + ("" if view.derived_from is None else f" (of {view.derived_from}, fill {list(view.fill)})")
        for view in views
    )


def _format_vectors(vectors: Sequence[StateVector]) -> str:
    return ", ".join(f"{vector.name} {vector.size}" for vector in vectors) or "none"
