"""A ring of single frames. Stacks, next states and n-step returns are built by index when they are sampled."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from manyview.data.cutting import cut_out, flattened
from manyview.data.entry import NAME, Entry, EntryCheck
from manyview.data.layout import MAX_AGE, bytes_needed, check_records, frame_shape, replayable, step_record
from manyview.data.room import check_room
from manyview.envs.layers.boundary import refuse
from manyview.envs.views import Observation, View
from manyview.utils.json_io import is_count

BLOCK_BYTES = 2**20
"""Stacks are built so many bytes at a time: what a derived view is cut out of is then still in the core's cache.

With fewer, the two threads of a batch would wait for the interpreter: measured twice as slow with 32 kB.
"""


class Replay:
    """The last `capacity` steps, in memory or, with a `folder`, in mapped files.

    Steps are numbered from 0 for as long as the replay lives; number `i` lies in slot `i % capacity`. `begin` opens an
    episode with its first observation, `add` says what was done there and what was seen next. Episodes may also begin
    in the middle and break off, as pieces from several actors do: nothing is ever built across the gap between two.

    The files have no names in the folder and vanish with the process, however it ends: keeping steps for longer is
    the work of `SegmentLog`, which reads `steps` and `frames`; the small rest is in `state()`.
    """

    def __init__(
        self,
        views: Sequence[View],
        *,
        action_shape: tuple[int, ...],
        action_dtype: DTypeLike = np.float32,
        capacity: int,
        frame_stack: int,
        folder: Path | None = None,
    ) -> None:
        self.views = replayable(views)
        if not 1 <= frame_stack <= MAX_AGE:
            raise ValueError(f"frame_stack must be from 1 to {MAX_AGE}, got {frame_stack}")
        if capacity < frame_stack:
            raise ValueError(f"capacity must be at least frame_stack, which is {frame_stack}, got {capacity}")
        self.capacity, self.frame_stack, self.inserted = capacity, frame_stack, 0
        needed = bytes_needed(self.views, action_shape=action_shape, action_dtype=action_dtype, capacity=capacity)
        check_room(needed, capacity=capacity, folder=folder)
        record = step_record(self.views, action_shape, action_dtype)
        self.steps = _ring(folder, (capacity,), record)
        """What is small: a record for each slot, with the fields of `layout.step_record`."""
        self.frames = [_ring(folder, (capacity, *frame_shape(view)), np.dtype(np.uint8)) for view in self.views]
        """Of each view: a frame for each slot, pixels of a camera and bits of a derived view."""
        self._check = EntryCheck(self.views, frame_stack=frame_stack, action=record["action"])
        self._families = [
            (place, [other for other, view in enumerate(self.views) if view.derived_from == camera.name])
            for place, camera in enumerate(self.views)
            if camera.derived_from is None
        ]  # each camera, and the views derived from it
        self._back = np.arange(frame_stack - 1, -1, -1)  # how far each frame of a stack lies back

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    @property
    def nbytes(self) -> int:
        """What it takes when it is full."""
        return self.steps.nbytes + sum(ring.nbytes for ring in self.frames)

    def state(self) -> dict[str, Any]:
        """All but the steps that are final, which a log keeps: how many there are, and the newest one."""
        slot = (self.inserted - 1) % self.capacity
        newest = {name: part.copy() for name, part in self._parts(slot).items()}
        return {"inserted": self.inserted, "of": self._described(), "newest": newest}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state. The steps before the newest, the caller puts back into `steps` and `frames`."""
        if state["of"] != self._described():
            raise ValueError(f"the state is of a replay of {state['of']}, this one is of {self._described()}")
        inserted, newest = state["inserted"], state["newest"]
        if not is_count(inserted):
            raise ValueError(f"steps are counted from 0, got {inserted!r}")
        for name, part in self._parts((inserted - 1) % self.capacity).items():
            if (newest[name].shape, newest[name].dtype) != (part.shape, part.dtype):
                raise ValueError(f"{name} of the newest step has another shape or type than in this replay")
            part[...] = newest[name]
        check_records(self.steps[(inserted - 1) % self.capacity, None])
        self.inserted = inserted

    def _parts(self, slot: int) -> dict[str, NDArray[np.uint8]]:
        """The bytes of a step where they lie: its record, and a frame of each view."""
        frames = {f"frame/{view.name}": ring[slot] for view, ring in zip(self.views, self.frames, strict=True)}
        return {"record": self.steps[slot : slot + 1].view(np.uint8), **frames}

    def _described(self) -> dict[str, Any]:
        """What two replays have in common if the steps of one are to be those of the other."""
        steps = self.steps
        record = [[name, str(steps[name].dtype), *steps[name].shape[1:]] for name in steps.dtype.names or ()]
        frames = {view.name: list(ring.shape[1:]) for view, ring in zip(self.views, self.frames, strict=True)}
        return {"capacity": self.capacity, "frame_stack": self.frame_stack, "step": record, "frames": frames}

    def begin(self, observation: Observation) -> None:
        """Open an episode. The one before, if it was not finished, ends with what was last seen of it.

        Earlier frames in the stack mean that the episode is already in its middle. They are kept too, as steps at which
        nothing is known to have been done.
        """
        entry = self._check.observation(observation)
        ages = entry.ages()
        history = [(back, entry.mask & (ages >= back)) for back in range(int(ages.max()), -1, -1)]
        for back, mask in history:
            self._check.derived_views(entry, mask, back=back)
        for follows, (back, mask) in enumerate(history):
            self._write(entry, mask, self._aged(mask, follows=follows > 0), back=back)

    def add(self, action: Any, reward: float, terminated: bool, observation: Observation) -> None:
        """What was done at the newest observation, what it paid, whether the world ended, and what was seen next.

        Whatever is wrong raises `ContractError`, which names the field, and nothing of the step enters.
        """
        over = self._why_nothing_follows()
        if over is not None:
            raise refuse(NAME, "add", "an episode that is running", f"{over}: call begin() with the next observation")
        outcome = self._check.outcome(action, reward, terminated)
        entry = self._check.observation(observation)
        age = self._aged(entry.mask, follows=True)
        repeated = not self._pushed(entry, age)
        if repeated and not self._shows(entry):
            raise refuse(
                NAME,
                "observation",
                "the stacks of the step before with one frame more",
                "other earlier frames: add every step, and call begin() after a reset or for another stream of steps",
            )
        newest = (self.inserted - 1) % self.capacity
        for name, value in outcome.items():
            self.steps[name][newest] = value
        self._write(entry, entry.mask, age, repeated=repeated)

    def _why_nothing_follows(self) -> str | None:
        """None while an episode is running."""
        if self.inserted == 0:
            return "nothing begun yet"
        before, newest = self.steps[[(self.inserted - 2) % self.capacity, (self.inserted - 1) % self.capacity]]
        if newest["repeated"]:
            return "an episode that ended when no camera saw anything"
        ended = self.inserted > 1 and before["acted"] and before["terminated"]
        return "the world at its end" if ended else None

    def _aged(self, mask: NDArray[np.bool_], *, follows: bool) -> NDArray[np.uint8]:
        """The ages of the next step's views."""
        before = self.steps[(self.inserted - 1) % self.capacity]
        lasted = mask & before["mask"] & follows
        return np.where(lasted, np.minimum(before["age"], MAX_AGE - 1) + 1, 0).astype(np.uint8)

    def _pushed(self, entry: Entry, age: NDArray[np.uint8]) -> bool:
        """Whether the earlier frames of the entry are those which the replay would show in the next step's stack."""
        slot = self.inserted % self.capacity
        for place in np.flatnonzero(entry.mask).tolist():
            kept, ring, oldest = entry.kept[place], self.frames[place], int(age[place])
            for back in range(1, entry.frames):
                before = ring[slot - min(back, oldest)] if oldest else kept[-1]  # a negative slot counts from the end
                if not np.array_equal(kept[-1 - back], before):
                    return False
        return True

    def _shows(self, entry: Entry) -> bool:
        """Whether the newest step shows exactly this: what an environment gives again when no camera sees anything."""
        views, mask = self.stacks(np.array([self.inserted - 1]))
        pictures = np.stack(entry.pictures).reshape(views.shape[1:])
        return np.array_equal(mask[0], entry.mask) and np.array_equal(views[0], pictures)

    def _write(
        self, entry: Entry, mask: NDArray[np.bool_], age: NDArray[np.uint8], *, back: int = 0, repeated: bool = False
    ) -> None:
        slot = self.inserted % self.capacity
        for ring, kept in zip(self.frames, entry.kept, strict=True):
            ring[slot] = kept[-1 - back]
        for name, value in (("mask", mask), ("age", age), ("acted", False), ("repeated", repeated)):
            self.steps[name][slot] = value
        self.inserted += 1

    def new_stacks(self, rows: int) -> NDArray[np.uint8]:
        """Room for `stacks` of so many steps: [V, B, S, C, H, W], S for the frames of a stack."""
        shape = self.views[0]
        return np.empty((len(self.views), rows, self.frame_stack, shape.channels, shape.height, shape.width), np.uint8)

    def stacks(
        self, numbers: NDArray[np.int64], *, out: NDArray[np.uint8] | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """The observations of these steps: views [B, V, C * frame_stack, H, W], mask [B, V].

        They are written to `out`, if given, which has the views first: what `new_stacks` gives. The views that are
        returned look at it in the order they have.
        """
        out = self.new_stacks(len(numbers)) if out is None else out
        slots = numbers % self.capacity
        # Whole records: taking a field out of the ring would first copy that field of all of it.
        steps = self.steps.take(slots)
        if steps["repeated"].any():
            slots = slots - steps["repeated"]
            steps = self.steps.take(slots, mode="wrap")
        # A stack never reaches back over the moment its view appeared: see FrameStack.
        index = (slots[:, None] - np.minimum(self._back, steps["age"].T[..., None])) % self.capacity  # [V, B, S]
        for camera, derived in self._families:
            self._fill(camera, derived, index, out)
        views = out.transpose(1, 0, 2, 3, 4, 5)
        if not steps["mask"].all():
            views[~steps["mask"]] = 0
        return views.reshape(len(numbers), len(self.views), -1, *out.shape[-2:]), steps["mask"]

    def _fill(self, camera: int, derived: list[int], index: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """The stacks of a camera, and of the views derived from it while its frames are still in the core's cache."""
        frames, moments = self.frames[camera], index[camera].reshape(-1)
        # A derived view that has been absent more recently than its camera is of other moments.
        alike = [place for place in derived if np.array_equal(index[place], index[camera])]
        cuts = [
            (self.frames[place].take(moments, axis=0), self.views[place].fill, flattened(out[place])) for place in alike
        ]
        pictures = out[camera].reshape(-1, *frames.shape[1:])
        pixels = flattened(pictures)
        many = max(1, BLOCK_BYTES // frames[0].nbytes) if cuts else len(moments)
        for begin in range(0, len(moments), many):
            block = slice(begin, begin + many)
            # "clip" cuts off nothing here, but without it numpy copies twice.
            frames.take(moments[block], axis=0, out=pictures[block], mode="clip")
            for bits, fill, target in cuts:
                cut_out(pixels[block], bits[block], fill, out=target[block])
        for place in set(derived).difference(alike):
            moments = index[place].reshape(-1)
            bits, fill = self.frames[place].take(moments, axis=0), self.views[place].fill
            cut_out(flattened(frames.take(moments, axis=0)), bits, fill, out=flattened(out[place]))


def _ring(folder: Path | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if folder is None:
        return np.zeros(shape, dtype)  # the system gives the pages when they are written
    folder.mkdir(parents=True, exist_ok=True)
    size = int(np.prod(shape)) * dtype.itemsize
    with TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a disk that is full later would kill the process
        return np.memmap(file, dtype, "w+", shape=shape).view(np.ndarray)
