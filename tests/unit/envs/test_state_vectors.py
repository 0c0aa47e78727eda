"""State vectors of environments: declaration, reading, validation, selection and stacking."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from manyview.envs import (
    MASK,
    ContractError,
    MultiView,
    NotRestorable,
    StateVector,
    get_state_vectors,
    make,
    make_vector,
    restore,
    snapshot,
    wrap,
)
from manyview.envs.testing import EnvironmentContract
from manyview.envs.views import MultiViewEnv, View
from manyview.envs.wrappers.observation import SelectStateVectors
from tests.support.state_vectors import NumberedEnv


class TestToldGoal(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> Any:
        return make("toy/told_goal_continuous", state=["clock", "goal"], state_stack=2)


class RobotEnv(gym.Env[Any, Any]):
    """Environment with vectors in a dict, or with a single vector as its observation."""

    def __init__(self, space: Any = None) -> None:
        vectors: dict[str, Any] = {
            "joints": spaces.Box(-9, 9, (3,), np.float64),
            "grip": spaces.Box(0, 255, (1,), np.uint8),
        }
        self.observation_space = space or spaces.Dict({**vectors, "image": spaces.Box(0, 255, (8, 8, 3), np.uint8)})
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.joints = np.zeros(3, np.float32)  # already float32: only an explicit copy protects an observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.joints[:] = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        self.joints += [1, 2, 0.5]
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> Any:
        image = np.random.default_rng(int(self.joints[0])).integers(256, size=(8, 8, 3), dtype=np.uint8)
        if isinstance(self.observation_space, spaces.Dict):
            return {"joints": self.joints, "grip": np.array([7], np.uint8), "image": image}
        return self.joints


def make_image(_: Any) -> Any:
    return np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def test_multiview_reads_vectors_of_a_dict_observation_in_the_order_named() -> None:
    env = wrap(MultiView(RobotEnv(), views={"front": "image"}, state=("grip", "joints")))
    assert get_state_vectors(env) == (StateVector("grip", 1), StateVector("joints", 3))
    first, _ = env.reset(seed=0)
    assert list(first) == ["front", "grip", "joints", MASK]
    second, *_ = env.step(np.zeros(1, np.float32))
    assert first["joints"].tolist() == [0, 0, 0]  # a copy: the robot overwrites its array
    assert second["joints"].tolist() == [1, 2, 0.5]
    assert second["joints"].dtype == second["grip"].dtype == np.float32
    assert second["grip"].tolist() == [7]


def test_multiview_copies_vectors_before_any_other_wrapper() -> None:
    env = MultiView(RobotEnv(), views={"front": "image"}, state=("joints",))
    first, _ = env.reset(seed=0)
    env.step(np.zeros(1, np.float32))
    assert first["joints"].tolist() == [0, 0, 0]


def test_multiview_names_the_vector_of_a_box_observation() -> None:
    env = wrap(MultiView(RobotEnv(spaces.Box(-9, 9, (3,), np.float64)), views={"front": make_image}, state=("joints",)))
    env.reset(seed=0)
    assert env.step(np.zeros(1, np.float32))[0]["joints"].tolist() == [1, 2, 0.5]


@pytest.mark.parametrize(
    ("space", "state", "message"),
    [
        (None, ("jonts",), "unknown state jonts: expected some of grip, joints"),
        (None, ("image",), "unknown state image"),
        (None, "joints", r"expected a sequence of names, got 'joints'. Use \('joints',\)"),
        (spaces.Box(-9, 9, (3,), np.float64), ("joints", "grip"), "unknown state grip: expected some of one name"),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), ("joints",), "unknown state joints"),
        (None, ("joints", "joints"), "expected every name of a view or vector once"),
    ],
)
def test_unknown_state_is_an_error_that_lists_the_names(space: Any, state: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiView(RobotEnv(space), views={"front": make_image}, state=state)


def test_a_vector_must_not_have_the_name_of_a_view() -> None:
    with pytest.raises(ValueError, match="every name of a view or vector once"):
        MultiView(RobotEnv(), views={"joints": make_image}, state=("joints",))
    with pytest.raises(ValueError, match="size of state vector 'goal': expected at least 1, got 0"):
        MultiViewEnv([View("side", 4, 4)], spaces.Discrete(2), state_vectors=[StateVector("goal", 0)])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e13])
def test_a_number_that_is_not_finite_raises_an_error_with_its_name(value: float) -> None:
    robot = RobotEnv()
    env = wrap(MultiView(robot, views={"front": "image"}, state=("joints",)), name="robot")
    env.reset(seed=0)
    robot.joints[1] = value
    with pytest.raises(ContractError, match="robot: state vector 'joints': expected finite numbers"):
        env.step(np.zeros(1, np.float32))


def test_a_vector_of_another_size_is_refused() -> None:
    robot = RobotEnv()
    env = wrap(MultiView(robot, views={"front": "image"}, state=("joints",)))
    env.reset(seed=0)
    robot.joints = np.zeros(4, np.float32)
    robot.step = lambda _: (robot._observe(), 0.0, False, False, {})  # type: ignore[method-assign, assignment]
    with pytest.raises(ContractError, match=r"state vector 'joints': expected numbers of shape \(3,\)"):
        env.step(np.zeros(1, np.float32))


def test_selecting_keeps_the_order_asked_for() -> None:
    env = SelectStateVectors(NumberedEnv(), ["grip"])
    observation, _ = env.reset(seed=0)
    assert list(observation) == ["side", "grip", MASK]
    assert list(SelectStateVectors(NumberedEnv(), ["grip", "joints"]).reset(seed=0)[0]) == [
        "side",
        "grip",
        "joints",
        MASK,
    ]
    with pytest.raises(ValueError, match="expected each once of joints, grip, got force"):
        SelectStateVectors(NumberedEnv(), ["force"])


def test_a_stack_repeats_the_first_vector_of_an_episode() -> None:
    env = wrap(NumberedEnv(max_steps=30), state_stack=3)
    observation, _ = env.reset(seed=3)
    number = observation["joints"][0]
    stacks = [observation["joints"].reshape(3, 3)[:, 0]]
    stacks += [env.step(np.zeros(2, np.float32))[0]["joints"].reshape(3, 3)[:, 0] for _ in range(3)]
    assert np.subtract(stacks, number).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert len(set(env.reset()[0]["joints"].reshape(3, 3)[:, 0].tolist())) == 1


def test_a_snapshot_without_its_vectors_is_refused() -> None:
    env = make("toy/told_goal", state=["goal"], state_stack=2)
    env.reset(seed=0)
    env.step(0)
    state = snapshot(env)
    assert np.array_equal(restore(env, state)["goal"], state["env"]["vectors"]["goal"])
    del state["env"]["vectors"]
    with pytest.raises(NotRestorable, match="invalid state vector 'goal'"):
        restore(env, state)


def test_environments_without_vectors_have_no_vector_entries() -> None:
    env = make("toy/cue")
    assert get_state_vectors(env) == ()
    assert list(env.reset(seed=0)[0]) == ["screen", MASK]
    assert "vectors" not in snapshot(env)["env"]


def test_vector_environments_declare_state_vectors_too() -> None:
    envs = make_vector("toy/told_goal", 3, state=["goal"])
    assert get_state_vectors(envs) == (StateVector("goal", 1),)
    assert envs.reset(seed=0)[0]["goal"].shape == (3, 1)
    envs.close()
