"""Inputs and outputs of a policy, as a run's manifest and `policy.json` hold them.

`PolicySpec.from_plain` reads untrusted JSON: types, names and sizes are checked before anything is allocated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .image_resize import Aspect, resize_image

MASK = "mask"
"""Name of the mask of present views, in observations and among the network's inputs."""
ACTIONS = "actions"
"""Name of the network's first output."""
MEMORY, NEXT_MEMORY = "memory.", "next_memory."
"""Prefixes of the recurrent state among the network's inputs and outputs."""
MAX_ENTRIES, MAX_NAME_CHARS, MAX_SIDE, MAX_CHANNELS, MAX_STACK, MAX_SIZE = 64, 100, 8_192, 64, 64, 65_536
MAX_DISTORTION = 0.01
"""Largest relative difference between the proportions of a camera and those in training, as of rounded sizes."""
MAX_OBSERVATION_BYTES = 2**30
"""Upper limit of the stacked frames of one observation."""
Kind = Literal["uint8", "float32", "bool", "int64"]


@dataclass(frozen=True)
class ViewSpec:
    """A view as the network takes it: one frame in pixels."""

    name: str
    height: int
    width: int
    channels: int
    camera_size: tuple[int, int] | None = None
    """Height and width of the camera's images in training, before resizing; None if unknown."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels


@dataclass(frozen=True)
class VectorSpec:
    """A state vector, such as joint angles, in the units of the environment; or a part of the recurrent state."""

    name: str
    size: int


@dataclass(frozen=True)
class ActionBounds:
    """Continuous actions between `low` and `high`, in the units of the environment."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def center(self) -> NDArray[np.float64]:
        return (np.array(self.low) + self.high) / 2

    @property
    def half_range(self) -> NDArray[np.float64]:
        return (np.array(self.high) - self.low) / 2

    def normalize(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Return actions [..., A] in [-1, 1], as a training environment takes them that rescales actions."""
        return ((actions - self.center) / self.half_range).clip(-1, 1).astype(np.float32)

    def denormalize(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Return actions [..., A] of [-1, 1] in the units of the environment."""
        return (self.center + np.asarray(actions, np.float64).clip(-1, 1) * self.half_range).astype(np.float32)


@dataclass(frozen=True)
class DiscreteActions:
    """One of `num_actions` actions, numbered from 0."""

    num_actions: int


@dataclass(frozen=True)
class Resize:
    """Resizing of camera images: to squares of these sizes in pixels, one after another."""

    sizes: tuple[int, ...]
    aspect: Aspect = "crop"

    def apply(self, image: NDArray[np.uint8], view: ViewSpec) -> NDArray[np.uint8]:
        """Return a camera's image [H, W, C] as the network takes it.

        Raises `ValueError` if it shows another part of the scene than in training: other proportions, or fewer pixels
        than the view has.
        """
        height, width = image.shape[:2]
        expected = view.camera_size
        if expected is not None and (height, width) != expected:
            is_similar = abs(height * expected[1] - width * expected[0]) <= MAX_DISTORTION * height * expected[1]
            if not is_similar or min(height, width) < min(view.height, view.width):
                raise ValueError(
                    f"invalid image of view {view.name!r}: expected {expected[0]} x {expected[1]} pixels as in "
                    f"training, or the same proportions and at least {view.height} x {view.width}, got "
                    f"{height} x {width}"
                )
        for size in self.sizes:
            image = resize_image(image, size, self.aspect)
        return image


@dataclass(frozen=True)
class TensorSpec:
    """Shape without the batch, and type, of an input or output of the network."""

    shape: tuple[int, ...]
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """All that turns an observation into the network's inputs, and its output into an action."""

    views: tuple[ViewSpec, ...]
    vectors: tuple[VectorSpec, ...] = ()
    frame_stack: int = 1
    """Frames of each view that the network sees, oldest first."""
    vector_stack: int = 1
    """The same for state vectors."""
    actions: ActionBounds | DiscreteActions
    resize: Resize | None = None
    """Resizing of images that have another size than their view; None if only the exact size is valid."""
    memory: tuple[VectorSpec, ...] = ()
    """Parts of the recurrent state, zero at the start of an episode; empty for a feed-forward policy."""
    control_hz: float | None = None
    """Actions per second in training; None if the environment does not say."""

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """Inputs of the network in order: views, mask, state vectors, recurrent state."""
        return {
            **{view.name: TensorSpec((self.frame_stack, *view.shape), "uint8") for view in self.views},
            MASK: TensorSpec((len(self.views),), "bool"),
            **{vector.name: TensorSpec((self.vector_stack, vector.size), "float32") for vector in self.vectors},
            **{MEMORY + part.name: TensorSpec((part.size,), "float32") for part in self.memory},
        }

    @property
    def outputs(self) -> dict[str, TensorSpec]:
        """Outputs of the network in order: actions, recurrent state."""
        if isinstance(self.actions, DiscreteActions):
            actions = TensorSpec((), "int64")
        else:
            actions = TensorSpec((len(self.actions.low),), "float32")
        return {
            ACTIONS: actions,
            **{NEXT_MEMORY + part.name: TensorSpec((part.size,), "float32") for part in self.memory},
        }

    def to_plain(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Any) -> "PolicySpec":
        """Return the spec in untrusted JSON values; `ValueError` names the first invalid field."""
        fields = read_object(plain, "spec", cls.__dataclass_fields__)
        spec = cls(
            views=tuple(_read_view(view, f"views[{i}]") for i, view in enumerate(_read_list(fields, "views", 1))),
            vectors=_read_vectors(fields, "vectors"),
            frame_stack=_read_int(fields["frame_stack"], "frame_stack", MAX_STACK),
            vector_stack=_read_int(fields["vector_stack"], "vector_stack", MAX_STACK),
            actions=_read_actions(fields["actions"]),
            resize=None if fields["resize"] is None else _read_resize(fields["resize"]),
            memory=_read_vectors(fields, "memory"),
            control_hz=None if fields["control_hz"] is None else _read_float(fields["control_hz"], "control_hz"),
        )
        _check_names([view.name for view in spec.views] + [vector.name for vector in spec.vectors], "view or vector")
        _check_names([part.name for part in spec.memory], "memory")
        size = spec.frame_stack * sum(math.prod(view.shape) for view in spec.views)
        if size > MAX_OBSERVATION_BYTES:
            raise ValueError(f"views are too large: expected at most {MAX_OBSERVATION_BYTES:,} bytes, got {size:,}")
        return spec


def read_object(value: Any, name: str, keys: Any) -> dict[str, Any]:
    """Return a JSON object with exactly these keys; `ValueError` otherwise."""
    if not isinstance(value, dict) or value.keys() != set(keys):
        got = ", ".join(sorted(map(str, value))) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"invalid {name}: expected exactly {', '.join(keys)}, got {got[:200]}")
    return value


def _read_list(fields: Mapping[str, Any], name: str, min_length: int = 0, max_length: int = MAX_ENTRIES) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list | tuple) or not min_length <= len(value) <= max_length:
        got = f"{len(value)} entries" if isinstance(value, list | tuple) else type(value).__name__
        raise ValueError(f"invalid {name}: expected a list of {min_length} to {max_length} entries, got {got}")
    return list(value)


def _read_int(value: Any, name: str, maximum: int) -> int:
    if type(value) is not int or not 1 <= value <= maximum:
        raise ValueError(f"invalid {name}: expected an integer from 1 to {maximum:,}, got {_shorten(value)}")
    return value


def _read_float(value: Any, name: str) -> float:
    # abs() of a huge integer is exact, so the comparison also rejects numbers that no float holds.
    if type(value) not in (int, float) or not abs(value) <= 1e30:
        raise ValueError(f"invalid {name}: expected a finite number, got {_shorten(value)}")
    return float(value)


def _read_name(value: Any, name: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARS or not value.isprintable():
        raise ValueError(f"invalid {name}: expected 1 to {MAX_NAME_CHARS} printable characters, got {_shorten(value)}")
    return value


def _read_view(value: Any, name: str) -> ViewSpec:
    # The spec of a run that began before 0.1.0 has no camera size.
    known = {"camera_size": None, **value} if isinstance(value, Mapping) else value
    fields = read_object(known, name, ViewSpec.__dataclass_fields__)
    return ViewSpec(
        _read_name(fields["name"], f"{name}.name"),
        _read_int(fields["height"], f"{name}.height", MAX_SIDE),
        _read_int(fields["width"], f"{name}.width", MAX_SIDE),
        _read_int(fields["channels"], f"{name}.channels", MAX_CHANNELS),
        None if fields["camera_size"] is None else _read_size(fields, name),
    )


def _read_size(fields: Mapping[str, Any], name: str) -> tuple[int, int]:
    height, width = _read_list(fields, "camera_size", 2, 2)
    return _read_int(height, f"{name}.camera_size", MAX_SIDE), _read_int(width, f"{name}.camera_size", MAX_SIDE)


def _read_vectors(fields: Mapping[str, Any], name: str) -> tuple[VectorSpec, ...]:
    vectors = []
    for index, value in enumerate(_read_list(fields, name)):
        path = f"{name}[{index}]"
        vector = read_object(value, path, VectorSpec.__dataclass_fields__)
        size = _read_int(vector["size"], f"{path}.size", MAX_SIZE)
        vectors.append(VectorSpec(_read_name(vector["name"], f"{path}.name"), size))
    return tuple(vectors)


def _read_actions(value: Any) -> ActionBounds | DiscreteActions:
    if isinstance(value, dict) and "num_actions" in value:
        fields = read_object(value, "actions", DiscreteActions.__dataclass_fields__)
        return DiscreteActions(_read_int(fields["num_actions"], "actions.num_actions", MAX_SIZE))
    fields = read_object(value, "actions", ActionBounds.__dataclass_fields__)
    low, high = (
        tuple(_read_float(bound, f"actions.{name}") for bound in _read_list(fields, name, 1, MAX_SIZE))
        for name in ("low", "high")
    )
    if len(low) != len(high) or any(bottom >= top for bottom, top in zip(low, high, strict=True)):
        raise ValueError("invalid actions: expected as many low as high bounds, each low one below its high one")
    return ActionBounds(low, high)


def _read_resize(value: Any) -> Resize:
    fields = read_object(value, "resize", Resize.__dataclass_fields__)
    sizes = tuple(_read_int(size, "resize.sizes", MAX_SIDE) for size in _read_list(fields, "sizes", 1))
    if fields["aspect"] not in get_args(Aspect):
        expected = ", ".join(get_args(Aspect))
        raise ValueError(f"invalid resize.aspect: expected {expected}, got {_shorten(fields['aspect'])}")
    return Resize(sizes, fields["aspect"])


def _check_names(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names) or MASK in names:
        raise ValueError(f"invalid {what} names: expected every name once and not {MASK!r}, got {_shorten(names)}")


def _shorten(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge integer"
    return text if len(text) <= 80 else text[:77] + "..."
