"""A ring of single frames. Stacks, next states and n-step returns are built by index when they are sampled."""

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
from manyview.data.validation import ERROR_SOURCE, TransitionCheck
from manyview.envs.contract import make_contract_error
from manyview.envs.views import Observation, View
from manyview.utils.json_io import is_count

BLOCK_BYTES = 2**20
"""Stacks are built so many bytes at a time: what a derived view is cut out of is then still in the core's cache.

With fewer, the two threads of a batch would wait for the interpreter: measured twice as slow with 32 kB.
"""


class ReplayBuffer:
    """The last `capacity` steps, in memory or, with a `directory`, in mapped files.

    Steps are numbered from 0; step `i` lies in slot `i % capacity`. `start_episode` and `add` take observations of
    single frames; `get_observation` returns the newest one stacked, as the policy takes it. Episodes may start in the
    middle and break off, as chunks from several actors do: nothing is built across the gap between two.

    The files have no names in the folder and vanish with the process, however it ends: keeping steps for longer is
    the work of `SegmentLog`, which reads `steps` and `frames`; the small rest is in `get_state()`.
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
            raise ValueError(f"frame_stack must be from 1 to {MAX_AGE}, got {frame_stack}")
        if capacity < frame_stack:
            raise ValueError(f"capacity must be at least frame_stack, which is {frame_stack}, got {capacity}")
        self.capacity, self.frame_stack, self.inserted = capacity, frame_stack, 0
        needed_bytes = compute_buffer_bytes(
            self.views, action_shape=action_shape, action_dtype=action_dtype, capacity=capacity
        )
        check_replay_fits(needed_bytes, capacity=capacity, directory=directory)
        record = make_step_dtype(self.views, action_shape, action_dtype)
        self.steps = _allocate_ring(directory, (capacity,), record)
        """What is small: a record for each slot, with the fields of `layout.make_step_dtype`."""
        self.frames = [
            _allocate_ring(directory, (capacity, *stored_frame_shape(view)), np.dtype(np.uint8)) for view in self.views
        ]
        """Of each view: a frame for each slot, pixels of a camera and bits of a derived view."""
        self._transition_check = TransitionCheck(self.views, action=record["action"])
        self._derived_by_camera = [
            (index, [other for other, view in enumerate(self.views) if view.derived_from == camera.name])
            for index, camera in enumerate(self.views)
            if camera.derived_from is None
        ]  # each camera, and the views derived from it
        self._stack_offsets = np.arange(frame_stack - 1, -1, -1)  # how far each frame of a stack lies back

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    @property
    def nbytes(self) -> int:
        """What it takes when it is full."""
        return self.steps.nbytes + sum(ring.nbytes for ring in self.frames)

    def get_state(self) -> dict[str, Any]:
        """All but the steps that are final, which a log keeps: how many there are, and the newest one."""
        slot = (self.inserted - 1) % self.capacity
        newest = {name: part.copy() for name, part in self._get_step_bytes(slot).items()}
        return {"inserted": self.inserted, "layout": self._describe(), "newest": newest}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state. The steps before the newest, the caller puts back into `steps` and `frames`."""
        if state["layout"] != self._describe():
            raise ValueError(f"the state is of a replay of {state['layout']}, this one is of {self._describe()}")
        inserted, newest = state["inserted"], state["newest"]
        if not is_count(inserted):
            raise ValueError(f"steps are counted from 0, got {inserted!r}")
        for name, part in self._get_step_bytes((inserted - 1) % self.capacity).items():
            if (newest[name].shape, newest[name].dtype) != (part.shape, part.dtype):
                raise ValueError(f"{name} of the newest step has another shape or type than in this replay")
            part[...] = newest[name]
        check_records(self.steps[(inserted - 1) % self.capacity, None])
        self.inserted = inserted

    def _get_step_bytes(self, slot: int) -> dict[str, NDArray[np.uint8]]:
        """The bytes of a step where they lie: its record, and a frame of each view."""
        frames = {f"frame/{view.name}": ring[slot] for view, ring in zip(self.views, self.frames, strict=True)}
        return {"record": self.steps[slot : slot + 1].view(np.uint8), **frames}

    def _describe(self) -> dict[str, Any]:
        """What two replays have in common if the steps of one are to be those of the other."""
        steps = self.steps
        record = [[name, str(steps[name].dtype), *steps[name].shape[1:]] for name in steps.dtype.names or ()]
        frames = {view.name: list(ring.shape[1:]) for view, ring in zip(self.views, self.frames, strict=True)}
        return {"capacity": self.capacity, "frame_stack": self.frame_stack, "step": record, "frames": frames}

    def start_episode(self, observation: Observation) -> None:
        """Start an episode with its first observation, of single frames.

        An unfinished episode before it ends with its newest observation.
        """
        stored = self._transition_check.validate_observation(observation)
        self._write_step(stored.frames, stored.mask, np.zeros(len(self.views), np.uint8))

    def add(
        self, action: Any, reward: float, terminated: bool, observation: Observation, *, repeated: bool = False
    ) -> None:
        """Append one transition from the newest observation; `observation` has single frames.

        `repeated` marks an observation that an environment shows again because no camera sees anything
        (`info["blind"]`). Invalid values raise `ContractError` with the field's name, and nothing is stored.
        """
        reason = self._explain_no_episode()
        if reason is not None:
            raise make_contract_error(
                ERROR_SOURCE,
                "add",
                "an episode that is running",
                f"{reason}: call start_episode() with the next observation",
            )
        outcome = self._transition_check.validate_outcome(action, reward, terminated)
        stored = self._transition_check.validate_observation(observation)
        newest = (self.inserted - 1) % self.capacity
        for name, value in outcome.items():
            self.steps[name][newest] = value
        self._write_step(stored.frames, stored.mask, self._compute_ages(stored.mask), repeated=repeated)

    def get_observation(self) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the newest observation with its frames stacked: views [1, V, C * frame_stack, H, W], mask [1, V]."""
        return self.stack_frames(np.array([self.inserted - 1]))

    def split_episode(self) -> None:
        """Continue the episode in a new piece, which starts with the frames of the newest stack.

        They are stored again, as steps without an action, so that nothing in the new piece refers to older steps.
        """
        newest = self.inserted - 1
        record = self.steps[newest % self.capacity]
        mask = record["mask"].copy()
        age = np.minimum(record["age"], self.frame_stack - 1) * mask
        for frames_back in range(int(age.max()), -1, -1):
            present = mask & (age >= frames_back)
            slot = (newest - frames_back) % self.capacity
            frames = [ring[slot] * shown for ring, shown in zip(self.frames, present, strict=True)]
            self._write_step(frames, present, (age - frames_back) * present)

    def _explain_no_episode(self) -> str | None:
        """None while an episode is running."""
        if self.inserted == 0:
            return "nothing begun yet"
        before, newest = self.steps[[(self.inserted - 2) % self.capacity, (self.inserted - 1) % self.capacity]]
        if newest["repeated"]:
            return "an episode that ended when no camera saw anything"
        ended = self.inserted > 1 and before["acted"] and before["terminated"]
        return "the world at its end" if ended else None

    def _compute_ages(self, mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Return the ages of the views [V] in the step that follows the newest one."""
        before = self.steps[(self.inserted - 1) % self.capacity]
        persisted = mask & before["mask"]
        return np.where(persisted, np.minimum(before["age"], MAX_AGE - 1) + 1, 0).astype(np.uint8)

    def _write_step(
        self,
        frames: Sequence[NDArray[np.uint8]],
        mask: NDArray[np.bool_],
        age: NDArray[np.uint8],
        *,
        repeated: bool = False,
    ) -> None:
        slot = self.inserted % self.capacity
        for ring, frame in zip(self.frames, frames, strict=True):
            ring[slot] = frame
        for name, value in (("mask", mask), ("age", age), ("acted", False), ("repeated", repeated)):
            self.steps[name][slot] = value
        self.inserted += 1

    def allocate_stacks(self, batch_size: int) -> NDArray[np.uint8]:
        """Room for `stack_frames` of so many steps: [V, B, S, C, H, W], S for the frames of a stack."""
        view = self.views[0]
        return np.empty(
            (len(self.views), batch_size, self.frame_stack, view.channels, view.height, view.width), np.uint8
        )

    def stack_frames(
        self, indices: NDArray[np.int64], *, out: NDArray[np.uint8] | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """The observations of these steps: views [B, V, C * frame_stack, H, W], mask [B, V].

        They are written to `out`, if given, which has the views first: what `allocate_stacks` gives. The views that are
        returned look at it in the order they have.
        """
        out = self.allocate_stacks(len(indices)) if out is None else out
        slots = indices % self.capacity
        # Whole records: taking a field out of the ring would first copy that field of all of it.
        steps = self.steps.take(slots)
        if steps["repeated"].any():
            slots = slots - steps["repeated"]
            steps = self.steps.take(slots, mode="wrap")
        # A stack never reaches back over the moment its view appeared: see FrameStack.
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
        """The stacks of a camera, and of the views derived from it while its frames are still in the core's cache."""
        frames, slots = self.frames[camera], index[camera].reshape(-1)
        # A derived view that has been absent more recently than its camera is of other moments.
        aligned = [view for view in derived if np.array_equal(index[view], index[camera])]
        cuts = [
            (self.frames[view].take(slots, axis=0), self.views[view].fill, flatten_pixels(out[view]))
            for view in aligned
        ]
        images = out[camera].reshape(-1, *frames.shape[1:])
        pixels = flatten_pixels(images)
        block_size = max(1, BLOCK_BYTES // frames[0].nbytes) if cuts else len(slots)
        for start in range(0, len(slots), block_size):
            block = slice(start, start + block_size)
            # "clip" cuts off nothing here, but without it numpy copies twice.
            frames.take(slots[block], axis=0, out=images[block], mode="clip")
            for bits, fill, target in cuts:
                apply_bits(pixels[block], bits[block], fill, out=target[block])
        for view in set(derived).difference(aligned):
            slots = index[view].reshape(-1)
            bits, fill = self.frames[view].take(slots, axis=0), self.views[view].fill
            apply_bits(flatten_pixels(frames.take(slots, axis=0)), bits, fill, out=flatten_pixels(out[view]))


def _allocate_ring(directory: Path | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if directory is None:
        return np.zeros(shape, dtype)  # the system gives the pages when they are written
    directory.mkdir(parents=True, exist_ok=True)
    size = int(np.prod(shape)) * dtype.itemsize
    with TemporaryFile(dir=directory) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a disk that is full later would kill the process
        return np.memmap(file, dtype, "w+", shape=shape).view(np.ndarray)
