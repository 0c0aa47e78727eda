"""Wrappers that enforce the environment contract (`envs.contract`) in both directions.

Every environment that `manyview.make` or `manyview.wrap` returns has both: `OutputValidator` directly around the
environment, so that all other wrappers process valid data, and `CallValidator` outermost, for calls and actions.
"""

import math
from typing import Any, cast

import gymnasium as gym

from manyview.envs.contract import (
    describe,
    make_contract_error,
    validate_action,
    validate_flag,
    validate_info,
    validate_observation,
    validate_reward,
)
from manyview.envs.suite import DEFAULT_RENDER_SCALES
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

RESET_ATTEMPTS = 3
"""Resets tried before an environment without any present view is rejected."""


class OutputValidator(ViewWrapper):
    """Validates everything the environment returns before other wrappers process it."""

    def __init__(self, env: gym.Env[Observation, Any], *, name: str | None = None) -> None:
        super().__init__(env)
        self._space = get_dict_space(env)
        self.name = name or str(env)
        declared: Any = make_observation_space(self.views, vectors=self.state_vectors)
        if list(declared.items()) != list(self._space.items()):  # also the order, which is that of the mask
            raise make_contract_error(
                self.name, "observation space", f"the space of single frames, {declared}", str(self._space)
            )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        returned = self.env.reset(seed=seed, options=options)
        observation, info = self._unpack_result(returned, "result of reset()", ("observation", "info"))
        return validate_observation(observation, self._space, self.name), validate_info(info, self.name)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        parts = ("observation", "reward", "terminated", "truncated", "info")
        returned = self._unpack_result(self.env.step(action), "result of step()", parts)
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
    """Validates calls and actions, truncates blind episodes and reports episode statistics.

    An episode in which no view is present is truncated with `info["blind"]`, since no policy can act on it.

    The last step of an episode has `info["episode"]`: the undiscounted and unscaled `return`, the agent `steps`, the
    simulator `frames` (environments with several per step report them in `info["frames"]`); if views were `absent`,
    the number of such observations per view; and the `physics_error` that ended it, if any.
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
        """The last observation with at least one present view."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        if self._closed:
            raise make_contract_error(
                self.name, "reset", "an open environment", "a call after close(). Make a new environment."
            )
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
        reasons = f": {info['camera_failures']}" if "camera_failures" in info else ""
        got = f"no view in {RESET_ATTEMPTS} resets{reasons}"
        raise make_contract_error(self.name, "reset", "at least one view present", got)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise make_contract_error(
                self.name, "step", "a running episode", "a step before reset or after the end. Call reset()."
            )
        action = validate_action(action, self.action_space, self.name)
        self._running = False  # a step that raises ends the episode
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
        """Return the properties that a snapshot and the environment to restore must share."""
        wrappers, env = [], cast("gym.Env[Any, Any]", self)
        while isinstance(env, gym.Wrapper):
            wrappers.append(type(env).__name__)
            env = env.env
        shapes = {name: list(part.shape or ()) for name, part in get_dict_space(self).spaces.items()}
        description = {"wrappers": [*wrappers, type(env).__name__], "shapes": shapes, "task": self.metadata.get("task")}
        if (settings := self.metadata.get("settings")) is not None:
            description["render_quality"] = settings.render_quality
            # Left out if it follows from the quality, as in snapshots from before the setting.
            if settings.render_scale != DEFAULT_RENDER_SCALES.get(settings.render_quality):
                description["render_scale"] = settings.render_scale
        return description

    def snapshot(self) -> State:
        running = {
            "return": self._episode_return,
            "steps": self._episode_steps,
            "frames": int(self._episode_frames),
            "absent": dict(self._absent_counts),
            "running": self._running,
        }
        return {"env": super().snapshot(), "episode": running, "spec": self._describe()}

    def restore(self, state: State) -> Observation:
        self._running = False  # a rejected snapshot ends the episode
        expected = self._describe()
        if state.get("spec") != expected:
            raise NotRestorable(
                f"{self.name}: snapshot does not fit this environment: expected {expected}, "
                f"got {sanitize_text(state.get('spec'))}"
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
        raise NotRestorable(
            f"{self.name}: invalid episode in the snapshot: expected a finite return, steps, frames, absent counts and "
            f"running, got {sanitize_text(state['episode'])}"
        )

    def close(self) -> None:
        self._running, self._closed = False, True
        super().close()
