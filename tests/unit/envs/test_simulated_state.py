"""State vectors of the simulators, against the simulators' own observations."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from manyview.envs import get_state_vectors, list_tasks, make, restore, snapshot
from manyview.envs.dmc.tasks import DUPLO_OBSERVABLES
from manyview.envs.metaworld.env import STATE_SIZES
from manyview.envs.testing import EnvironmentContract

pytestmark = pytest.mark.simulator
SMALL: dict[str, Any] = {"image_size": 16, "frame_stack": 1, "render_quality": "fast"}
DMC = [task.id for task in list_tasks().values() if task.id.startswith("dmc/")]
ROBOTICS = [task.id for task in list_tasks().values() if task.id.startswith(("fetch/", "adroit/"))]


def make_all(task: str, **options: Any) -> Any:
    """A task with all state vectors on offer and one small view."""
    spec = list_tasks()[task]
    return make(task, state=spec.state, views=spec.cameras[:1], **{**SMALL, **options})


@pytest.mark.parametrize("task", DMC)
def test_the_vectors_on_offer_are_dm_controls(task: str) -> None:
    pytest.importorskip("dm_control")
    from manyview.envs.dmc.env import load_dmc_env

    bare = load_dmc_env(task.removeprefix("dmc/"), np.random.RandomState())
    offered = list_tasks()[task].state
    if task == "dmc/reach_duplo":
        assert set(DUPLO_OBSERVABLES.values()) <= bare.task.observables.keys()
        assert offered == tuple(DUPLO_OBSERVABLES)
    else:
        assert offered == tuple(bare.task.get_observation(bare.physics))
    bare.close()


@pytest.mark.parametrize("task", ["dmc/cheetah_run", "dmc/walker_run", "dmc/manipulator_bring_ball", "dmc/reach_duplo"])
def test_vectors_are_those_of_dm_control_after_every_step(task: str) -> None:
    pytest.importorskip("dm_control")
    env = make_all(task, action_repeat=2)
    sizes = {vector.name: vector.size for vector in get_state_vectors(env)}
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        for name, value in env.unwrapped.read_vectors().items():
            expected = np.asarray(value, np.float32).ravel()
            assert np.array_equal(observation[name], expected)
            assert len(expected) == sizes[name]
        before = observation
        observation, *_ = env.step(env.action_space.sample())
    assert any(not np.array_equal(before[name], observation[name]) for name in sizes)
    env.close()


@pytest.mark.parametrize("task", ROBOTICS)
def test_vectors_of_fetch_and_adroit_are_parts_of_their_observation(task: str) -> None:
    pytest.importorskip("gymnasium_robotics")
    from manyview.envs.robotics.suite import ENV_IDS

    env, bare = make_all(task, action_repeat=1), gym.make(ENV_IDS[task], disable_env_checker=True)
    observation, _ = env.reset(seed=3)
    expected, _ = bare.reset(seed=3)
    for _ in range(3):
        action = env.action_space.sample()
        observation, *_ = env.step(action)
        expected, *_ = bare.step(action)
    if isinstance(expected, dict):
        joined = np.concatenate([observation[name] for name in ("gripper", "object") if name in observation])
        numbers = expected["observation"]
        np.testing.assert_array_equal(np.sort(joined), np.sort(numbers.astype(np.float32)))
        model: Any = bare.unwrapped
        gripper = np.concatenate(
            [part for index, part in enumerate(model.generate_mujoco_observations()) if index in (0, 3, 7, 8)]
        )
        np.testing.assert_array_equal(observation["gripper"], gripper.astype(np.float32))
        np.testing.assert_array_equal(observation["goal"], expected["desired_goal"].astype(np.float32))
    else:
        np.testing.assert_array_equal(
            np.concatenate([observation["hand"], observation["object"]]), expected.astype(np.float32)
        )
        data: Any = bare.unwrapped.data  # type: ignore[attr-defined]
        first = 1 if "door" in task else 0
        hand = data.qpos[first : first + len(observation["hand"])]
        np.testing.assert_array_equal(observation["hand"], hand.astype(np.float32))
        model = bare.unwrapped.model  # type: ignore[attr-defined]
        names = [model.joint(number).name for number in range(first, first + len(observation["hand"]) + 1)]
        assert names[-2] == "THJ0"  # the thumb's last joint, before the object's first
    env.close()
    bare.close()


@pytest.mark.parametrize("task", ["dmc/hopper_hop", "fetch/push", "adroit/pen"])
def test_a_restored_snapshot_has_its_vectors(task: str) -> None:
    pytest.importorskip("dm_control" if task.startswith("dmc") else "gymnasium_robotics")
    env, twin = make_all(task, state_stack=2), make_all(task, state_stack=2)
    env.reset(seed=1)
    actions = [env.action_space.sample() for _ in range(6)]
    for action in actions[:3]:
        observation, *_ = env.step(action)
    restored = restore(twin, snapshot(env))
    for action in (None, *actions[3:]):
        if action is not None:
            observation, restored = env.step(action)[0], twin.step(action)[0]
        for vector in get_state_vectors(env):
            assert np.array_equal(observation[vector.name], restored[vector.name])
    env.close()
    twin.close()


def test_a_physics_error_repeats_the_last_vectors_and_restores_them() -> None:
    pytest.importorskip("dm_control")
    env = make_all("dmc/hopper_hop")
    env.reset(seed=0)
    before, *_ = env.step(env.action_space.sample())
    env.unwrapped._env.physics.data.qpos[:] = np.nan
    observation, _, _, truncated, info = env.step(env.action_space.sample())
    assert truncated
    assert "physics_error" in info
    twin = make_all("dmc/hopper_hop")
    restored = restore(twin, snapshot(env))
    for vector in get_state_vectors(env):
        assert np.array_equal(observation[vector.name], before[vector.name])
        assert np.array_equal(restored[vector.name], before[vector.name])
    env.close()
    twin.close()


class TestWalkerWithState(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> Any:
        pytest.importorskip("dm_control")
        return make_all("dmc/walker_run", action_repeat=8, state_stack=2)


def test_metaworld_offers_the_hand_objects_and_goal() -> None:
    """Its simulator is not installed beside the others: only the names are tested here."""
    assert list_tasks()["metaworld/reach"].state == tuple(STATE_SIZES)
