"""The boundary: nothing wrong gets past it, in either direction.

Every environment that `manyview.make` or `manyview.wrap` returns has both sides of it: `OutputValidator` right around
the environment, so that none of our wrappers works on something wrong, and `CallValidator` outermost, which checks
what the caller does. What they refuse, they refuse in the same step, naming the environment, the field, what was
expected and what came. What they put right instead:

- an action that overshoots its bounds by rounding (less than 1e-5 of their width) is clipped;
- an action of another float or integer type is converted to the space's, if that loses nothing but digits;
- a reward or flag of numpy's becomes Python's;
- the pixels of an absent view become zeros;
- what `info` says of errors becomes one line of plain text, and names in it that are ours or Gymnasium's are left out;
- an episode in which no camera sees anything any more is truncated (`info["blind"]`), since no policy can go on.
"""

import math
from traceback import extract_tb, format_exception_only
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.envs.views import (
    MASK,
    Observation,
)
from manyview.utils.text import sanitize_text

ACTION_TOLERANCE = 1e-5
MAX_FRAMES = 10_000
"""Simulator frames of one agent step: more is a mistake, and would end or name a run by it."""
RESERVED_INFO_KEYS = frozenset(
    f"{mark}{name}" for mark in ("", "_") for name in ("episode", "final_info", "final_obs")
) | {"_frames"}
"""Ours, or a vector environment's. Gymnasium's `RecordEpisodeStatistics` has an `episode` of another form."""


class ContractError(ValueError):
    """An environment or its caller broke the contract: a wrong action, observation, reward, or call."""


class EnvError(RuntimeError):
    """An environment failed: its own code raised something, or tried to end the process."""


class Terminated(SystemExit):
    """A signal ends the process, in the midst of whatever it is doing."""


def is_foreign(error: BaseException | None) -> bool:
    """Whether an environment's own code raised this: not our checks, nor a signal."""
    ours = ContractError | EnvError | Terminated
    return isinstance(error, Exception | SystemExit | GeneratorExit) and not isinstance(error, ours)


def make_env_error(env: str, call: str, error: BaseException) -> EnvError:
    """Say in one line which call raised what, and where."""
    said = sanitize_text(" ".join(format_exception_only(error)).strip())
    places = extract_tb(error.__traceback__)
    where = f" ({sanitize_text(places[-1].filename)}:{places[-1].lineno})" if places else ""
    return EnvError(f"{env}: {call} raised {said}{where}")


def make_contract_error(env: str, field: str, expected: str, got: str) -> ContractError:
    return ContractError(f"{env}: {field}: expected {expected}, got {got}")


def describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"{type(value).__name__} {sanitize_text(repr(value), max_chars=80)}"


def validate_action(action: Any, space: spaces.Space[Any], env: str) -> Any:
    """The action as the environment takes it, or `ContractError`."""
    if isinstance(space, spaces.Discrete):
        return _validate_discrete(action, space, env)
    if isinstance(space, spaces.Box):
        return _validate_box(action, space, env)
    if not space.contains(action):
        raise make_contract_error(env, "action", str(space), describe(action))
    return action


def _validate_discrete(action: Any, space: spaces.Discrete, env: str) -> int:
    value = _to_array_or_none(action)
    if value is None or value.shape != () or value.dtype.kind not in "iu" or not space.contains(int(value)):
        last = int(space.start + space.n) - 1
        raise make_contract_error(env, "action", f"an integer from {int(space.start)} to {last}", describe(action))
    return int(value)


def _validate_box(action: Any, space: spaces.Box, env: str) -> Any:
    value = _to_array_or_none(action)
    if value is None or value.shape != space.shape or value.dtype.kind not in "fiu":
        raise make_contract_error(env, "action", f"numbers of shape {space.shape}", describe(action))
    # Compared as it came: converted first, -1 would be 255 in a space of bytes.
    if not ((value >= space.low) & (value <= space.high) & np.isfinite(value)).all():
        width = space.high.astype(np.float64) - space.low
        slack = np.where(np.isfinite(width), ACTION_TOLERANCE * width, 0.0)
        # Not-a-number fails both comparisons.
        if not ((value >= space.low - slack) & (value <= space.high + slack) & np.isfinite(value)).all():
            raise make_contract_error(env, "action", f"finite values from {space.low} to {space.high}", str(value))
        value = np.clip(value, space.low, space.high)
    if value.dtype.kind == "f" and space.dtype is not None and space.dtype.kind in "iu" and (value % 1 != 0).any():
        raise make_contract_error(env, "action", f"whole numbers ({space.dtype})", str(value))
    return value.astype(space.dtype, copy=False)


def _to_array_or_none(value: Any) -> NDArray[Any] | None:
    """None for what numpy cannot take, such as rows of different lengths."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def validate_reward(reward: Any, env: str) -> float:
    value = _to_array_or_none(reward)
    if value is None or value.shape != () or value.dtype.kind not in "fiub":
        raise make_contract_error(env, "reward", "a finite number", describe(reward))
    if not math.isfinite(value):
        raise make_contract_error(env, "reward", "a finite number", str(value))
    return float(value)


def validate_flag(flag: Any, field: str, env: str) -> bool:
    if not isinstance(flag, bool | np.bool_):
        raise make_contract_error(env, field, "True or False", describe(flag))
    return bool(flag)


def validate_info(info: Any, env: str) -> dict[str, Any]:
    if not isinstance(info, dict):
        raise make_contract_error(env, "info", "a dict", describe(info))
    taken: dict[str, Any] = {name: value for name, value in info.items() if name not in RESERVED_INFO_KEYS}
    if "frames" in taken:
        taken["frames"] = _validate_frames(taken["frames"], env)
    if "physics_error" in taken and (reason := taken.pop("physics_error")) is not None:
        taken["physics_error"] = sanitize_text(reason)
    if "camera_failures" in taken:
        failures = taken["camera_failures"]
        if not isinstance(failures, dict):
            raise make_contract_error(env, 'info["camera_failures"]', "a dict of reasons by camera", describe(failures))
        taken["camera_failures"] = {sanitize_text(name): sanitize_text(reason) for name, reason in failures.items()}
    if "blind" in taken:
        taken["blind"] = validate_flag(taken["blind"], 'info["blind"]', env)
    return taken


def _validate_frames(frames: Any, env: str) -> int:
    if type(frames) is int and 1 <= frames <= MAX_FRAMES:  # quickly: it comes with every step
        return frames
    value = _to_array_or_none(frames)
    if value is None or value.shape != () or value.dtype.kind not in "iu" or not 1 <= int(value) <= MAX_FRAMES:
        raise make_contract_error(env, 'info["frames"]', f"a whole number from 1 to {MAX_FRAMES:,}", describe(frames))
    return int(value)


def validate_observation(returned: Any, space: spaces.Dict, env: str) -> Observation:
    """The observation with absent views zeroed, or `ContractError`."""
    if not isinstance(returned, dict):
        raise make_contract_error(env, "observation", "a dict of views and their mask", describe(returned))
    observation: Observation = returned
    if observation.keys() != space.spaces.keys():
        missing, unknown = space.spaces.keys() - observation.keys(), observation.keys() - space.spaces.keys()
        faults = [f"no {name!r}" for name in sorted(missing)] + [
            f"unknown {name!r}" for name in sorted(map(str, unknown))
        ]
        raise make_contract_error(env, "observation", f"exactly {list(space.spaces)}", ", ".join(faults))
    for name, part in space.spaces.items():
        value = observation[name]
        if not isinstance(value, np.ndarray) or value.shape != part.shape or value.dtype != part.dtype:
            got = describe(value) if name == MASK else describe_wrong_image(value, part.shape)
            raise make_contract_error(env, _format_field(name), f"{part.dtype} of shape {part.shape}", got)
    present = observation[MASK].tolist()  # a handful of numbers: faster as a list
    if present.count(1) < len(present):
        if present.count(1) + present.count(0) < len(present):
            raise make_contract_error(env, "mask", "zeros and ones", str(present))
        absent = [name for name, is_present in zip(_list_view_names(space), present, strict=True) if not is_present]
        observation = {**observation, **{name: np.zeros(space.spaces[name].shape or (), np.uint8) for name in absent}}
    return observation


def _list_view_names(space: spaces.Dict) -> list[str]:
    return [name for name in space.spaces if name != MASK]


def _format_field(name: str) -> str:
    return name if name == MASK else f"view {name!r}"


def describe_wrong_image(value: Any, shape: tuple[int, ...] | None) -> str:
    """What came in place of a picture of this shape, and what would put it right."""
    text = describe(value)
    if not isinstance(value, np.ndarray):
        return text
    if shape is not None and value.ndim == len(shape) == 3 and value.shape != shape:
        if shape == (*value.shape[1:], value.shape[0]):
            text += " (channels first: transpose it to height, width, channels)"
        elif value.shape[2] == 4 and shape[2] == 3:
            text += " (with an alpha channel: picture[..., :3] drops it)"
        elif value.shape[2] == shape[2]:
            text += " (of another size: resize it)"
    if value.dtype.kind == "f":
        bad = int(np.count_nonzero(~np.isfinite(value)))
        text += f" ({bad} of its values are not finite)" if bad else " (scale it to 0..255 and convert it to uint8)"
    elif value.dtype != np.uint8:
        text += " (convert it to uint8)"
    return text
