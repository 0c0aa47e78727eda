"""Procgen: the contract for the paper's nine games, levels, and that no false transition reaches a learner."""

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

NOTHING = 4
"""The action of no key."""


class GameContract(EnvironmentContract):
    game: ClassVar[str]
    max_episode_steps = 6000
    can_restore = False

    def make_env(self) -> gym.Env[Observation, Any]:
        return make(f"procgen/{self.game}")


class GamesContract(VectorContract):
    game: ClassVar[str]

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        return make_vector(f"procgen/{self.game}", self.num_envs)


for _game in PAPER_GAMES:
    for _kind, _contract in (("", GameContract), ("Vector", GamesContract)):
        _name = f"Test{_game.capitalize()}{_kind}Contract"
        globals()[_name] = type(_name, (_contract,), {"game": _game, "__module__": __name__})


@dataclass
class Stream:
    """The life of one game of the pool."""

    actions: list[int] = field(default_factory=list)
    transitions: list[tuple[bytes, int, float, bool, bool]] = field(default_factory=list)
    """What each action led to: picture, level, reward, terminated, truncated."""
    beginnings: list[tuple[bytes, int]] = field(default_factory=list)
    """What each episode began with: picture and level."""
    returns: list[float] = field(default_factory=list)


def our_streams(game: str, actions: NDArray[np.int64], *, seed: int) -> list[Stream]:
    """What a learner sees, by the game that it sees in each place."""
    vector = make_vector(f"procgen/{game}", actions.shape[1])
    assert isinstance(vector, ProcgenVector)
    pool = vector._pool
    streams = [Stream() for _ in range(pool.num_games)]
    observation, info = vector.reset(seed=seed)
    for place, number in enumerate(pool.active_games):
        streams[number].beginnings.append((as_drawn(observation["screen"][place]), info["level_seed"][place]))
    for row in actions:
        before = pool.active_games.copy()
        observation, rewards, terminated, truncated, info = vector.step(row)
        ended = terminated | truncated
        assert ended.any() == ("final_obs" in info)
        for place, number in enumerate(before):
            stream = streams[number]
            seen = (as_drawn(observation["screen"][place]), info["level_seed"][place])
            if ended[place]:
                streams[pool.active_games[place]].beginnings.append(seen)
                final = info["final_info"]
                stream.returns.append(final["episode"]["return"][place])
                seen = (as_drawn(info["final_obs"][place]["screen"]), final["level_seed"][place])
            stream.actions.append(row[place])
            stream.transitions.append((*seen, rewards[place], terminated[place], truncated[place]))
    vector.close()
    return streams


def bare_streams(game: str, actions: list[list[int]], *, seed: int) -> tuple[list[Stream], int]:
    """Bare EnvPool, each game with its own actions, and how many rows were resets that look like transitions."""
    import envpool

    pool = envpool.make_gymnasium(f"{game.capitalize()}Easy-v0", num_envs=len(actions), seed=seed, num_levels=200)
    streams, resets = [Stream(actions=asked) for asked in actions], 0
    images, info = pool.reset()
    for number, stream in enumerate(streams):
        stream.beginnings.append((images[number].tobytes(), info["level_seed"][number]))
    ended, total = np.zeros(len(actions), bool), np.zeros(len(actions))
    while any(len(stream.transitions) < len(stream.actions) for stream in streams):
        places = [min(len(stream.transitions), len(stream.actions) - 1) for stream in streams]
        row = [stream.actions[place] if stream.actions else 0 for stream, place in zip(streams, places, strict=True)]
        images, rewards, terminated, truncated, info = pool.step(np.array(row, np.int32))
        for number, stream in enumerate(streams):
            if len(stream.transitions) == len(stream.actions):
                continue
            seen = (images[number].tobytes(), info["level_seed"][number])
            if ended[number]:
                assert (rewards[number], terminated[number], truncated[number]) == (0, False, False)
                stream.beginnings.append(seen)
                resets += 1
                continue
            stream.transitions.append((*seen, rewards[number], terminated[number], truncated[number]))
            total[number] += rewards[number]
            if terminated[number] or truncated[number]:
                stream.returns.append(total[number])
                total[number] = 0
        ended = terminated | truncated
    return streams, resets


def as_drawn(screen: NDArray[np.uint8]) -> bytes:
    return screen.transpose(2, 0, 1).tobytes()


def assert_same_lives(game: str, actions: NDArray[np.int64]) -> None:
    """Pictures, levels, rewards, ends, first frames and raw returns, exactly."""
    ours = our_streams(game, actions, seed=11)
    bare, resets = bare_streams(game, [stream.actions for stream in ours], seed=11)
    assert resets > 0, "no episode was followed by another, so nothing was shown"
    assert sum(len(stream.transitions) for stream in ours) == actions.size
    for mine, theirs in zip(ours, bare, strict=True):
        assert mine.transitions == theirs.transitions
        assert mine.returns == theirs.returns
        # Once there are no more actions, the one or the other may have begun another episode.
        both = min(len(mine.beginnings), len(theirs.beginnings))
        assert both >= len(mine.returns)
        assert mine.beginnings[:both] == theirs.beginnings[:both]


@pytest.mark.parametrize("game", PAPER_GAMES)
def test_the_stream_is_that_of_bare_envpool_without_its_reset_rows(game: str) -> None:
    assert_same_lives(game, np.random.default_rng(1).integers(15, size=(500, 8)))


def test_so_it_is_when_all_games_end_at_once() -> None:
    """After 1000 steps time is up, and more games end than stand by."""
    assert_same_lives("coinrun", np.full((1010, 4), NOTHING))


def level_seeds(levels: Any, *, resets: int) -> NDArray[np.int64]:
    vector = make_vector("procgen/miner", 64, levels=levels)
    seeds = [vector.reset(seed=0 if number == 0 else None)[1]["level_seed"] for number in range(resets)]
    vector.close()
    return np.concatenate(seeds).astype(np.int64)


def test_training_shows_all_of_200_levels_and_no_other() -> None:
    assert set(level_seeds(None, resets=40)) == set(range(200))


def test_testing_shows_levels_from_everywhere() -> None:
    seeds = level_seeds("test", resets=20)
    assert len(set(seeds)) > 0.99 * len(seeds)
    assert np.mean(seeds < 200) < 0.01


@pytest.mark.parametrize("game", GAMES)
def test_every_game_can_be_made_and_moves(game: str) -> None:
    env = make(f"procgen/{game}")
    env.action_space.seed(0)
    first, _ = env.reset(seed=0)
    assert first["screen"].std() > 1
    pictures = {env.step(env.action_space.sample())[0]["screen"].tobytes() for _ in range(10)}
    assert len(pictures) > 1
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
        _, _, terminated, truncated, _ = vector.step(np.full(4, NOTHING))
        assert not (terminated | truncated).any()
    _, _, terminated, truncated, info = vector.step(np.full(4, NOTHING))
    vector.close()
    assert truncated.all()
    assert not terminated.any()
    assert (info["final_info"]["episode"]["steps"] == 1000).all()
    assert (info["final_info"]["episode"]["frames"] == 1000).all()


class ImpatientPool(GamePool):
    """Every end of an episode comes when its time is up, as EnvPool sees it."""

    def _make_pool(self, seed: int) -> Any:
        return self._envpool.make_gymnasium("CoinrunEasy-v0", num_envs=self.num_envs, seed=seed, max_episode_steps=1)


def test_a_level_completed_in_the_last_step_is_a_real_end() -> None:
    pool = ImpatientPool("procgen/coinrun", levels="train", num_envs=16)
    pool.reset(seed=0)
    keys = np.random.default_rng(0).choice([7, 8], size=(300, 16)).astype(np.int32)  # right, and right with a jump
    completed, lost = 0, 0
    for actions in keys:
        state = pool.step(actions)
        assert (state.terminated == (state.level_complete == 1)).all()
        completed, lost = completed + state.terminated.sum(), lost + state.truncated.sum()
        if state.done.any():
            pool.reset_games(np.flatnonzero(state.done), state)
    assert completed > 0
    assert lost > 0


@pytest.fixture
def vector() -> Iterator[VectorEnv[Any, Any, Any]]:
    made = make_vector("procgen/starpilot", 8)
    yield made
    made.close()


def test_later_steps_leave_pictures_alone(vector: VectorEnv[Any, Any, Any]) -> None:
    """Those of a reset, of a step, and the last ones of an episode."""
    vector.action_space.seed(0)
    kept: list[tuple[Observation, Observation]] = []
    observation, _ = vector.reset(seed=0)
    ends = 0
    for _ in range(200):
        kept.append((observation, {name: part.copy() for name, part in observation.items()}))
        observation, _, _, _, info = vector.step(vector.action_space.sample())
        for last in info.get("final_obs", ()):
            if last is not None:
                kept.append((last, {name: part.copy() for name, part in last.items()}))
                ends += 1
    assert ends > 0
    assert all(are_equal(shown, copied) for shown, copied in kept)


def test_networks_get_envpools_memory_without_a_copy(vector: VectorEnv[Any, Any, Any]) -> None:
    observation, _ = vector.reset(seed=0)
    assert observation["screen"].transpose(0, 3, 1, 2).flags.c_contiguous


def test_a_seed_begins_everything_anew(vector: VectorEnv[Any, Any, Any]) -> None:
    def played(seed: int | None) -> list[Any]:
        vector.action_space.seed(0)
        seen = [vector.reset(seed=seed)[1]["level_seed"].tolist()]
        return seen + [vector.step(vector.action_space.sample())[0]["screen"].tobytes() for _ in range(100)]

    first = played(seed=3)
    assert played(seed=4) != first
    assert played(seed=None) != first
    assert played(seed=3) == first
    assert played(seed=2**40) != first


def test_without_a_seed_no_two_runs_are_alike() -> None:
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
            assert np.array_equal(stack, stack_of(episode))
        actions = rng.integers(15, size=8)
        observation, _, _, _, info = single.step(actions)
        observed, _, _, _, stacked_info = stacked.step(actions)
        frames, stacks = observation["screen"], observed["screen"]
        for place, frame in enumerate(frames):
            if "final_obs" in info and info["_final_obs"][place]:
                episodes[place].append(info["final_obs"][place]["screen"])
                assert np.array_equal(stacked_info["final_obs"][place]["screen"], stack_of(episodes[place]))
                episodes[place], ends = [], ends + 1
            episodes[place].append(frame)
    assert ends > 0
    single.close()
    stacked.close()


def stack_of(episode: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    last = len(episode) - 1
    return np.concatenate([episode[max(last - back, 0)] for back in (2, 1, 0)], axis=-1)


@pytest.mark.parametrize(
    ("actions", "got"),
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
def test_a_wrong_action_is_named_and_changes_nothing(vector: VectorEnv[Any, Any, Any], actions: Any, got: str) -> None:
    vector.reset(seed=0)
    with pytest.raises(ContractError, match=f"procgen/starpilot: action: expected .*integers from 0 to 14, got {got}"):
        vector.step(actions)
    after = vector.step(np.zeros(8, int))[0]
    vector.reset(seed=0)
    assert are_equal(after, vector.step(np.zeros(8, int))[0])


def test_a_step_before_reset_is_refused(vector: VectorEnv[Any, Any, Any]) -> None:
    with pytest.raises(ContractError, match=r"procgen/starpilot: step: .* Call reset"):
        vector.step(np.zeros(8, int))


def test_closing_ends_everything() -> None:
    vector = make_vector("procgen/starpilot", 2)
    vector.reset(seed=0)
    vector.close()
    vector.close()
    with pytest.raises(ContractError, match="procgen/starpilot: step"):
        vector.step(np.zeros(2, int))
    with pytest.raises(ContractError, match=r"procgen/starpilot: reset: .* Make a new environment"):
        vector.reset()


def test_another_picture_size_is_refused() -> None:
    for made in (make, lambda task, image_size: make_vector(task, 2, image_size=image_size)):
        with pytest.raises(ValueError, match=r"invalid image_size of procgen/maze: expected 64, .* got 84"):
            made("procgen/maze", image_size=84)


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


def test_it_says_why_a_game_cannot_be_restored() -> None:
    env = make("procgen/maze")
    env.reset(seed=0)
    with pytest.raises(NotRestorable, match="procgen/maze: EnvPool cannot save or restore the state"):
        snapshot(env)
    with pytest.raises(NotRestorable, match="procgen/maze: EnvPool cannot save or restore the state"):
        restore(env.unwrapped, {})
    env.close()


def test_the_vector_environment_says_what_it_is(vector: VectorEnv[Any, Any, Any]) -> None:
    assert vector.metadata["task"] == "procgen/starpilot"
    assert vector.metadata["settings"] == list_tasks()["procgen/starpilot"].settings
    assert [view.name for view in vector.metadata["views"]] == ["screen"]


def test_a_missing_qt_is_answered_with_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "libQt5Gui.so.5").touch()  # found first, and no library
    code = "import manyview.envs; manyview.envs.make('procgen/maze')"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode != 0
    assert "procgen/maze renders with Qt 5, which cannot be loaded" in ended.stderr
    assert "Install it: apt-get install libqt5gui5" in ended.stderr
