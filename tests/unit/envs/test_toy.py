"""Toy tasks: contracts, best returns, options, vector environments and snapshots."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from manyview.envs import (
    ContractError,
    Fault,
    NotRestorable,
    get_views,
    make,
    make_vector,
    restore,
    snapshot,
    wrap,
)
from manyview.envs.suite import MakeOptions
from manyview.envs.testing import EnvironmentContract, VectorContract, are_equal
from manyview.envs.toy import Cue, DeepSea, HiddenGoal, Identity
from manyview.envs.views import Observation


class TestDeepSeaContract(EnvironmentContract):
    episode_end = "terminated"
    seed_matters = False

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/deep_sea", frame_stack=2)


class TestContinuousDeepSeaContract(EnvironmentContract):
    episode_end = "terminated"
    seed_matters = False

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/deep_sea_continuous")


class TestIdentityContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/identity")


class TestContinuousIdentityContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/identity_continuous", frame_stack=3)


class TestHiddenGoalContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/hidden_goal", views=("row",))


class TestContinuousHiddenGoalContract(EnvironmentContract):
    episode_end = "truncated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/hidden_goal_continuous")


class TestCueContract(EnvironmentContract):
    episode_end = "terminated"

    def make_env(self) -> gym.Env[Observation, Any]:
        return make("toy/cue_continuous")


class TestVectorContract(VectorContract):
    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        return make_vector("toy/hidden_goal_continuous", self.num_envs, frame_stack=2)


class TestVectorInProcessesContract(VectorContract):
    num_envs = 2

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        return make_vector("toy/deep_sea_continuous", self.num_envs, processes=True)


def get_right_action(env: DeepSea, row: int, column: int) -> int:
    return int(env._right_actions[row, column])


@pytest.mark.parametrize("size", [4, 10])
def test_always_moving_right_reaches_the_treasure(size: int) -> None:
    env = DeepSea(size)
    env.reset(seed=0)
    episode_return = 0.0
    for row in range(size):
        _, reward, terminated, _, info = env.step(get_right_action(env, row, row))
        episode_return += reward
    assert terminated
    assert info["success"]
    assert episode_return == pytest.approx(0.99)


def test_exactly_one_action_sequence_reaches_the_treasure() -> None:
    env, num_successes = DeepSea(5), 0
    for sequence in range(2**5):
        env.reset(seed=0)
        for bit in range(5):
            info = env.step(sequence >> bit & 1)[4]
        num_successes += info["success"]
    assert num_successes == 1


def test_the_sign_of_a_continuous_action_selects_the_discrete_action() -> None:
    discrete, continuous = DeepSea(), DeepSea(actions="continuous")
    discrete.reset(seed=0)
    continuous.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(10):
        action = rng.uniform(-1, 1, 1).astype(np.float32)
        discrete_step, continuous_step = discrete.step(int(action[0] > 0)), continuous.step(action)
        assert discrete_step[1:4] == continuous_step[1:4]
        assert all(np.array_equal(discrete_step[0][name], continuous_step[0][name]) for name in discrete_step[0])


def test_each_view_of_deep_sea_shows_one_coordinate() -> None:
    env = DeepSea(mapping_seed=None)
    distinct_images: dict[str, set[bytes]] = {"depth": set(), "column": set()}
    distinct_pairs = set()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        observation, _ = env.reset(seed=0)
        for _ in range(9):
            for name, images in distinct_images.items():
                images.add(observation[name].tobytes())
            distinct_pairs.add((observation["depth"].tobytes(), observation["column"].tobytes()))
            observation = env.step(int(rng.integers(2)))[0]
    assert len(distinct_images["depth"]) == 9
    assert len(distinct_images["column"]) <= 9 < len(distinct_pairs)


def test_naming_the_target_gives_the_maximum_return() -> None:
    for env in (Identity(), Identity(actions="continuous")):
        env.reset(seed=0)
        episode_return = 0.0
        for _ in range(env.episode_steps):
            target = env._state["target"]
            episode_return += env.step(target if env._discrete else np.array([env._positions[target]], np.float32))[1]
        assert episode_return == pytest.approx(env.episode_steps)


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_the_cue_is_shown_once_and_rewarded_in_the_last_step(actions: Any) -> None:
    env, first_images, later_images = Cue(actions=actions), set(), set()
    for seed in range(20):
        for is_correct in (True, False):
            observation, _ = env.reset(seed=seed)
            first_images.add(observation["screen"].tobytes())
            side = int(observation["screen"][0, -1, 0] > 0)
            choice = side if is_correct else 1 - side
            rewards, terminated = [], False
            while not terminated:
                action = choice if actions == "discrete" else np.array([0.5 if choice else -0.5], np.float32)
                observation, reward, terminated, truncated, info = env.step(action)
                later_images.add(observation["screen"].tobytes())
                rewards.append(reward)
            assert rewards == [0, 0, 0, float(is_correct)]
            assert (truncated, info["success"]) == (False, is_correct)
    assert (len(first_images), len(later_images)) == (2, 1)
    assert not first_images & later_images


def test_the_best_policy_of_a_single_view_reaches_its_success_bound() -> None:
    """The best action for each image of one view is estimated from 30,000 steps."""
    env = HiddenGoal(cells=3)
    observation, _ = env.reset(seed=0)
    totals: dict[bytes, np.ndarray[Any, Any]] = {}
    for step in range(30_000):
        action = step % 9
        image = observation["column"].tobytes()
        observation, reward, _, truncated, _ = env.step(action)
        image_totals = totals.setdefault(image, np.zeros((9, 2)))
        image_totals[action] += (reward, 1)
        if truncated:
            observation, _ = env.reset()
    success_rates = [(image_totals[:, 0] / image_totals[:, 1]).max() for image_totals in totals.values()]
    assert len(success_rates) == 3
    assert np.mean(success_rates) == pytest.approx(env.max_success_single_view, abs=0.04)


def test_both_cameras_together_reach_every_goal() -> None:
    for env in (HiddenGoal(), HiddenGoal(actions="continuous")):
        env.reset(seed=0)
        for _ in range(env.episode_steps):
            column, row = env._state["column"], env._state["row"]
            center = (np.array([column, row]) + 0.5) / env.cells * 2 - 1
            assert env.step(row * env.cells + column if env._discrete else center)[4]["success"]


@pytest.mark.parametrize("option", [{"render_quality": "fast"}, {"render_scale": 2}])
def test_an_unsupported_option_is_named(option: MakeOptions) -> None:
    with pytest.raises(
        ValueError,
        match=f"toy/identity: expected one of views, frame_stack, state, state_stack, got {next(iter(option))}",
    ):
        make("toy/identity", **option)


def test_a_misspelled_task_suggests_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean toy/deep_sea"):
        make("toy/deepsea")


def test_an_unknown_view_is_named() -> None:
    with pytest.raises(
        ValueError, match="unknown camera: expected one of 0 column, 1 row for toy/hidden_goal, got 'top'"
    ):
        make("toy/hidden_goal", views=["top"])


def test_final_observations_of_a_vector_equal_those_of_single_environments() -> None:
    vector, single_env = make_vector("toy/identity", 3), make("toy/identity")
    vector.reset(seed=5)
    vector.action_space.seed(0)
    actions = [vector.action_space.sample() for _ in range(10)]
    for action in actions:
        observation, *_, info = vector.step(action)
    for index in range(3):
        single_env.reset(seed=5 + index)
        final_observation = [single_env.step(action[index])[0] for action in actions][-1]
        assert are_equal(info["final_obs"][index], final_observation)
        first_observation = single_env.reset()[0]
        assert are_equal({name: values[index] for name, values in observation.items()}, first_observation)
    vector.close()


def test_an_error_in_a_vector_names_the_environment() -> None:
    vector = make_vector("toy/deep_sea_continuous", 2)
    vector.reset(seed=0)
    with pytest.raises(ContractError, match=r"toy/deep_sea_continuous\[1\]: action: expected finite"):
        vector.step(np.array([[0.0], [np.nan]], np.float32))
    vector.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"frame_stack": 0}, "invalid frame_stack: expected an integer"),
        ({"frame_stack": True}, "invalid frame_stack: expected an integer"),
        ({"frame_stack": 1.5}, "invalid frame_stack: expected an integer"),
        ({"views": "upright"}, "expected a sequence of names, got the string 'upright'"),
        ({"views": ["2"]}, "expected one of 0 upright, 1 lying for toy/identity, got '2'"),
    ],
)
def test_invalid_options_are_refused(options: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make("toy/identity", **options)


def test_views_are_selected_by_name_or_number() -> None:
    env = make("toy/identity", views=[1, "upright"], frame_stack=2)
    assert [view.name for view in get_views(env)] == ["lying", "upright"]
    assert env.metadata["settings"].views == ("lying", "upright")


@pytest.mark.parametrize(
    "make_other_env",
    [
        lambda: make("toy/identity", frame_stack=1),
        lambda: make("toy/identity", frame_stack=3, views=["lying"]),
        lambda: make("toy/hidden_goal", frame_stack=3),
        lambda: make("toy/identity", frame_stack=3, faults=[Fault(view="lying", kind="black", probability=0.5)]),
    ],
)
def test_a_snapshot_of_other_settings_is_refused_and_ends_the_episode(make_other_env: Callable[[], Any]) -> None:
    env, other_env = make("toy/identity", frame_stack=3), make_other_env()
    env.reset(seed=0)
    other_env.reset(seed=0)
    with pytest.raises(NotRestorable, match="does not fit"):
        restore(other_env, snapshot(env))
    with pytest.raises(ContractError, match="reset"):
        other_env.step(0)


def test_an_environment_whose_space_is_not_that_of_its_views_is_refused() -> None:
    with pytest.raises(ContractError, match="observation space: expected the space of single frames"):
        wrap(make("toy/deep_sea", frame_stack=3), frame_stack=2)
