"""Environment contract: checks of actions, observations, rewards and infos.

`wrappers.validation` applies these checks around every environment that `manyview.make` or `manyview.wrap` returns.
A violation raises `ContractError` in the step where it occurs, with the environment, the field, the expected and the
actual value. Deviations that are corrected instead of rejected:

- an action that exceeds its bounds by rounding (less than 1e-5 of their width) is clipped;
- an action of another float or integer type is converted to the type of the space if only precision is lost;
- a numpy reward or flag becomes a Python float or bool;
- the pixels of an absent view become zeros;
- error texts in `info` become one line of printable text, and keys reserved by manyview or Gymnasium are removed.
"""

import math
from pathlib import Path
from traceback import extract_tb, format_exception_only
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.envs.views import MASK, Observation
from manyview.utils.text import sanitize_text

PACKAGE = Path(__file__).parents[1]
ACTION_TOLERANCE = 1e-5
"""Fraction of the width of its bounds by which an action may exceed them."""
MAX_FRAMES = 10_000
"""Maximum simulator frames of one agent step.

More is an error: frames decide the end of a run and name its checkpoints.
"""
MAX_STATE_VALUE = 1e12
"""Largest absolute value in a state vector: sums of squares stay finite in float32."""
RESERVED_INFO_KEYS = frozenset(
    f"{mark}{name}" for mark in ("", "_") for name in ("episode", "final_info", "final_obs")
) | {"_frames"}
"""Info keys that manyview and vector environments use.

The `episode` of Gymnasium's `RecordEpisodeStatistics` has a different format.
"""


class ContractError(ValueError):
    """Invalid action, observation, reward or call: a broken contract."""


class EnvError(RuntimeError):
    """The code of an environment raised an exception or tried to exit the process."""


class Terminated(SystemExit):
    """A signal terminates the process during a call."""


def is_foreign(error: BaseException | None) -> bool:
    """Return whether the code of an environment raised `error`.

    False for the checks of manyview and for signals.
    """
    known_errors = ContractError | EnvError | Terminated
    return isinstance(error, Exception | SystemExit | GeneratorExit) and not isinstance(error, known_errors)


def make_env_error(env: str, call: str, error: BaseException) -> EnvError:
    """Build a one-line error with the call, the exception it raised, and the source line."""
    message = sanitize_text(" ".join(format_exception_only(error)).strip())
    return EnvError(f"{env}: {call} raised {message}{format_location(error)}")


def format_location(error: BaseException) -> str:
    """Return ` (file:line)` of the last source line outside of manyview, or of the last one; "" without a traceback."""
    frames = extract_tb(error.__traceback__)
    if not frames:
        return ""
    # Python's import machinery is frozen code.
    others = [
        frame
        for frame in frames
        if not Path(frame.filename).is_relative_to(PACKAGE) and not frame.filename.startswith("<frozen ")
    ]
    last = (others or frames)[-1]
    return f" ({sanitize_text(last.filename)}:{last.lineno})"


def make_contract_error(env: str, field: str, expected: str, got: str) -> ContractError:
    """Build a `ContractError` with the expected and the actual value of a field."""
    return ContractError(f"{env}: {field}: expected {expected}, got {got}")


def describe(value: Any) -> str:
    """Return type and shape of an array, or type and shortened `repr` of any other value."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"{type(value).__name__} {sanitize_text(repr(value), max_chars=80)}"


def validate_action(action: Any, space: spaces.Space[Any], env: str) -> Any:
    """Return the action in the type of its space; `ContractError` if it is invalid."""
    if isinstance(space, spaces.Discrete):
        return _validate_discrete(action, space, env)
    if isinstance(space, spaces.Box):
        return _validate_box(action, space, env)
    if not space.contains(action):
        raise make_contract_error(env, "action", str(space), describe(action))
    return action


def validate_reward(reward: Any, env: str) -> float:
    """Return the reward as a float; `ContractError` unless it is a finite number."""
    value = _to_array_or_none(reward)
    if value is None or value.shape != () or value.dtype.kind not in "fiub":
        raise make_contract_error(env, "reward", "a finite number", describe(reward))
    if not math.isfinite(value):
        raise make_contract_error(env, "reward", "a finite number", str(value))
    return float(value)


def validate_flag(flag: Any, field: str, env: str) -> bool:
    """Return the flag as a bool; `ContractError` for any other type."""
    if not isinstance(flag, bool | np.bool_):
        raise make_contract_error(env, field, "True or False", describe(flag))
    return bool(flag)


def validate_info(info: Any, env: str) -> dict[str, Any]:
    """Return a copy of the info without reserved keys and with sanitized error texts.

    Raises `ContractError` for invalid `frames`, `camera_failures` or `blind`.
    """
    if not isinstance(info, dict):
        raise make_contract_error(env, "info", "a dict", describe(info))
    checked: dict[str, Any] = {name: value for name, value in info.items() if name not in RESERVED_INFO_KEYS}
    if "frames" in checked:
        checked["frames"] = _validate_frames(checked["frames"], env)
    if "physics_error" in checked and (reason := checked.pop("physics_error")) is not None:
        checked["physics_error"] = sanitize_text(reason)
    if "camera_failures" in checked:
        failures = checked["camera_failures"]
        if not isinstance(failures, dict):
            raise make_contract_error(env, 'info["camera_failures"]', "a dict of reasons by camera", describe(failures))
        checked["camera_failures"] = {sanitize_text(name): sanitize_text(reason) for name, reason in failures.items()}
    if "blind" in checked:
        checked["blind"] = validate_flag(checked["blind"], 'info["blind"]', env)
    return checked


def validate_observation(returned: Any, space: spaces.Dict, env: str) -> Observation:
    """Return the observation with absent views zeroed.

    Raises `ContractError` if it does not fit the space.
    """
    if not isinstance(returned, dict):
        raise make_contract_error(env, "observation", "a dict of views and their mask", describe(returned))
    observation: Observation = returned
    if observation.keys() != space.spaces.keys():
        missing, unknown = space.spaces.keys() - observation.keys(), observation.keys() - space.spaces.keys()
        problems = [f"no {name!r}" for name in sorted(missing)] + [
            f"unknown {name!r}" for name in sorted(map(str, unknown))
        ]
        raise make_contract_error(env, "observation", f"exactly {list(space.spaces)}", ", ".join(problems))
    for name, part in space.spaces.items():
        value = observation[name]
        if not isinstance(value, np.ndarray) or value.shape != part.shape or value.dtype != part.dtype:
            got = describe_wrong_image(value, part.shape) if part.dtype == np.uint8 else describe(value)
            raise make_contract_error(env, _format_field(name, part), f"{part.dtype} of shape {part.shape}", got)
        # NaN fails the comparison.
        if part.dtype == np.float32 and not (np.abs(value) <= MAX_STATE_VALUE).all():
            expected = f"finite numbers of at most {MAX_STATE_VALUE:g}"
            raise make_contract_error(env, _format_field(name, part), expected, _format_vector(value))
    present = observation[MASK].tolist()  # a list is faster than an array for a few numbers
    if present.count(1) < len(present):
        if present.count(1) + present.count(0) < len(present):
            raise make_contract_error(env, "mask", "zeros and ones", str(present))
        absent = [name for name, is_present in zip(_list_view_names(space), present, strict=True) if not is_present]
        observation = {**observation, **{name: np.zeros(space.spaces[name].shape or (), np.uint8) for name in absent}}
    return observation


def describe_wrong_image(value: Any, shape: tuple[int, ...] | None) -> str:
    """Describe a value that is not a uint8 image of `shape`, with a hint how to convert it."""
    text = describe(value)
    if not isinstance(value, np.ndarray):
        return text
    if shape is not None and value.ndim == len(shape) == 3 and value.shape != shape:
        if shape == (*value.shape[1:], value.shape[0]):
            text += " (channels first: transpose it to height, width, channels, or Camera(..., channels_first=True))"
        elif value.shape[2] == 4 and shape[2] == 3:
            text += " (with an alpha channel: image[..., :3] drops it)"
        elif value.shape[2] == shape[2]:
            text += " (wrong size: resize it)"
    if value.dtype.kind == "f":
        bad = int(np.count_nonzero(~np.isfinite(value)))
        text += f" ({bad} of its values are not finite)" if bad else " (scale it to 0..255 and convert it to uint8)"
    elif value.dtype != np.uint8:
        text += " (convert it to uint8)"
    return text


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
    # Compare before the conversion, which turns -1 into 255 in a uint8 space.
    if not ((value >= space.low) & (value <= space.high) & np.isfinite(value)).all():
        width = space.high.astype(np.float64) - space.low
        slack = np.where(np.isfinite(width), ACTION_TOLERANCE * width, 0.0)
        # NaN fails both comparisons.
        if not ((value >= space.low - slack) & (value <= space.high + slack) & np.isfinite(value)).all():
            bounds = f"from {_format_vector(space.low)} to {_format_vector(space.high)}"
            raise make_contract_error(env, "action", f"finite values {bounds}", _format_vector(value))
        value = np.clip(value, space.low, space.high)
    if value.dtype.kind == "f" and space.dtype is not None and space.dtype.kind in "iu" and (value % 1 != 0).any():
        raise make_contract_error(env, "action", f"integers ({space.dtype})", str(value))
    return value.astype(space.dtype, copy=False)


def _format_vector(value: NDArray[Any]) -> str:
    """Format an action on one line; numpy breaks it at 75 characters."""
    return np.array2string(value, max_line_width=10_000)


def _to_array_or_none(value: Any) -> NDArray[Any] | None:
    """Return `value` as an array; None if numpy cannot convert it (unequal rows)."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _validate_frames(frames: Any, env: str) -> int:
    if type(frames) is int and 1 <= frames <= MAX_FRAMES:  # fast path: called at every step
        return frames
    value = _to_array_or_none(frames)
    if value is None or value.shape != () or value.dtype.kind not in "iu" or not 1 <= int(value) <= MAX_FRAMES:
        raise make_contract_error(env, 'info["frames"]', f"an integer from 1 to {MAX_FRAMES:,}", describe(frames))
    return int(value)


def _list_view_names(space: spaces.Dict) -> list[str]:
    return [name for name, part in space.spaces.items() if name != MASK and part.dtype == np.uint8]


def _format_field(name: str, part: spaces.Space[Any]) -> str:
    if name == MASK:
        return name
    return f"view {name!r}" if part.dtype == np.uint8 else f"state vector {name!r}"
