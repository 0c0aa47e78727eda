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


def best_action(env: DeepSea, row: int, column: int) -> int:
    return int(env._right_actions[row, column])


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
            target = env._state["target"]
            total += env.step(target if env._discrete else np.array([env._positions[target]], np.float32))[1]
        assert total == pytest.approx(env.episode_steps)


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
def test_the_cue_is_shown_once_and_paid_for_in_the_last_step(actions: Any) -> None:
    env, firsts, later = Cue(actions=actions), set(), set()
    for seed in range(20):
        for remembers in (True, False):
            observation, _ = env.reset(seed=seed)
            firsts.add(observation["screen"].tobytes())
            side = int(observation["screen"][0, -1, 0] > 0)
            chosen = side if remembers else 1 - side
            rewards, ended = [], False
            while not ended:
                action = chosen if actions == "discrete" else np.array([0.5 if chosen else -0.5], np.float32)
                observation, reward, ended, truncated, info = env.step(action)
                later.add(observation["screen"].tobytes())
                rewards.append(reward)
            assert rewards == [0, 0, 0, float(remembers)]
            assert (truncated, info["success"]) == (False, remembers)
    assert (len(firsts), len(later)) == (2, 1)
    assert not firsts & later


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
    assert np.mean(rates) == pytest.approx(env.max_success_single_view, abs=0.04)


def test_both_cameras_together_reach_every_goal() -> None:
    for env in (HiddenGoal(), HiddenGoal(actions="continuous")):
        env.reset(seed=0)
        for _ in range(env.episode_steps):
            column, row = env._state["column"], env._state["row"]
            centre = (np.array([column, row]) + 0.5) / env.cells * 2 - 1
            assert env.step(row * env.cells + column if env._discrete else centre)[4]["success"]


@pytest.mark.parametrize("option", [{"render_quality": "fast"}, {"render_scale": 2}])
def test_a_setting_that_a_task_does_not_have_is_named(option: MakeOptions) -> None:
    with pytest.raises(
        ValueError,
        match=f"toy/identity: expected one of views, frame_stack, state, state_stack, got {next(iter(option))}",
    ):
        make("toy/identity", **option)


def test_a_misspelt_task_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean toy/deep_sea"):
        make("toy/deepsea")


def test_a_view_that_is_not_there_is_named() -> None:
    with pytest.raises(
        ValueError, match="unknown camera: expected one of 0 column, 1 row for toy/hidden_goal, got 'top'"
    ):
        make("toy/hidden_goal", views=["top"])


def test_what_a_vector_calls_last_is_what_one_alone_shows_last() -> None:
    vector, alone = make_vector("toy/identity", 3), make("toy/identity")
    vector.reset(seed=5)
    vector.action_space.seed(0)
    actions = [vector.action_space.sample() for _ in range(10)]
    for action in actions:
        observation, *_, info = vector.step(action)
    for number in range(3):
        alone.reset(seed=5 + number)
        last = [alone.step(action[number])[0] for action in actions][-1]
        assert are_equal(info["final_obs"][number], last)
        begun = alone.reset()[0]
        assert are_equal({name: part[number] for name, part in observation.items()}, begun)
    vector.close()


def test_a_refusal_in_a_vector_names_the_environment() -> None:
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
def test_options_that_make_no_sense_are_refused(options: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make("toy/identity", **options)


def test_views_go_by_name_or_number() -> None:
    env = make("toy/identity", views=[1, "upright"], frame_stack=2)
    assert [view.name for view in get_views(env)] == ["lying", "upright"]
    assert env.metadata["settings"].views == ("lying", "upright")


@pytest.mark.parametrize(
    "other",
    [
        lambda: make("toy/identity", frame_stack=1),
        lambda: make("toy/identity", frame_stack=3, views=["lying"]),
        lambda: make("toy/hidden_goal", frame_stack=3),
        lambda: make("toy/identity", frame_stack=3, faults=[Fault(view="lying", kind="black", probability=0.5)]),
    ],
)
def test_a_snapshot_of_other_settings_is_refused_and_leaves_no_episode(other: Callable[[], Any]) -> None:
    env, wrong = make("toy/identity", frame_stack=3), other()
    env.reset(seed=0)
    wrong.reset(seed=0)
    with pytest.raises(NotRestorable, match="does not fit"):
        restore(wrong, snapshot(env))
    with pytest.raises(ContractError, match="reset"):
        wrong.step(0)


def test_an_environment_whose_space_is_not_that_of_its_views_is_refused() -> None:
    with pytest.raises(ContractError, match="observation space: expected the space of single frames"):
        wrap(make("toy/deep_sea", frame_stack=3), frame_stack=2)
