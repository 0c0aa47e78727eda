"""Exported episodes are those of the policy, and come back as demonstrations for runs on the same task."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest

from manyview.data.demonstrations import load_demonstrations
from manyview.data.lerobot.reader import LeRobotDataset
from manyview.deploy.dataset_mapping import MappingOptions
from manyview.deploy.export_dataset import write_dataset
from manyview.deploy.import_dataset import Import, ImportOptions, import_demonstrations
from manyview.envs.views import MASK
from manyview.report.policy_rollout import RunPlayer
from manyview.training import RunDir, run
from tests.support.robots import ACTION_HIGH, ACTION_LOW, TASK, train_robot
from tests.support.runs import make_short_config

EPISODES = 3


class Witness(gym.Wrapper[Any, Any, Any, Any]):
    """Notes what the policy saw and did."""

    def __init__(self, env: gym.Env[Any, Any], seen: list[list[tuple[Any, ...]]]) -> None:
        super().__init__(env)
        self.seen, self.observation = seen, None

    def reset(self, **options: Any) -> Any:
        self.observation, info = self.env.reset(**options)
        self.seen.append([])
        return self.observation, info

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.seen[-1].append((self.observation, action.copy(), *result[1:4]))
        self.observation = result[0]
        return result


def witness(run_path: Path, *, own_task: str | None = None) -> list[list[tuple[Any, ...]]]:
    """Observation, action, reward and ends of every step of the episodes."""
    seen: list[list[tuple[Any, ...]]] = []
    with RunPlayer(run_path, trusted_task=own_task) as player:
        player.play(episodes=EPISODES, wrap_env=lambda env: Witness(env, seen))
    return seen


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with stacked frames and vectors."""
    path = tmp_path_factory.mktemp("run") / "run"
    env = {"frame_stack": 2, "state_stack": 2, "state": ["goal", "clock"]}
    run(make_short_config("drqv2+none", task="toy/told_goal_continuous", env=env), RunDir(path))
    return path


@pytest.fixture(scope="module")
def dataset(run_path: Path) -> Path:
    folder = run_path.with_name("dataset")
    write_dataset(run_path, folder, episodes=EPISODES)
    return folder


def test_rows_are_what_the_policy_saw_did_and_was_paid(run_path: Path, dataset: Path) -> None:
    seen = [step for episode in witness(run_path) for step in episode]
    rows = pd.read_parquet(dataset / "data/chunk-000/file-000.parquet")
    assert len(rows) == len(seen) == 10 * EPISODES
    for (_, row), (observation, action, reward, terminated, truncated) in zip(rows.iterrows(), seen, strict=True):
        newest = np.concatenate([observation["goal"][-1:], observation["clock"][-2:]])
        assert np.array_equal(row["observation.state"], newest)
        assert np.array_equal(row["action"], action)
        assert row["next.reward"] == np.float32(reward)
        assert (row["next.terminated"], row["next.truncated"]) == (terminated, truncated)
        assert list(row["complementary_info.present"]) == [True]
    features = json.loads((dataset / "meta/info.json").read_text())["features"]
    assert features["observation.state"]["names"] == ["goal", "clock.0", "clock.1"]


def test_images_are_the_newest_of_the_stack_up_to_compression(run_path: Path, dataset: Path) -> None:
    seen = witness(run_path)
    with LeRobotDataset(dataset) as opened:
        for episode in opened.iter_episodes(["action"], ["observation.images.screen"]):
            for image, step in zip(episode.images["observation.images.screen"], seen[episode.index], strict=True):
                newest = step[0]["screen"][..., -1:]
                assert np.abs(image.astype(int) - newest).mean() < 1


def import_back(run_path: Path, dataset: Path, out: Path) -> Import:
    options = ImportOptions(mapping=MappingOptions(cameras={}, state={}))
    return import_demonstrations(dataset, RunDir(run_path).read_config(), out, options=options)


def test_exported_episodes_come_back_as_demonstrations(run_path: Path, dataset: Path, tmp_path: Path) -> None:
    result = import_back(run_path, dataset, tmp_path / "out")
    manifest = result.manifest
    replay = load_demonstrations(
        tmp_path / "out",
        manifest.views,
        action_size=1,
        frame_stack=2,
        state_vectors=manifest.state_vectors,
        state_stack=2,
    ).replay
    index = 0
    for episode in witness(run_path):
        for frame, (observation, action, reward, *_) in enumerate(episode):
            views, mask = replay.stack_frames(np.array([index]))
            vectors = replay.stack_vectors(np.array([index]))
            record = replay.steps[index]
            stack = observation["screen"].transpose(2, 0, 1)
            assert np.abs(views[0, 0].astype(int) - stack).mean() < 1
            assert mask[0].tolist() == observation[MASK].astype(bool).tolist()
            assert vectors is not None
            assert np.array_equal(vectors[0], interleave(observation))
            if frame < len(episode) - 1:  # the toys time out: what followed the last action is unknown
                assert np.array_equal(record["action"], action)
                assert record["reward"] == np.float32(reward)
            assert record["acted"] == (frame < len(episode) - 1)
            index += 1
    assert result.num_dropped == EPISODES


def interleave(observation: Any) -> Any:
    """Stacked vectors of an environment, [goal, goal'] and [clock, clock'], as a replay buffer stacks them."""
    goal, clock = observation["goal"].reshape(2, 1), observation["clock"].reshape(2, 2)
    return np.concatenate([goal, clock], axis=1).reshape(-1)


def test_a_run_starts_from_them(run_path: Path, dataset: Path, tmp_path: Path) -> None:
    import_back(run_path, dataset, tmp_path / "out")
    env = {"frame_stack": 3, "state": ["goal", "clock"]}
    config = make_short_config(
        "sac+none", task="toy/told_goal_continuous", env=env, replay={"demonstrations": str(tmp_path / "out")}
    )
    assert run(config, RunDir(tmp_path / "run"))


def test_actions_are_in_the_units_of_the_robot(tmp_path: Path) -> None:
    train_robot(tmp_path / "run")
    result = write_dataset(tmp_path / "run", tmp_path / "dataset", episodes=EPISODES, own_task=TASK)
    assert result.fps == 20  # of the environment
    seen = [step for episode in witness(tmp_path / "run", own_task=TASK) for step in episode]
    low, high = np.array(ACTION_LOW), np.array(ACTION_HIGH)
    expected = low + (np.array([step[1] for step in seen]) + 1) / 2 * (high - low)
    rows = pd.read_parquet(tmp_path / "dataset/data/chunk-000/file-000.parquet")
    assert np.allclose(np.stack(rows["action"]), expected, atol=1e-5)
    back = import_back(tmp_path / "run", tmp_path / "dataset", tmp_path / "out")
    assert back.num_clipped == 0
    replay = load_demonstrations(tmp_path / "out", back.manifest.views, action_size=2, frame_stack=1).replay
    actions = replay.steps["action"][replay.steps["acted"]]
    kept = [number for number in range(len(seen)) if number % 10 < 9]
    assert np.allclose(actions, [seen[number][1] for number in kept], atol=1e-6)


def test_an_episode_that_is_cut_is_written_too(run_path: Path, tmp_path: Path) -> None:
    config_file = run_path / "config.json"
    before = config_file.read_text()
    try:
        plain = json.loads(before)
        plain["evaluation"]["max_steps"] = 4
        config_file.write_text(json.dumps(plain))
        result = write_dataset(run_path, tmp_path / "dataset", episodes=2)
    finally:
        config_file.write_text(before)
    assert result.num_frames == 8
    rows = pd.read_parquet(tmp_path / "dataset/data/chunk-000/file-000.parquet")
    assert rows["next.done"].tolist() == [False, False, False, True] * 2
    assert not rows["next.terminated"].any()


def test_a_failed_export_leaves_nothing(run_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="episodes must be at least 1"):
        write_dataset(run_path, tmp_path / "dataset", episodes=0)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "dataset").touch()
    with pytest.raises(FileExistsError, match="expected a new folder"):
        write_dataset(run_path, tmp_path / "dataset", episodes=1)


def test_discrete_actions_are_refused(tmp_path: Path) -> None:
    from tests.support.runs import make_short_rollout_config

    run(make_short_rollout_config(), RunDir(tmp_path / "run"))
    with pytest.raises(ValueError, match="discrete actions: expected a run with continuous actions"):
        write_dataset(tmp_path / "run", tmp_path / "dataset", episodes=1)
