"""State vectors of the simulators, compared with the simulators' observations."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from manyview.envs import get_state_vectors, list_tasks, make, restore, snapshot
from manyview.envs.dmc.tasks import DUPLO_OBSERVABLES
from manyview.envs.metaworld.env import STATE_SIZES
from manyview.envs.testing import EnvironmentContract

pytestmark = pytest.mark.simulator
SMALL_OPTIONS: dict[str, Any] = {"image_size": 16, "frame_stack": 1, "render_quality": "fast"}
DMC_TASKS = [task.id for task in list_tasks().values() if task.id.startswith("dmc/")]
ROBOTICS_TASKS = [task.id for task in list_tasks().values() if task.id.startswith(("fetch/", "adroit/"))]


def make_env_with_state(task: str, **options: Any) -> Any:
    """Return a task with all its state vectors and one small view."""
    spec = list_tasks()[task]
    return make(task, state=spec.state, views=spec.cameras[:1], **{**SMALL_OPTIONS, **options})


@pytest.mark.parametrize("task", DMC_TASKS)
def test_the_listed_vectors_are_those_of_dm_control(task: str) -> None:
    pytest.importorskip("dm_control")
    from manyview.envs.dmc.env import load_dmc_env

    dmc_env = load_dmc_env(task.removeprefix("dmc/"), np.random.RandomState())
    vector_names = list_tasks()[task].state
    if task == "dmc/reach_duplo":
        assert set(DUPLO_OBSERVABLES.values()) <= dmc_env.task.observables.keys()
        assert vector_names == tuple(DUPLO_OBSERVABLES)
    else:
        assert vector_names == tuple(dmc_env.task.get_observation(dmc_env.physics))
    dmc_env.close()


@pytest.mark.parametrize("task", ["dmc/cheetah_run", "dmc/walker_run", "dmc/manipulator_bring_ball", "dmc/reach_duplo"])
def test_vectors_are_those_of_dm_control_after_every_step(task: str) -> None:
    pytest.importorskip("dm_control")
    env = make_env_with_state(task, action_repeat=2)
    sizes = {vector.name: vector.size for vector in get_state_vectors(env)}
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        for name, value in env.unwrapped.read_vectors().items():
            expected = np.asarray(value, np.float32).ravel()
            assert np.array_equal(observation[name], expected)
            assert len(expected) == sizes[name]
        last_observation = observation
        observation, *_ = env.step(env.action_space.sample())
    assert any(not np.array_equal(last_observation[name], observation[name]) for name in sizes)
    env.close()


@pytest.mark.parametrize("task", ROBOTICS_TASKS)
def test_vectors_of_fetch_and_adroit_are_parts_of_their_observation(task: str) -> None:
    pytest.importorskip("gymnasium_robotics")
    from manyview.envs.robotics.suite import ENV_IDS

    env, reference_env = make_env_with_state(task, action_repeat=1), gym.make(ENV_IDS[task], disable_env_checker=True)
    observation, _ = env.reset(seed=3)
    expected, _ = reference_env.reset(seed=3)
    for _ in range(3):
        action = env.action_space.sample()
        observation, *_ = env.step(action)
        expected, *_ = reference_env.step(action)
    if isinstance(expected, dict):
        vectors = np.concatenate([observation[name] for name in ("gripper", "object") if name in observation])
        expected_numbers = expected["observation"]
        np.testing.assert_array_equal(np.sort(vectors), np.sort(expected_numbers.astype(np.float32)))
        model: Any = reference_env.unwrapped
        gripper = np.concatenate(
            [
                state_part
                for index, state_part in enumerate(model.generate_mujoco_observations())
                if index in (0, 3, 7, 8)
            ]
        )
        np.testing.assert_array_equal(observation["gripper"], gripper.astype(np.float32))
        np.testing.assert_array_equal(observation["goal"], expected["desired_goal"].astype(np.float32))
    else:
        np.testing.assert_array_equal(
            np.concatenate([observation["hand"], observation["object"]]), expected.astype(np.float32)
        )
        data: Any = reference_env.unwrapped.data  # type: ignore[attr-defined]
        first_joint = 1 if "door" in task else 0
        hand = data.qpos[first_joint : first_joint + len(observation["hand"])]
        np.testing.assert_array_equal(observation["hand"], hand.astype(np.float32))
        model = reference_env.unwrapped.model  # type: ignore[attr-defined]
        joint_names = [
            model.joint(number).name for number in range(first_joint, first_joint + len(observation["hand"]) + 1)
        ]
        assert joint_names[-2] == "THJ0"  # the last joint of the thumb precedes those of the object
    env.close()
    reference_env.close()


@pytest.mark.parametrize("task", ["dmc/hopper_hop", "fetch/push", "adroit/pen"])
def test_a_restored_snapshot_has_its_vectors(task: str) -> None:
    pytest.importorskip("dm_control" if task.startswith("dmc") else "gymnasium_robotics")
    env, other_env = make_env_with_state(task, state_stack=2), make_env_with_state(task, state_stack=2)
    env.reset(seed=1)
    actions = [env.action_space.sample() for _ in range(6)]
    for action in actions[:3]:
        observation, *_ = env.step(action)
    restored_observation = restore(other_env, snapshot(env))
    for action in (None, *actions[3:]):
        if action is not None:
            observation, restored_observation = env.step(action)[0], other_env.step(action)[0]
        for vector in get_state_vectors(env):
            assert np.array_equal(observation[vector.name], restored_observation[vector.name])
    env.close()
    other_env.close()


def test_a_physics_error_repeats_the_last_vectors_and_restores_them() -> None:
    pytest.importorskip("dm_control")
    env = make_env_with_state("dmc/hopper_hop")
    env.reset(seed=0)
    last_observation, *_ = env.step(env.action_space.sample())
    env.unwrapped._env.physics.data.qpos[:] = np.nan
    observation, _, _, truncated, info = env.step(env.action_space.sample())
    assert truncated
    assert "physics_error" in info
    other_env = make_env_with_state("dmc/hopper_hop")
    restored_observation = restore(other_env, snapshot(env))
    for vector in get_state_vectors(env):
        assert np.array_equal(observation[vector.name], last_observation[vector.name])
        assert np.array_equal(restored_observation[vector.name], last_observation[vector.name])
    env.close()
    other_env.close()


class TestWalkerWithState(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> Any:
        pytest.importorskip("dm_control")
        return make_env_with_state("dmc/walker_run", action_repeat=8, state_stack=2)


def test_metaworld_offers_the_hand_objects_and_goal() -> None:
    """Meta-World cannot be installed beside dm_control, so only the names are tested."""
    assert list_tasks()["metaworld/reach"].state == tuple(STATE_SIZES)
