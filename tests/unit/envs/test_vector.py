"""Extraction of finished episodes from the info of vector environments."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from manyview.envs import Fault, make_vector
from manyview.envs.vector import extract_finished_episodes


class OneStepEnv(gym.Env[Any, Any]):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def __init__(self, episode: dict[str, Any]) -> None:
        self._episode = episode

    def reset(self, **_: Any) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, _: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, True, False, {"episode": self._episode}


def test_each_episode_has_the_entries_of_its_environment_only() -> None:
    episodes: list[dict[str, Any]] = [
        {"return": 1.5, "steps": 3},
        {"return": 2.5, "steps": 4, "physics_error": "unstable"},
        {"return": 0.5, "steps": 5, "absent": {"side": 7}},
    ]
    envs = SyncVectorEnv(
        [lambda episode=episode: OneStepEnv(episode) for episode in episodes],  # type: ignore[misc]
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    envs.reset()
    *_, info = envs.step(np.zeros(3, int))
    assert extract_finished_episodes(info) == episodes
    assert type(extract_finished_episodes(info)[0]["steps"]) is int


@pytest.mark.filterwarnings("ignore::manyview.envs.ViewWarning")
def test_an_episode_counts_the_steps_of_an_absent_camera() -> None:
    envs = make_vector("toy/hidden_goal", 2, faults=[Fault(view="row", kind="gone", lasts="episode", at_step=0)])
    envs.reset(seed=1)
    episodes: list[dict[str, Any]] = []
    while not episodes:
        *_, info = envs.step(envs.action_space.sample())
        episodes += extract_finished_episodes(info)
    assert all(episode["absent"]["row"] >= episode["steps"] for episode in episodes)
    envs.close()
