"""Procgen: contracts of the paper's nine games, transitions, levels, options and errors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from manyview.envs import ContractError, NotRestorable, list_tasks, make, make_vector, restore, snapshot
from manyview.envs.procgen import ProcgenVector
from manyview.envs.procgen.pool import GamePool
from manyview.envs.procgen.suite import GAMES, PAPER_GAMES
from manyview.envs.testing import EnvironmentContract, VectorContract, are_equal
from manyview.envs.views import Observation

pytestmark = pytest.mark.simulator

NOOP_ACTION = 4
"""Action that presses no key."""


class GameContract(EnvironmentContract):
    game: ClassVar[str]
    max_episode_steps = 6000
    can_restore = False

    def make_env(self) -> gym.Env[Observation, Any]:
        return make(f"procgen/{self.game}")


class GameVectorContract(VectorContract):
    game: ClassVar[str]

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        return make_vector(f"procgen/{self.game}", self.num_envs)


for _game in PAPER_GAMES:
    for _kind, _contract in (("", GameContract), ("Vector", GameVectorContract)):
        _name = f"Test{_game.capitalize()}{_kind}Contract"
        globals()[_name] = type(_name, (_contract,), {"game": _game, "__module__": __name__})


@dataclass
class Stream:
    """Actions and results of one game of the pool."""

    actions: list[int] = field(default_factory=list)
    transitions: list[tuple[bytes, int, float, bool, bool]] = field(default_factory=list)
    """Result of each action: image, level, reward, terminated, truncated."""
    episode_starts: list[tuple[bytes, int]] = field(default_factory=list)
    """First image and level of each episode."""
    returns: list[float] = field(default_factory=list)


def collect_vector_streams(game: str, actions: NDArray[np.int64], *, seed: int) -> list[Stream]:
    """Return what the vector environment gives, by game of the pool."""
    vector = make_vector(f"procgen/{game}", actions.shape[1])
    assert isinstance(vector, ProcgenVector)
    pool = vector._pool
    streams = [Stream() for _ in range(pool.num_games)]
    observation, info = vector.reset(seed=seed)
    for slot, game_index in enumerate(pool.active_games):
        streams[game_index].episode_starts.append((encode_image(observation["screen"][slot]), info["level_seed"][slot]))
    for step_actions in actions:
        active_games = pool.active_games.copy()
        observation, rewards, terminated, truncated, info = vector.step(step_actions)
        done = terminated | truncated
        assert done.any() == ("final_obs" in info)
        for slot, game_index in enumerate(active_games):
            stream = streams[game_index]
            frame = (encode_image(observation["screen"][slot]), info["level_seed"][slot])
            if done[slot]:
                streams[pool.active_games[slot]].episode_starts.append(frame)
                final_info = info["final_info"]
                stream.returns.append(final_info["episode"]["return"][slot])
                frame = (encode_image(info["final_obs"][slot]["screen"]), final_info["level_seed"][slot])
            stream.actions.append(step_actions[slot])
            stream.transitions.append((*frame, rewards[slot], terminated[slot], truncated[slot]))
    vector.close()
    return streams


def collect_envpool_streams(game: str, actions: list[list[int]], *, seed: int) -> tuple[list[Stream], int]:
    """Return the streams of bare EnvPool and its number of reset rows.

    Each game gets its own actions. A reset row looks like a transition.
    """
    import envpool

    pool = envpool.make_gymnasium(f"{game.capitalize()}Easy-v0", num_envs=len(actions), seed=seed, num_levels=200)
    streams, resets = [Stream(actions=game_actions) for game_actions in actions], 0
    images, info = pool.reset()
    for game_index, stream in enumerate(streams):
        stream.episode_starts.append((images[game_index].tobytes(), info["level_seed"][game_index]))
    done, totals = np.zeros(len(actions), bool), np.zeros(len(actions))
    while any(len(stream.transitions) < len(stream.actions) for stream in streams):
        action_indices = [min(len(stream.transitions), len(stream.actions) - 1) for stream in streams]
        step_actions = [
            stream.actions[action_index] if stream.actions else 0
            for stream, action_index in zip(streams, action_indices, strict=True)
        ]
        images, rewards, terminated, truncated, info = pool.step(np.array(step_actions, np.int32))
        for game_index, stream in enumerate(streams):
            if len(stream.transitions) == len(stream.actions):
                continue
            frame = (images[game_index].tobytes(), info["level_seed"][game_index])
            if done[game_index]:
                assert (rewards[game_index], terminated[game_index], truncated[game_index]) == (0, False, False)
                stream.episode_starts.append(frame)
                resets += 1
                continue
            stream.transitions.append((*frame, rewards[game_index], terminated[game_index], truncated[game_index]))
            totals[game_index] += rewards[game_index]
            if terminated[game_index] or truncated[game_index]:
                stream.returns.append(totals[game_index])
                totals[game_index] = 0
        done = terminated | truncated
    return streams, resets


def encode_image(screen: NDArray[np.uint8]) -> bytes:
    """Return the bytes of an image [H, W, C] in the layout of EnvPool."""
    return screen.transpose(2, 0, 1).tobytes()


def assert_equal_streams(game: str, actions: NDArray[np.int64]) -> None:
    """Assert equal images, levels, rewards, ends, first frames and raw returns."""
    vector_streams = collect_vector_streams(game, actions, seed=11)
    envpool_streams, resets = collect_envpool_streams(game, [stream.actions for stream in vector_streams], seed=11)
    assert resets > 0, "no episode was followed by another, so nothing was shown"
    assert sum(len(stream.transitions) for stream in vector_streams) == actions.size
    for actual, expected in zip(vector_streams, envpool_streams, strict=True):
        assert actual.transitions == expected.transitions
        assert actual.returns == expected.returns
        # After the last action, either of the two may have started another episode.
        num_starts = min(len(actual.episode_starts), len(expected.episode_starts))
        assert num_starts >= len(actual.returns)
        assert actual.episode_starts[:num_starts] == expected.episode_starts[:num_starts]


@pytest.mark.parametrize("game", PAPER_GAMES)
def test_the_stream_is_that_of_bare_envpool_without_its_reset_rows(game: str) -> None:
    assert_equal_streams(game, np.random.default_rng(1).integers(15, size=(500, 8)))


def test_the_stream_is_that_of_bare_envpool_when_all_games_end_at_once() -> None:
    """All games time out after 1000 steps, and more games end than there are spares."""
    assert_equal_streams("coinrun", np.full((1010, 4), NOOP_ACTION))


def collect_level_seeds(levels: Any, *, resets: int) -> NDArray[np.int64]:
    vector = make_vector("procgen/miner", 64, levels=levels)
    seeds = [vector.reset(seed=0 if index == 0 else None)[1]["level_seed"] for index in range(resets)]
    vector.close()
    return np.concatenate(seeds).astype(np.int64)


def test_training_shows_all_of_200_levels_and_no_other() -> None:
    assert set(collect_level_seeds(None, resets=40)) == set(range(200))


def test_testing_shows_levels_outside_the_training_set() -> None:
    seeds = collect_level_seeds("test", resets=20)
    assert len(set(seeds)) > 0.99 * len(seeds)
    assert np.mean(seeds < 200) < 0.01


@pytest.mark.parametrize("game", GAMES)
def test_every_game_can_be_made_and_moves(game: str) -> None:
    env = make(f"procgen/{game}")
    env.action_space.seed(0)
    first, _ = env.reset(seed=0)
    assert first["screen"].std() > 1
    images = {env.step(env.action_space.sample())[0]["screen"].tobytes() for _ in range(10)}
    assert len(images) > 1
    env.close()


def test_the_list_of_games_needs_no_simulator() -> None:
    code = "import sys, manyview.envs; print(len(manyview.envs.list_tasks())); assert 'envpool' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)
    games = {name: task for name, task in list_tasks().items() if name.startswith("procgen/")}
    assert len(games) == 16
    assert sum(task.in_paper for task in games.values()) == 9


def test_running_out_of_time_is_a_truncation() -> None:
    vector = make_vector("procgen/coinrun", 4)
    vector.reset(seed=0)
    for _ in range(999):
        _, _, terminated, truncated, _ = vector.step(np.full(4, NOOP_ACTION))
        assert not (terminated | truncated).any()
    _, _, terminated, truncated, info = vector.step(np.full(4, NOOP_ACTION))
    vector.close()
    assert truncated.all()
    assert not terminated.any()
    assert (info["final_info"]["episode"]["steps"] == 1000).all()
    assert (info["final_info"]["episode"]["frames"] == 1000).all()


class OneStepLimitPool(GamePool):
    """Pool with a time limit of one step, so that EnvPool reports every end as a timeout."""

    def _make_pool(self, seed: int) -> Any:
        return self._envpool.make_gymnasium("CoinrunEasy-v0", num_envs=self.num_envs, seed=seed, max_episode_steps=1)


def test_a_level_completed_in_the_last_step_is_a_termination() -> None:
    pool = OneStepLimitPool("procgen/coinrun", levels="train", num_envs=16)
    pool.reset(seed=0)
    keys = np.random.default_rng(0).choice([7, 8], size=(300, 16)).astype(np.int32)  # right, and right with a jump
    num_terminated, num_truncated = 0, 0
    for actions in keys:
        state = pool.step(actions)
        assert (state.terminated == (state.level_complete == 1)).all()
        num_terminated, num_truncated = num_terminated + state.terminated.sum(), num_truncated + state.truncated.sum()
        if state.done.any():
            pool.reset_games(np.flatnonzero(state.done), state)
    assert num_terminated > 0
    assert num_truncated > 0


@pytest.fixture
def vector() -> Iterator[VectorEnv[Any, Any, Any]]:
    vector_env = make_vector("procgen/starpilot", 8)
    yield vector_env
    vector_env.close()


def test_later_steps_do_not_change_earlier_observations(vector: VectorEnv[Any, Any, Any]) -> None:
    """Observations of resets, of steps and of the ends of episodes are tested."""
    vector.action_space.seed(0)
    copies: list[tuple[Observation, Observation]] = []
    observation, _ = vector.reset(seed=0)
    ends = 0
    for _ in range(200):
        copies.append((observation, {name: values.copy() for name, values in observation.items()}))
        observation, _, _, _, info = vector.step(vector.action_space.sample())
        for final_observation in info.get("final_obs", ()):
            if final_observation is not None:
                copies.append((final_observation, {name: values.copy() for name, values in final_observation.items()}))
                ends += 1
    assert ends > 0
    assert all(are_equal(original, copy) for original, copy in copies)


def test_channels_first_images_are_views_of_envpools_memory(vector: VectorEnv[Any, Any, Any]) -> None:
    observation, _ = vector.reset(seed=0)
    assert observation["screen"].transpose(0, 3, 1, 2).flags.c_contiguous


def test_a_seed_restarts_all_games(vector: VectorEnv[Any, Any, Any]) -> None:
    def record_steps(seed: int | None) -> list[Any]:
        vector.action_space.seed(0)
        records = [vector.reset(seed=seed)[1]["level_seed"].tolist()]
        return records + [vector.step(vector.action_space.sample())[0]["screen"].tobytes() for _ in range(100)]

    first = record_steps(seed=3)
    assert record_steps(seed=4) != first
    assert record_steps(seed=None) != first
    assert record_steps(seed=3) == first
    assert record_steps(seed=2**40) != first


def test_resets_without_a_seed_give_different_levels() -> None:
    assert ProcgenVector("procgen/miner", 64).reset()[1]["level_seed"].tolist() != (
        ProcgenVector("procgen/miner", 64).reset()[1]["level_seed"].tolist()
    )


def test_a_stack_is_the_last_frames_of_the_same_episode() -> None:
    single, stacked = make_vector("procgen/starpilot", 8), make_vector("procgen/starpilot", 8, frame_stack=3)
    frames, stacks = single.reset(seed=0)[0]["screen"], stacked.reset(seed=0)[0]["screen"]
    episodes = [[frame] for frame in frames]
    rng, ends = np.random.default_rng(0), 0
    for _ in range(200):
        for stack, episode in zip(stacks, episodes, strict=True):
            assert np.array_equal(stack, stack_last_frames(episode))
        actions = rng.integers(15, size=8)
        observation, _, _, _, info = single.step(actions)
        stacked_observation, _, _, _, stacked_info = stacked.step(actions)
        frames, stacks = observation["screen"], stacked_observation["screen"]
        for index, frame in enumerate(frames):
            if "final_obs" in info and info["_final_obs"][index]:
                episodes[index].append(info["final_obs"][index]["screen"])
                assert np.array_equal(stacked_info["final_obs"][index]["screen"], stack_last_frames(episodes[index]))
                episodes[index], ends = [], ends + 1
            episodes[index].append(frame)
    assert ends > 0
    single.close()
    stacked.close()


def stack_last_frames(episode: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    last_index = len(episode) - 1
    return np.concatenate([episode[max(last_index - offset, 0)] for offset in (2, 1, 0)], axis=-1)


@pytest.mark.parametrize(
    ("actions", "description"),
    [
        (np.zeros(7, int), r"int64 of shape \(7,\)"),
        (np.zeros((8, 1), int), r"int64 of shape \(8, 1\)"),
        (np.zeros(8), "float64"),
        (np.full(8, np.nan), "float64"),
        (np.zeros(8, bool), "bool"),
        (3, "int 3"),
        (None, "None"),
        (np.array([0, 1, 2, 15, 4, 5, 6, 7]), "15 for environment 3"),
        (np.array([0, -1, 2, 3, 4, 5, 6, 7]), "-1 for environment 1"),
    ],
)
def test_a_wrong_action_is_named_and_changes_nothing(
    vector: VectorEnv[Any, Any, Any], actions: Any, description: str
) -> None:
    vector.reset(seed=0)
    with pytest.raises(
        ContractError, match=f"procgen/starpilot: action: expected .*integers from 0 to 14, got {description}"
    ):
        vector.step(actions)
    observation = vector.step(np.zeros(8, int))[0]
    vector.reset(seed=0)
    assert are_equal(observation, vector.step(np.zeros(8, int))[0])


def test_a_step_before_reset_is_refused(vector: VectorEnv[Any, Any, Any]) -> None:
    with pytest.raises(ContractError, match=r"procgen/starpilot: step: .* Call reset"):
        vector.step(np.zeros(8, int))


def test_a_closed_vector_environment_refuses_steps_and_resets() -> None:
    vector = make_vector("procgen/starpilot", 2)
    vector.reset(seed=0)
    vector.close()
    vector.close()
    with pytest.raises(ContractError, match="procgen/starpilot: step"):
        vector.step(np.zeros(2, int))
    with pytest.raises(ContractError, match=r"procgen/starpilot: reset: .* Make a new environment"):
        vector.reset()


def test_another_image_size_is_refused() -> None:
    for make_env in (make, lambda task, image_size: make_vector(task, 2, image_size=image_size)):
        with pytest.raises(ValueError, match=r"invalid image_size of procgen/maze: expected 64, .* got 84"):
            make_env("procgen/maze", image_size=84)


def test_a_render_scale_is_rejected_by_name() -> None:
    with pytest.raises(ValueError, match=r"unsupported option for procgen/maze: .* levels, got render_scale"):
        make("procgen/maze", render_scale=2)


def test_another_view_or_set_of_levels_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown camera: expected one of 0 screen for procgen/maze, got 'side'"):
        make("procgen/maze", views=["side"])
    with pytest.raises(ValueError, match=r"procgen/maze: expected \['screen'\], got \['screen_foreground'\]"):
        make_vector("procgen/maze", 2, views=["screen_foreground"])
    with pytest.raises(ValueError, match="invalid levels: expected train or test, got 'hard'"):
        make_vector("procgen/maze", 2, levels="hard")  # type: ignore[arg-type]


def test_a_refused_snapshot_of_a_game_gives_the_reason() -> None:
    env = make("procgen/maze")
    env.reset(seed=0)
    with pytest.raises(NotRestorable, match="procgen/maze: EnvPool cannot save or restore the state"):
        snapshot(env)
    with pytest.raises(NotRestorable, match="procgen/maze: EnvPool cannot save or restore the state"):
        restore(env.unwrapped, {})
    env.close()


def test_the_metadata_hold_task_settings_and_views(vector: VectorEnv[Any, Any, Any]) -> None:
    assert vector.metadata["task"] == "procgen/starpilot"
    assert vector.metadata["settings"] == list_tasks()["procgen/starpilot"].settings
    assert [view.name for view in vector.metadata["views"]] == ["screen"]


def test_a_missing_qt_names_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "libQt5Gui.so.5").touch()  # found first, but not a library
    code = "import manyview.envs; manyview.envs.make('procgen/maze')"
    env_vars = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    process = subprocess.run([sys.executable, "-c", code], env=env_vars, capture_output=True, text=True, timeout=300)
    assert process.returncode != 0
    assert "procgen/maze renders with Qt 5, which cannot be loaded" in process.stderr
    assert "Install it: apt-get install libqt5gui5" in process.stderr
