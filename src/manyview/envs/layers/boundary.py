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
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from manyview.envs.views import (
    MASK,
    NotRestorable,
    Observation,
    State,
    ViewWrapper,
    get_dict_space,
    make_observation_space,
)
from manyview.utils.text import sanitize_text

ACTION_TOLERANCE = 1e-5
RESET_ATTEMPTS = 3
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


class OutputValidator(ViewWrapper):
    """The inner side: whatever the environment returns is checked before anything of ours works on it."""

    def __init__(self, env: gym.Env[Observation, Any], *, name: str | None = None) -> None:
        super().__init__(env)
        self._space = get_dict_space(env)
        self.name = name or str(env)
        declared: Any = make_observation_space(self.views)
        if list(declared.items()) != list(self._space.items()):  # the order too: it is that of the mask
            raise make_contract_error(
                self.name, "observation space", f"that of single frames of its views, {declared}", str(self._space)
            )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        returned = self.env.reset(seed=seed, options=options)
        observation, info = self._unpack_result(returned, "what reset() returns", ("observation", "info"))
        return validate_observation(observation, self._space, self.name), validate_info(info, self.name)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        parts = ("observation", "reward", "terminated", "truncated", "info")
        returned = self._unpack_result(self.env.step(action), "what step() returns", parts)
        observation, reward, terminated, truncated, info = returned
        return (
            validate_observation(observation, self._space, self.name),
            validate_reward(reward, self.name),
            validate_flag(terminated, "terminated", self.name),
            validate_flag(truncated, "truncated", self.name),
            validate_info(info, self.name),
        )

    def _unpack_result(self, returned: Any, field: str, parts: tuple[str, ...]) -> tuple[Any, ...]:
        if not isinstance(returned, tuple) or len(returned) != len(parts):
            got = f"{len(returned)} parts" if isinstance(returned, tuple) else describe(returned)
            raise make_contract_error(self.name, field, f"({', '.join(parts)})", got)
        return returned

    def restore(self, state: State) -> Observation:
        return validate_observation(super().restore(state), self._space, self.name)


class CallValidator(ViewWrapper):
    """The outer side: checks calls and actions, ends blind episodes, keeps an episode's sums before anyone scales them.

    The last step of an episode carries `info["episode"]`: its undiscounted `return`, its `steps` and its simulator
    `frames` (an environment that takes several a step says so in `info["frames"]`), and if views were `absent`, in how
    many observations each one; and the `physics_error` that ended it, if one did.
    """

    def __init__(self, env: gym.Env[Observation, Any], *, name: str | None = None) -> None:
        super().__init__(env)
        self.name = name or str(env)
        self._episode_return = 0.0
        self._episode_steps = 0
        self._episode_frames = 0
        self._absent_counts: dict[str, int] = {}
        self._running = self._closed = False
        self._last_observation: Observation = {}
        """The last observation that showed anything."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        if self._closed:
            raise make_contract_error(self.name, "reset", "an open environment", "a call after close(); make another")
        self._episode_return, self._episode_steps, self._episode_frames, self._absent_counts, self._running = (
            0.0,
            0,
            0,
            {},
            False,
        )
        for _ in range(RESET_ATTEMPTS):
            observation, info = self.env.reset(seed=seed, options=options)
            self._count_absent(observation)
            if observation[MASK].any():
                self._running, self._last_observation = True, observation
                return observation, info
            seed = None
        why = f": {info['camera_failures']}" if "camera_failures" in info else ""
        got = f"no view at all in {RESET_ATTEMPTS} resets{why}"
        raise make_contract_error(self.name, "reset", "at least one view present", got)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise make_contract_error(
                self.name, "step", "a running episode", "a step before reset or after the end; call reset()"
            )
        action = validate_action(action, self.action_space, self.name)
        self._running = False  # a step that breaks leaves no episode that could go on
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._count_absent(observation)
        if observation[MASK].any():
            self._last_observation = observation
        else:
            observation = {name: part.copy() for name, part in self._last_observation.items()}
            truncated, info = True, {**info, "blind": True}
        reward = float(reward)
        self._episode_return += reward
        self._episode_steps += 1
        self._episode_frames += info.get("frames", 1)
        self._running = not (terminated or truncated)
        if not self._running:
            episode: dict[str, Any] = {
                "return": self._episode_return,
                "steps": self._episode_steps,
                "frames": self._episode_frames,
            }
            if self._absent_counts:
                episode["absent"] = self._absent_counts
            if "physics_error" in info:
                episode["physics_error"] = info["physics_error"]
            info = {**info, "episode": episode}
        return observation, reward, terminated, truncated, info

    def _count_absent(self, observation: Observation) -> None:
        if not observation[MASK].all():
            for view, present in zip(self.views, observation[MASK].tolist(), strict=True):
                if not present:
                    self._absent_counts[view.name] = self._absent_counts.get(view.name, 0) + 1

    def _describe(self) -> State:
        """What a snapshot must have in common with the environment it is put into."""
        wrappers, env = [], cast("gym.Env[Any, Any]", self)
        while isinstance(env, gym.Wrapper):
            wrappers.append(type(env).__name__)
            env = env.env
        shapes = {name: list(part.shape or ()) for name, part in get_dict_space(self).spaces.items()}
        description = {"layers": [*wrappers, type(env).__name__], "shapes": shapes, "task": self.metadata.get("task")}
        if (settings := self.metadata.get("settings")) is not None:
            description["render_quality"] = settings.render_quality
        return description

    def snapshot(self) -> State:
        running = {
            "return": self._episode_return,
            "steps": self._episode_steps,
            "frames": int(self._episode_frames),
            "absent": dict(self._absent_counts),
            "running": self._running,
        }
        return {"env": super().snapshot(), "episode": running, "of": self._describe()}

    def restore(self, state: State) -> Observation:
        self._running = False  # a refused snapshot leaves no episode that could go on
        expected = self._describe()
        if state.get("of") != expected:
            raise NotRestorable(
                f"{self.name}: a snapshot of {state.get('of')} does not fit an environment of {expected}"
            )
        self._last_observation = super().restore(state["env"])
        match state["episode"]:
            case {
                "return": float(total),
                "steps": int(steps),
                "frames": int(frames),
                "absent": dict(absent),
                "running": bool(running),
            } if math.isfinite(total) and all(isinstance(count, int) for count in absent.values()):
                self._episode_return, self._episode_steps, self._episode_frames, self._absent_counts = (
                    total,
                    steps,
                    frames,
                    dict(absent),
                )
                self._running = running
                return self._last_observation
        raise NotRestorable(f"{self.name}: what the snapshot says of the episode makes no sense")

    def close(self) -> None:
        self._running, self._closed = False, True
        super().close()
