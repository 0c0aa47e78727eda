"""Export of episodes to a LeRobot dataset, and their import as demonstrations."""

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

NUM_EPISODES = 3


class StepRecorder(gym.Wrapper[Any, Any, Any, Any]):
    """Environment wrapper that records the steps of every episode."""

    def __init__(self, env: gym.Env[Any, Any], episodes: list[list[tuple[Any, ...]]]) -> None:
        super().__init__(env)
        self.episodes, self.observation = episodes, None

    def reset(self, **options: Any) -> Any:
        self.observation, info = self.env.reset(**options)
        self.episodes.append([])
        return self.observation, info

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.episodes[-1].append((self.observation, action.copy(), *result[1:4]))
        self.observation = result[0]
        return result


def record_episodes(run_path: Path, *, own_task: str | None = None) -> list[list[tuple[Any, ...]]]:
    """Play episodes and return observation, action, reward and ends of their steps."""
    episodes: list[list[tuple[Any, ...]]] = []
    with RunPlayer(run_path, trusted_task=own_task) as player:
        player.play(episodes=NUM_EPISODES, wrap_env=lambda env: StepRecorder(env, episodes))
    return episodes


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a run with stacked frames and state vectors."""
    path = tmp_path_factory.mktemp("run") / "run"
    env = {"frame_stack": 2, "state_stack": 2, "state": ["goal", "clock"]}
    run(make_short_config("drqv2+none", task="toy/told_goal_continuous", env=env), RunDir(path))
    return path


@pytest.fixture(scope="module")
def dataset_path(run_path: Path) -> Path:
    """Return the path of a dataset of three episodes."""
    folder = run_path.with_name("dataset")
    write_dataset(run_path, folder, episodes=NUM_EPISODES)
    return folder


def test_rows_have_the_observations_actions_and_rewards_of_the_policy(run_path: Path, dataset_path: Path) -> None:
    steps = [step for episode in record_episodes(run_path) for step in episode]
    rows = pd.read_parquet(dataset_path / "data/chunk-000/file-000.parquet")
    assert len(rows) == len(steps) == 10 * NUM_EPISODES
    for (_, row), (observation, action, reward, terminated, truncated) in zip(rows.iterrows(), steps, strict=True):
        state = np.concatenate([observation["goal"][-1:], observation["clock"][-2:]])
        assert np.array_equal(row["observation.state"], state)
        assert np.array_equal(row["action"], action)
        assert row["next.reward"] == np.float32(reward)
        assert (row["next.terminated"], row["next.truncated"]) == (terminated, truncated)
        assert list(row["complementary_info.present"]) == [True]
    features = json.loads((dataset_path / "meta/info.json").read_text())["features"]
    assert features["observation.state"]["names"] == ["goal", "clock.0", "clock.1"]


def test_images_are_the_newest_of_the_stack_up_to_compression(run_path: Path, dataset_path: Path) -> None:
    episodes = record_episodes(run_path)
    with LeRobotDataset(dataset_path) as reader:
        for episode in reader.iter_episodes(["action"], ["observation.images.screen"]):
            for image, step in zip(episode.images["observation.images.screen"], episodes[episode.index], strict=True):
                expected_image = step[0]["screen"][..., -1:]
                assert np.abs(image.astype(int) - expected_image).mean() < 1


def import_exported(run_path: Path, dataset_path: Path, out: Path) -> Import:
    """Import an exported dataset with the config of its run."""
    options = ImportOptions(mapping=MappingOptions(cameras={}, state={}))
    return import_demonstrations(dataset_path, RunDir(run_path).read_config(), out, options=options)


def test_exported_episodes_are_imported_as_demonstrations(run_path: Path, dataset_path: Path, tmp_path: Path) -> None:
    result = import_exported(run_path, dataset_path, tmp_path / "out")
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
    for episode in record_episodes(run_path):
        for frame, (observation, action, reward, *_) in enumerate(episode):
            views, mask = replay.stack_frames(np.array([index]))
            vectors = replay.stack_vectors(np.array([index]))
            record = replay.steps[index]
            stack = observation["screen"].transpose(2, 0, 1)
            assert np.abs(views[0, 0].astype(int) - stack).mean() < 1
            assert mask[0].tolist() == observation[MASK].astype(bool).tolist()
            assert vectors is not None
            assert np.array_equal(vectors[0], stack_state_vectors(observation))
            if frame < len(episode) - 1:  # a toy episode times out: the observation after its last action is unknown
                assert np.array_equal(record["action"], action)
                assert record["reward"] == np.float32(reward)
            assert record["acted"] == (frame < len(episode) - 1)
            index += 1
    assert result.num_dropped == NUM_EPISODES


def stack_state_vectors(observation: Any) -> Any:
    """Return the stacked vectors of an environment in the order of a replay buffer.

    The environment stacks each vector: [goal, goal'] and [clock, clock'].
    """
    goal, clock = observation["goal"].reshape(2, 1), observation["clock"].reshape(2, 2)
    return np.concatenate([goal, clock], axis=1).reshape(-1)


def test_a_run_starts_from_imported_demonstrations(run_path: Path, dataset_path: Path, tmp_path: Path) -> None:
    import_exported(run_path, dataset_path, tmp_path / "out")
    env = {"frame_stack": 3, "state": ["goal", "clock"]}
    config = make_short_config(
        "sac+none", task="toy/told_goal_continuous", env=env, replay={"demonstrations": str(tmp_path / "out")}
    )
    assert run(config, RunDir(tmp_path / "run"))


def test_actions_are_in_the_units_of_the_robot(tmp_path: Path) -> None:
    train_robot(tmp_path / "run")
    result = write_dataset(tmp_path / "run", tmp_path / "dataset", episodes=NUM_EPISODES, own_task=TASK)
    assert result.fps == 20  # from the environment
    steps = [step for episode in record_episodes(tmp_path / "run", own_task=TASK) for step in episode]
    low, high = np.array(ACTION_LOW), np.array(ACTION_HIGH)
    expected = low + (np.array([step[1] for step in steps]) + 1) / 2 * (high - low)
    rows = pd.read_parquet(tmp_path / "dataset/data/chunk-000/file-000.parquet")
    assert np.allclose(np.stack(rows["action"]), expected, atol=1e-5)
    import_result = import_exported(tmp_path / "run", tmp_path / "dataset", tmp_path / "out")
    assert import_result.num_clipped == 0
    replay = load_demonstrations(tmp_path / "out", import_result.manifest.views, action_size=2, frame_stack=1).replay
    actions = replay.steps["action"][replay.steps["acted"]]
    acted_steps = [index for index in range(len(steps)) if index % 10 < 9]
    assert np.allclose(actions, [steps[index][1] for index in acted_steps], atol=1e-6)


def test_an_episode_of_max_steps_is_written(run_path: Path, tmp_path: Path) -> None:
    config_file = run_path / "config.json"
    config_text = config_file.read_text()
    try:
        plain = json.loads(config_text)
        plain["evaluation"]["max_steps"] = 4
        config_file.write_text(json.dumps(plain))
        result = write_dataset(run_path, tmp_path / "dataset", episodes=2)
    finally:
        config_file.write_text(config_text)
    assert result.num_frames == 8
    rows = pd.read_parquet(tmp_path / "dataset/data/chunk-000/file-000.parquet")
    assert rows["next.done"].tolist() == [False, False, False, True] * 2
    assert not rows["next.terminated"].any()


def test_a_failed_export_leaves_no_files(run_path: Path, tmp_path: Path) -> None:
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
