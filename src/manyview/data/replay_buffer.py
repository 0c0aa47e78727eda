"""Replay buffer of single uint8 frames.

Frame stacks, next states and n-step returns are assembled by index when a batch is sampled.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from manyview.data.derived_views import apply_bits, flatten_pixels
from manyview.data.layout import (
    MAX_AGE,
    check_records,
    check_replay_fits,
    compute_buffer_bytes,
    make_step_dtype,
    stored_frame_shape,
    validate_replay_views,
)
from manyview.data.validation import ERROR_SOURCE, StoredObservation, TransitionCheck
from manyview.envs.contract import make_contract_error
from manyview.envs.views import Observation, View
from manyview.utils.json_io import is_count

BLOCK_BYTES = 2**20
"""Bytes of camera frames stacked at a time: derived views are made while the frames are in the core's cache.

Smaller blocks make the two threads of a batch wait for the interpreter lock: 32 kB measured twice as slow.
"""


class ReplayBuffer:
    """Replay buffer of the last `capacity` steps, in memory or memory-mapped in a `directory`.

    Steps are numbered from 0; step `i` is in slot `i % capacity`. `start_episode` starts an episode with its first
    observation, `add` appends a transition. Episodes may also start in the middle and break off, as chunks from several
    actors do: no stack or n-step window crosses the gap between two episodes.

    The files are unnamed and disappear with the process. `SegmentLog` persists steps: it reads `steps` and `frames`;
    the remaining state is in `get_state()`.
    """

    def __init__(
        self,
        views: Sequence[View],
        *,
        action_shape: tuple[int, ...],
        action_dtype: DTypeLike = np.float32,
        capacity: int,
        frame_stack: int,
        directory: Path | None = None,
    ) -> None:
        self.views = validate_replay_views(views)
        if not 1 <= frame_stack <= MAX_AGE:
            raise ValueError(f"invalid frame_stack: expected 1 to {MAX_AGE}, got {frame_stack}")
        if capacity < frame_stack:
            raise ValueError(f"invalid capacity: expected at least {frame_stack} (frame_stack), got {capacity}")
        self.capacity, self.frame_stack, self.inserted = capacity, frame_stack, 0
        needed_bytes = compute_buffer_bytes(
            self.views, action_shape=action_shape, action_dtype=action_dtype, capacity=capacity
        )
        check_replay_fits(needed_bytes, capacity=capacity, directory=directory)
        record = make_step_dtype(self.views, action_shape, action_dtype)
        self.steps = _allocate_ring(directory, (capacity,), record)
        """One record per slot, with the fields of `layout.make_step_dtype`."""
        self.frames = [
            _allocate_ring(directory, (capacity, *stored_frame_shape(view)), np.dtype(np.uint8)) for view in self.views
        ]
        """Per view, one frame per slot: pixels of a camera, bits of a derived view."""
        self._transition_check = TransitionCheck(self.views, frame_stack=frame_stack, action=record["action"])
        self._derived_by_camera = [
            (index, [other for other, view in enumerate(self.views) if view.derived_from == camera.name])
            for index, camera in enumerate(self.views)
            if camera.derived_from is None
        ]  # camera index, indices of the views derived from it
        self._stack_offsets = np.arange(frame_stack - 1, -1, -1)  # steps back of each frame in a stack, oldest first

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""
        return self.steps.nbytes + sum(ring.nbytes for ring in self.frames)

    def get_state(self) -> dict[str, Any]:
        """Return the state beside the segment log: number of steps, layout, newest step."""
        slot = (self.inserted - 1) % self.capacity
        newest = {name: part.copy() for name, part in self._get_step_bytes(slot).items()}
        return {"inserted": self.inserted, "layout": self._describe(), "newest": newest}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_state`.

        The caller restores the earlier steps in `steps` and `frames`. Raises ValueError if the state is invalid or its
        layout differs.
        """
        if state["layout"] != self._describe():
            raise ValueError(
                f"state does not fit this replay buffer: expected layout {self._describe()}, got {state['layout']}"
            )
        inserted, newest = state["inserted"], state["newest"]
        if not is_count(inserted):
            raise ValueError(f"invalid replay buffer state: inserted: expected an integer from 0, got {inserted!r}")
        for name, part in self._get_step_bytes((inserted - 1) % self.capacity).items():
            if (newest[name].shape, newest[name].dtype) != (part.shape, part.dtype):
                raise ValueError(
                    f"newest step does not fit this replay buffer: {name}: expected {[*part.shape, str(part.dtype)]}, "
                    f"got {[*newest[name].shape, str(newest[name].dtype)]}"
                )
            part[...] = newest[name]
        check_records(self.steps[(inserted - 1) % self.capacity, None])
        self.inserted = inserted

    def _get_step_bytes(self, slot: int) -> dict[str, NDArray[np.uint8]]:
        """Return views of the stored bytes of a step: its record, and one frame per view."""
        frames = {f"frame/{view.name}": ring[slot] for view, ring in zip(self.views, self.frames, strict=True)}
        return {"record": self.steps[slot : slot + 1].view(np.uint8), **frames}

    def _describe(self) -> dict[str, Any]:
        """Return the layout, which must be equal to exchange steps with another replay buffer."""
        steps = self.steps
        record = [[name, str(steps[name].dtype), *steps[name].shape[1:]] for name in steps.dtype.names or ()]
        frames = {view.name: list(ring.shape[1:]) for view, ring in zip(self.views, self.frames, strict=True)}
        return {"capacity": self.capacity, "frame_stack": self.frame_stack, "step": record, "frames": frames}

    def start_episode(self, observation: Observation) -> None:
        """Start an episode with its first observation; an unfinished previous episode ends.

        If the stack holds earlier frames, the episode is already running: they are stored too, as steps without an
        action. Raises `ContractError`, which names the field, if the observation is invalid; nothing is then stored.
        """
        stored = self._transition_check.validate_observation(observation)
        ages = stored.compute_ages()
        history = [(frames_back, stored.mask & (ages >= frames_back)) for frames_back in range(int(ages.max()), -1, -1)]
        for frames_back, mask in history:
            self._transition_check.check_derived_views(stored, mask, frames_back=frames_back)
        for position, (frames_back, mask) in enumerate(history):
            self._write_step(stored, mask, self._compute_ages(mask, follows=position > 0), frames_back=frames_back)

    def add(self, action: Any, reward: float, terminated: bool, observation: Observation) -> None:
        """Append one transition: action and outcome at the newest step, and the next observation.

        Raises `ContractError`, which names the field, if anything is invalid; nothing of the step is then stored.
        """
        reason = self._explain_no_episode()
        if reason is not None:
            raise make_contract_error(
                ERROR_SOURCE,
                "add",
                "a running episode",
                f"{reason}. Call start_episode() with the next observation.",
            )
        outcome = self._transition_check.validate_outcome(action, reward, terminated)
        stored = self._transition_check.validate_observation(observation)
        age = self._compute_ages(stored.mask, follows=True)
        repeated = not self._is_continuation(stored, age)
        if repeated and not self._is_repeat(stored):
            raise make_contract_error(
                ERROR_SOURCE,
                "observation",
                "the frame stacks of the previous step, advanced by one frame",
                "different earlier frames. Add every step; call start_episode() after a reset or for another stream.",
            )
        newest = (self.inserted - 1) % self.capacity
        for name, value in outcome.items():
            self.steps[name][newest] = value
        self._write_step(stored, stored.mask, age, repeated=repeated)

    def _explain_no_episode(self) -> str | None:
        """Return the reason why no episode is running, or None."""
        if self.inserted == 0:
            return "no episode yet"
        previous, newest = self.steps[[(self.inserted - 2) % self.capacity, (self.inserted - 1) % self.capacity]]
        if newest["repeated"]:
            return "an episode that ended because no camera was present"
        terminated = self.inserted > 1 and previous["acted"] and previous["terminated"]
        return "a terminated episode" if terminated else None

    def _compute_ages(self, mask: NDArray[np.bool_], *, follows: bool) -> NDArray[np.uint8]:
        """Return the ages [V] of the next step's views."""
        previous = self.steps[(self.inserted - 1) % self.capacity]
        persisted = mask & previous["mask"] & follows
        return np.where(persisted, np.minimum(previous["age"], MAX_AGE - 1) + 1, 0).astype(np.uint8)

    def _is_continuation(self, observation: StoredObservation, age: NDArray[np.uint8]) -> bool:
        """Return True if the earlier frames are those that the next step's stack would have."""
        slot = self.inserted % self.capacity
        for view in np.flatnonzero(observation.mask).tolist():
            stored, ring, oldest = observation.stored[view], self.frames[view], int(age[view])
            for frames_back in range(1, observation.num_frames):
                expected = (
                    ring[slot - min(frames_back, oldest)] if oldest else stored[-1]
                )  # a negative slot counts from the end
                if not np.array_equal(stored[-1 - frames_back], expected):
                    return False
        return True

    def _is_repeat(self, observation: StoredObservation) -> bool:
        """Return True if the observation repeats the newest step, as when no camera is present."""
        views, mask = self.stack_frames(np.array([self.inserted - 1]))
        images = np.stack(observation.images).reshape(views.shape[1:])
        return np.array_equal(mask[0], observation.mask) and np.array_equal(views[0], images)

    def _write_step(
        self,
        observation: StoredObservation,
        mask: NDArray[np.bool_],
        age: NDArray[np.uint8],
        *,
        frames_back: int = 0,
        repeated: bool = False,
    ) -> None:
        slot = self.inserted % self.capacity
        for ring, stored in zip(self.frames, observation.stored, strict=True):
            ring[slot] = stored[-1 - frames_back]
        for name, value in (("mask", mask), ("age", age), ("acted", False), ("repeated", repeated)):
            self.steps[name][slot] = value
        self.inserted += 1

    def allocate_stacks(self, batch_size: int) -> NDArray[np.uint8]:
        """Allocate the output of `stack_frames`, [V, B, S, C, H, W] with S frames per stack."""
        view = self.views[0]
        return np.empty(
            (len(self.views), batch_size, self.frame_stack, view.channels, view.height, view.width), np.uint8
        )

    def stack_frames(
        self, indices: NDArray[np.int64], *, out: NDArray[np.uint8] | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the observations of steps: views [B, V, C * frame_stack, H, W], mask [B, V].

        `out`, if given, is the memory to write to, as from `allocate_stacks`; the result is a transposed view of it.
        """
        out = self.allocate_stacks(len(indices)) if out is None else out
        slots = indices % self.capacity
        # Whole records: indexing a single field first would copy that field of the entire ring.
        steps = self.steps.take(slots)
        if steps["repeated"].any():
            slots = slots - steps["repeated"]
            steps = self.steps.take(slots, mode="wrap")
        # A stack never contains frames from before its view appeared: see FrameStack.
        index = (
            slots[:, None] - np.minimum(self._stack_offsets, steps["age"].T[..., None])
        ) % self.capacity  # [V, B, S]
        for camera, derived in self._derived_by_camera:
            self._fill_stacks(camera, derived, index, out)
        views = out.transpose(1, 0, 2, 3, 4, 5)
        if not steps["mask"].all():
            views[~steps["mask"]] = 0
        return views.reshape(len(indices), len(self.views), -1, *out.shape[-2:]), steps["mask"]

    def _fill_stacks(self, camera: int, derived: list[int], index: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Write the stacks of a camera and, while its frames are cached, of its derived views."""
        frames, slots = self.frames[camera], index[camera].reshape(-1)
        # A derived view that was absent more recently than its camera stacks frames of other steps.
        aligned = [view for view in derived if np.array_equal(index[view], index[camera])]
        derived_stacks = [
            (self.frames[view].take(slots, axis=0), self.views[view].fill, flatten_pixels(out[view]))
            for view in aligned
        ]
        images = out[camera].reshape(-1, *frames.shape[1:])
        pixels = flatten_pixels(images)
        block_size = max(1, BLOCK_BYTES // frames[0].nbytes) if derived_stacks else len(slots)
        for start in range(0, len(slots), block_size):
            block = slice(start, start + block_size)
            # mode="clip" clips nothing here, but the default mode copies twice.
            frames.take(slots[block], axis=0, out=images[block], mode="clip")
            for bits, fill, target in derived_stacks:
                apply_bits(pixels[block], bits[block], fill, out=target[block])
        for view in set(derived).difference(aligned):
            slots = index[view].reshape(-1)
            bits, fill = self.frames[view].take(slots, axis=0), self.views[view].fill
            apply_bits(flatten_pixels(frames.take(slots, axis=0)), bits, fill, out=flatten_pixels(out[view]))


def _allocate_ring(directory: Path | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if directory is None:
        return np.zeros(shape, dtype)  # pages are allocated when written
    directory.mkdir(parents=True, exist_ok=True)
    size = int(np.prod(shape)) * dtype.itemsize
    with TemporaryFile(dir=directory) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # otherwise a full disk would later kill the process
        return np.memmap(file, dtype, "w+", shape=shape).view(np.ndarray)
