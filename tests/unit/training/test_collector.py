"""Lines 4 to 14 of Algorithm 1: actions, rewards, and limits of episodes."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import Tensor

from manyview.envs import NotRestorable
from manyview.envs.toy import HiddenGoal
from manyview.training import factory
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.preprocessing import to_tensors
from manyview.utils.seeding import derive_seed
from tests.support.checkpoints import train_and_resume
from tests.support.runs import SeedRecorder, make_short_config


def test_the_agent_acts_on_the_newest_observation_and_updates_at_the_current_step() -> None:
    trainer: Any = OffPolicyTrainer(make_short_config(schedule={"random_steps": 20, "seed_frames": 30}))
    agent, replay = trainer.agent, trainer.replay
    observations: Any = []
    act_steps: Any = []
    update_steps: Any = []
    start_episode, add, act, update = replay.start_episode, replay.add, agent.act, agent.update
    replay.start_episode = lambda observation: observations.append(observation) or start_episode(observation)
    replay.add = lambda *step, **flags: observations.append(step[-1]) or add(*step, **flags)
    agent.update = lambda batch, step: update_steps.append(step) or update(batch, step)

    def check_and_act(views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Any:
        act_steps.append(step)
        assert explore
        assert views.equal(to_tensors(observations[-1], trainer.shapes.views, trainer.device)[0])
        return act(views, mask, step=step, explore=explore)

    agent.act = check_and_act
    for _ in range(40):
        trainer.advance()
    assert act_steps == list(range(20, 40))
    assert update_steps == list(range(30, 41))


class TwoFrameEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Environment with two simulator frames per step, which cannot save its state."""

    def step(self, action: Any) -> Any:
        *outputs, info = super().step(action)
        return (*outputs, {**info, "frames": 2})

    def snapshot(self) -> Any:
        raise NotRestorable("it cannot")


def make_two_frame_env() -> gym.Env[Any, Any]:
    return TwoFrameEnv(HiddenGoal(actions="continuous"))


def test_updates_wait_for_simulator_frames() -> None:
    trainer = OffPolicyTrainer(make_short_config(task=f"{__name__}:make_two_frame_env"))
    update_steps = [step for step in range(1, 31) if trainer.advance().metrics is not None]
    trainer.close()
    assert (trainer.counters.frames, trainer.counters.steps) == (60, 30)
    assert update_steps == list(range(15, 31)), "after 30 frames"


@pytest.mark.parametrize(("task", "terminal"), [("hidden_goal_continuous", False), ("deep_sea_continuous", True)])
def test_the_replay_buffer_has_the_rewards_and_marks_only_terminated_episodes(task: str, terminal: bool) -> None:
    trainer = OffPolicyTrainer(make_short_config(task=f"toy/{task}", schedule={"seed_frames": 100}))
    episodes = [episode for _ in range(40) for episode in trainer.advance().episodes]
    trainer.close()
    # Ten transitions and the last observation of each episode.
    steps = trainer.replay.steps[: trainer.replay.inserted - 1].reshape(4, 11)
    assert steps["acted"].tolist() == [[True] * 10 + [False]] * 4
    assert (steps["terminated"] & steps["acted"]).tolist() == [[False] * 9 + [terminal] + [False]] * 4
    returns = np.where(steps["acted"], steps["reward"], 0).sum(1)
    assert returns.tolist() == pytest.approx([episode["return"] for episode in episodes], abs=1e-6)


def test_every_episode_has_its_own_seed() -> None:
    trainer = OffPolicyTrainer(make_short_config(schedule={"seed_frames": 100}))
    trainer.collector.env = recorder = SeedRecorder(trainer.env)
    for _ in range(40):
        trainer.advance()
    trainer.close()
    assert recorder.reset_seeds == [derive_seed(1, "episode", number) for number in range(1, 5)]
    assert len(set(recorder.reset_seeds)) == 4


def test_random_actions_differ_at_every_step_and_cover_their_range() -> None:
    trainer = OffPolicyTrainer(make_short_config(schedule={"random_steps": 60, "seed_frames": 100}))
    for _ in range(60):
        trainer.advance()
    trainer.close()
    actions = trainer.replay.steps["action"][trainer.replay.steps["acted"]]
    assert len(np.unique(actions)) == actions.size == 120
    counts, _ = np.histogram(actions, bins=4, range=(-1, 1))
    assert counts.sum() == 120
    assert counts.min() > 15


def test_a_resumed_run_starts_the_next_episode_if_the_old_one_cannot_be_restored(tmp_path: Path) -> None:
    config = make_short_config(task=f"{__name__}:make_two_frame_env", replay={"capacity": 40})
    trainer, resumed = train_and_resume(config, tmp_path, steps=25)
    env = factory.make_env(config)
    observation, _ = env.reset(seed=derive_seed(config.seed, "episode", trainer.counters.episodes))
    views, _ = to_tensors(observation, resumed.shapes.views, resumed.device)
    assert np.array_equal(resumed.replay.get_observation()[0], views.numpy())
    assert resumed.counters.episodes == trainer.counters.episodes + 1
    assert resumed.replay.inserted == trainer.replay.inserted + 1
    before, newest = resumed.replay.steps[[(resumed.replay.inserted - back) % 40 for back in (2, 1)]]
    assert not before["acted"]
    assert not newest["acted"]
    for resource in (trainer, resumed, env):
        resource.close()
