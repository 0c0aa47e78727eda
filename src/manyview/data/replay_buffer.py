"""Replay buffer of single uint8 frames and state vectors.

Stacks, next states and n-step returns are assembled by index when a batch is sampled.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from manyview.data.derived_views import apply_bits, flatten_pixels
from manyview.data.layout import (
    MAX_AGE,
    FeatureShape,
    allocate_ring,
    check_features,
    check_records,
    check_replay_fits,
    compute_buffer_bytes,
    make_step_dtype,
    stored_frame_shape,
    validate_feature_shape,
    validate_replay_views,
)
from manyview.data.state_vectors import count_numbers, stack_vectors
from manyview.data.validation import ERROR_SOURCE, StoredObservation, TransitionCheck, validate_features
from manyview.envs.contract import make_contract_error
from manyview.envs.views import Observation, StateVector, View
from manyview.utils.json_io import is_count

BLOCK_BYTES = 2**20
"""Bytes of camera frames stacked at a time: derived views are made while the frames are in the core's cache.

Smaller blocks make the two threads of a batch wait for the interpreter lock: 32 kB measured twice as slow.
"""

FeatureFn = Callable[[NDArray[np.uint8], NDArray[np.bool_]], NDArray[np.float32]]
"""Features [B, G, P] of observations: views [B, V, C, H, W] with stacked frames, mask [B, V]."""


class ReplayBuffer:
    """Replay buffer of the last `capacity` steps, in memory or memory-mapped in a `directory`.

    Steps are numbered from 0; step `i` lies in slot `i % capacity`. `start_episode` and `add` take observations of
    single frames; `get_observation` returns the newest one stacked, as the policy takes it. Episodes may start in the
    middle and break off, as chunks from several actors do: nothing is built across the gap between two.

    With a `feature_shape`, each step has features beside it: `feature_fn` computes them once, when the step is stored.
    Set it before the first step. Restored and received steps bring their features along.

    The files are unnamed and disappear with the process. `SegmentLog` persists steps: it reads `steps` and `rings`; the
    remaining state is in `get_state()`.
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
        feature_shape: FeatureShape | None = None,
        state_vectors: Sequence[StateVector] = (),
        state_stack: int = 1,
    ) -> None:
        self.views, self.state_vectors = validate_replay_views(views), tuple(state_vectors)
        for name, size in (("frame_stack", frame_stack), ("state_stack", state_stack)):
            if not 1 <= size <= MAX_AGE:
                raise ValueError(f"invalid {name}: expected 1 to {MAX_AGE}, got {size}")
        self.capacity, self.frame_stack, self.state_stack, self.inserted = capacity, frame_stack, state_stack, 0
        if capacity < self.longest_stack:
            raise ValueError(f"invalid capacity: expected at least {self.longest_stack} (frame_stack), got {capacity}")
        vector_size = count_numbers(self.state_vectors)
        needed_bytes = compute_buffer_bytes(
            self.views,
            action_shape=action_shape,
            action_dtype=action_dtype,
            capacity=capacity,
            feature_shape=feature_shape and validate_feature_shape(feature_shape, len(self.views)),
            vector_size=vector_size,
        )
        check_replay_fits(needed_bytes, capacity=capacity, directory=directory)
        record = make_step_dtype(self.views, action_shape, action_dtype, vector_size)
        self.steps = allocate_ring(directory, (capacity,), record)
        """One record per slot, with the fields of `layout.make_step_dtype`."""
        self.frames = [
            allocate_ring(directory, (capacity, *stored_frame_shape(view)), np.dtype(np.uint8)) for view in self.views
        ]
        """Per view, one frame per slot: pixels of a camera, bits of a derived view."""
        self.features: NDArray[np.float32] | None = feature_shape and allocate_ring(
            directory, (capacity, *feature_shape), np.dtype(np.float32)
        )
        """Features [capacity, G, P], or None."""
        self.feature_fn: FeatureFn | None = None
        self._transition_check = TransitionCheck(self.views, action=record["action"], state_vectors=self.state_vectors)
        self._derived_by_camera = [
            (index, [other for other, view in enumerate(self.views) if view.derived_from == camera.name])
            for index, camera in enumerate(self.views)
            if camera.derived_from is None
        ]  # camera index, indices of the views derived from it
        self._stack_offsets = np.arange(frame_stack - 1, -1, -1)  # steps back of each frame in a stack, oldest first

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    @property
    def longest_stack(self) -> int:
        """Steps that an observation refers to: of its frames or its state vectors, whichever are more."""
        return max(self.frame_stack, self.state_stack) if self.state_vectors else self.frame_stack

    @property
    def rings(self) -> list[NDArray[Any]]:
        """Arrays beside `steps` with one row per slot: the frames of each view, then the features if stored."""
        return [*self.frames, *([] if self.features is None else [self.features])]

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""
        return self.steps.nbytes + sum(ring.nbytes for ring in self.rings)

    def get_state(self) -> dict[str, Any]:
        """Return the state beside the segment log: number of steps, layout, newest step."""
        slot = (self.inserted - 1) % self.capacity
        newest = {name: part.copy() for name, part in self._get_step_bytes(slot).items()}
        return {"inserted": self.inserted, "layout": self._describe(), "newest": newest}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_state`.

        The caller restores the earlier steps in `steps` and `rings`. Raises ValueError if the state is invalid or its
        layout differs, and then changes nothing.
        """
        if state["layout"] != self._describe():
            raise ValueError(
                f"state does not fit this replay buffer: expected layout {self._describe()}, got {state['layout']}"
            )
        inserted, newest = state["inserted"], state["newest"]
        if not is_count(inserted):
            raise ValueError(f"invalid replay buffer state: inserted: expected an integer from 0, got {inserted!r}")
        stored = self._get_step_bytes((inserted - 1) % self.capacity)
        for name, part in stored.items():
            if (newest[name].shape, newest[name].dtype) != (part.shape, part.dtype):
                raise ValueError(
                    f"newest step does not fit this replay buffer: {name}: expected {[*part.shape, str(part.dtype)]}, "
                    f"got {[*newest[name].shape, str(newest[name].dtype)]}"
                )
        check_records(newest["record"].view(self.steps.dtype))
        if self.features is not None:
            check_features(newest["features"].view(np.float32))
        for name, part in stored.items():
            part[...] = newest[name]
        self.inserted = inserted

    def _get_step_bytes(self, slot: int) -> dict[str, NDArray[np.uint8]]:
        """Return views of the stored bytes of a step: its record, one frame per view, its features."""
        frames = {f"frame/{view.name}": ring[slot] for view, ring in zip(self.views, self.frames, strict=True)}
        features = {} if self.features is None else {"features": self.features[slot].view(np.uint8)}
        return {"record": self.steps[slot : slot + 1].view(np.uint8), **frames, **features}

    def _describe(self) -> dict[str, Any]:
        """Return the layout, which must be equal to exchange steps with another replay buffer."""
        steps = self.steps
        record = [[name, str(steps[name].dtype), *steps[name].shape[1:]] for name in steps.dtype.names or ()]
        frames = {view.name: list(ring.shape[1:]) for view, ring in zip(self.views, self.frames, strict=True)}
        layout = {"capacity": self.capacity, "frame_stack": self.frame_stack, "step": record, "frames": frames}
        if self.state_vectors:
            names = [[vector.name, vector.size] for vector in self.state_vectors]
            layout |= {"state_vectors": names, "state_stack": self.state_stack}
        return layout if self.features is None else {**layout, "features": list(self.features.shape[1:])}

    def start_episode(self, observation: Observation) -> None:
        """Start an episode with its first observation, of single frames.

        An unfinished episode before it ends with its newest observation.
        """
        stored = self._transition_check.validate_observation(observation)
        self._write_step(stored, np.zeros(len(self.views), np.uint8))

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
                "a running episode",
                f"{reason}. Call start_episode() with the next observation.",
            )
        outcome = self._transition_check.validate_outcome(action, reward, terminated)
        stored = self._transition_check.validate_observation(observation)
        before = self.steps[(self.inserted - 1) % self.capacity]
        vector_age = min(int(before["vector_age"]), MAX_AGE - 1) + 1 if self.state_vectors else 0
        ages = self._compute_ages(stored.mask)
        self._write_step(stored, ages, vector_age, repeated=repeated, outcome=outcome)

    def get_observation(self) -> tuple[NDArray[Any], ...]:
        """Return the newest observation with its frames stacked: views [1, V, C * frame_stack, H, W], mask [1, V].

        With state vectors, they follow: [1, state_stack * D].
        """
        indices = np.array([self.inserted - 1])
        vectors = self.stack_vectors(indices)
        return (*self.stack_frames(indices), *(() if vectors is None else (vectors,)))

    def split_episode(self) -> None:
        """Continue the episode in a new piece, which starts with the frames of the newest stack.

        They are stored again, as steps without an action, so that nothing in the new piece refers to older steps.
        """
        newest = self.inserted - 1
        record = self.steps[newest % self.capacity]
        mask = record["mask"].copy()
        age = np.minimum(record["age"], self.frame_stack - 1) * mask
        vector_age = min(int(record["vector_age"]), self.state_stack - 1) if self.state_vectors else 0
        for frames_back in range(max(int(age.max()), vector_age), -1, -1):
            present = mask & (age >= frames_back)
            slot = (newest - frames_back) % self.capacity
            frames = [ring[slot] * shown for ring, shown in zip(self.frames, present, strict=True)]
            vectors = self.steps[slot]["vectors"].copy() if self.state_vectors else None
            stored = StoredObservation(present, frames, vectors)
            self._write_step(stored, (age - frames_back) * present, max(0, vector_age - frames_back))

    def _explain_no_episode(self) -> str | None:
        """Return the reason why no episode is running, or None."""
        if self.inserted == 0:
            return "no episode yet"
        previous, newest = self.steps[[(self.inserted - 2) % self.capacity, (self.inserted - 1) % self.capacity]]
        if newest["repeated"]:
            return "an episode that ended because no camera was present"
        terminated = self.inserted > 1 and previous["acted"] and previous["terminated"]
        return "a terminated episode" if terminated else None

    def _compute_ages(self, mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Return the ages of the views [V] in the step that follows the newest one."""
        before = self.steps[(self.inserted - 1) % self.capacity]
        persisted = mask & before["mask"]
        return np.where(persisted, np.minimum(before["age"], MAX_AGE - 1) + 1, 0).astype(np.uint8)

    def _write_step(
        self,
        stored: StoredObservation,
        age: NDArray[np.uint8],
        vector_age: int = 0,
        *,
        repeated: bool = False,
        outcome: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Write the next step, and the `outcome` of the action that led to it to the step before."""
        newest, slot = (self.inserted - 1) % self.capacity, self.inserted % self.capacity
        for ring, frame in zip(self.frames, stored.frames, strict=True):
            ring[slot] = frame
        fields = {"mask": stored.mask, "age": age, "repeated": repeated}
        if self.state_vectors:
            fields |= {"vectors": stored.vectors, "vector_age": vector_age}
        for name, value in fields.items():
            self.steps[name][slot] = value
        if self.features is not None:  # before the outcome: an error must not leave an action without its next step
            self.features[slot] = self._compute_features(self.inserted)
        for name, value in outcome.items():
            self.steps[name][newest] = value
        self.steps["acted"][slot] = False
        self.inserted += 1

    def recompute_newest_features(self) -> None:
        """Replace the features of the newest step after `feature_fn` has changed; nothing without features."""
        if self.features is not None:
            newest = self.inserted - 1
            self.features[newest % self.capacity] = self._compute_features(newest)

    def _compute_features(self, index: int) -> NDArray[np.float32]:
        """Return the features [G, P] of a step, which may be the one that is being written."""
        if self.features is None or self.feature_fn is None:
            raise RuntimeError("feature_fn is missing: expected a function, got None. Set it before the first step.")
        _, groups, size = self.features.shape
        return validate_features(self.feature_fn(*self.stack_frames(np.array([index]))), (groups, size))

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

    def stack_vectors(self, indices: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Return the stacked state vectors of steps [B, state_stack * D]; None without any."""
        return stack_vectors(self.steps, indices, state_stack=self.state_stack) if self.state_vectors else None

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
