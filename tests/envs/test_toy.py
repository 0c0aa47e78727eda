from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from manyview.envs import make, make_vector
from manyview.envs.testing import EnvironmentContract, VectorContract
from manyview.envs.toy import DeepSea, HiddenGoal, Identity
from manyview.envs.views import Observation


class TestDeepSeaContract(EnvironmentContract):
    ends = "terminated"
    seed_matters = False

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/deep_sea", frame_stack=2)


class TestContinuousDeepSeaContract(EnvironmentContract):
    ends = "terminated"
    seed_matters = False

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/deep_sea_continuous")


class TestIdentityContract(EnvironmentContract):
    ends = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/identity")


class TestContinuousIdentityContract(EnvironmentContract):
    ends = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/identity_continuous", frame_stack=3)


class TestHiddenGoalContract(EnvironmentContract):
    ends = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/hidden_goal", views=("row",))


class TestContinuousHiddenGoalContract(EnvironmentContract):
    ends = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/hidden_goal_continuous")


class TestVectorContract(VectorContract):
    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        return make_vector("toy/hidden_goal_continuous", self.num_envs, frame_stack=2)


class TestVectorInProcessesContract(VectorContract):
    num_envs = 2

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        return make_vector("toy/deep_sea_continuous", self.num_envs, processes=True)


def best_action(env: DeepSea, row: int, column: int) -> int:
    return int(env._right[row, column])


@pytest.mark.parametrize("size", [4, 10])
def test_the_treasure_is_found_by_always_drifting_right(size: int) -> None:
    env = DeepSea(size)
    env.reset(seed=0)
    total = 0.0
    for row in range(size):
        _, reward, terminated, _, info = env.step(best_action(env, row, row))
        total += reward
    assert terminated
    assert info["success"]
    assert total == pytest.approx(0.99)


def test_one_action_sequence_of_all_finds_the_treasure() -> None:
    env, found = DeepSea(5), 0
    for number in range(2**5):
        env.reset(seed=0)
        for bit in range(5):
            info = env.step(number >> bit & 1)[4]
        found += info["success"]
    assert found == 1


def test_the_sign_of_a_continuous_action_decides() -> None:
    discrete, continuous = DeepSea(), DeepSea(actions="continuous")
    discrete.reset(seed=0)
    continuous.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(10):
        action = rng.uniform(-1, 1, 1).astype(np.float32)
        one, other = discrete.step(int(action[0] > 0)), continuous.step(action)
        assert one[1:4] == other[1:4]
        assert all(np.array_equal(one[0][name], other[0][name]) for name in one[0])


def test_each_view_of_the_deep_sea_knows_one_coordinate() -> None:
    env = DeepSea(mapping_seed=None)
    shown: dict[str, set[bytes]] = {"depth": set(), "column": set()}
    pairs = set()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        observation, _ = env.reset(seed=0)
        for _ in range(9):
            for name, pictures in shown.items():
                pictures.add(observation[name].tobytes())
            pairs.add((observation["depth"].tobytes(), observation["column"].tobytes()))
            observation = env.step(int(rng.integers(2)))[0]
    assert len(shown["depth"]) == 9
    assert len(shown["column"]) <= 9 < len(pairs)


def test_saying_what_one_sees_earns_everything() -> None:
    for env in (Identity(), Identity(actions="continuous")):
        env.reset(seed=0)
        total = 0.0
        for _ in range(env.episode_steps):
            target = env._numbers["target"]
            total += env.step(target if env._discrete else np.array([env._places[target]], np.float32))[1]
        assert total == pytest.approx(env.episode_steps)


def test_one_camera_alone_is_held_to_its_bound() -> None:
    """The best policy for each picture of one view, found from 30,000 tries of every action."""
    env = HiddenGoal(cells=3)
    observation, _ = env.reset(seed=0)
    paid: dict[bytes, np.ndarray[Any, Any]] = {}
    for step in range(30_000):
        action = step % 9
        picture = observation["column"].tobytes()
        observation, reward, _, truncated, _ = env.step(action)
        tally = paid.setdefault(picture, np.zeros((9, 2)))
        tally[action] += (reward, 1)
        if truncated:
            observation, _ = env.reset()
    rates = [(tally[:, 0] / tally[:, 1]).max() for tally in paid.values()]
    assert len(rates) == 3
    assert np.mean(rates) == pytest.approx(env.bound_with_one_view, abs=0.04)


def test_both_cameras_together_reach_every_goal() -> None:
    for env in (HiddenGoal(), HiddenGoal(actions="continuous")):
        env.reset(seed=0)
        for _ in range(env.episode_steps):
            column, row = env._numbers["column"], env._numbers["row"]
            centre = (np.array([column, row]) + 0.5) / env.cells * 2 - 1
            assert env.step(row * env.cells + column if env._discrete else centre)[4]["success"]


def test_a_setting_that_a_task_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match="toy/identity has no render_quality; it has views, frame_stack"):
        make("toy/identity", render_quality="fast")


def test_a_misspelt_task_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean toy/deep_sea"):
        make("toy/deepsea")


def test_a_view_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"\['column', 'row'\], not \['top'\]"):
        make("toy/hidden_goal", views=["top"])
