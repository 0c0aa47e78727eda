"""Lines 4 to 14 of Algorithm 1: what the agent is asked, and when; what it is paid, and how episodes begin and end."""

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


def test_the_agent_acts_on_what_was_shown_last_and_learns_at_the_step_it_is_at() -> None:
    trainer: Any = OffPolicyTrainer(make_short_config(schedule={"random_steps": 20, "seed_frames": 30}))
    agent, replay = trainer.agent, trainer.replay
    shown: Any = []
    asked: Any = []
    learned: Any = []
    begin, add, act, update = replay.start_episode, replay.add, agent.act, agent.update
    replay.start_episode = lambda seen: shown.append(seen) or begin(seen)
    replay.add = lambda *step, **flags: shown.append(step[-1]) or add(*step, **flags)
    agent.update = lambda batch, step: learned.append(step) or update(batch, step)

    def acted(views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Any:
        asked.append(step)
        assert explore
        assert views.equal(to_tensors(shown[-1], trainer.shapes.views, trainer.device)[0])
        return act(views, mask, step=step, explore=explore)

    agent.act = acted
    for _ in range(40):
        trainer.advance()
    assert asked == list(range(20, 40))
    assert learned == list(range(30, 41))


class Doubled(gym.Wrapper[Any, Any, Any, Any]):
    """Every step takes two frames of a simulator, which keeps its state to itself."""

    def step(self, action: Any) -> Any:
        *seen, info = super().step(action)
        return (*seen, {**info, "frames": 2})

    def snapshot(self) -> Any:
        raise NotRestorable("it cannot")


def doubled() -> gym.Env[Any, Any]:
    return Doubled(HiddenGoal(actions="continuous"))


def test_frames_are_the_simulators_and_updates_wait_for_them() -> None:
    trainer = OffPolicyTrainer(make_short_config(task=f"{__name__}:doubled"))
    learned = [step for step in range(1, 31) if trainer.advance().metrics is not None]
    trainer.close()
    assert (trainer.counters.frames, trainer.counters.steps) == (60, 30)
    assert learned == list(range(15, 31)), "after 30 frames"


@pytest.mark.parametrize(("task", "terminal"), [("hidden_goal_continuous", False), ("deep_sea_continuous", True)])
def test_the_replay_has_what_was_paid_and_tells_a_clock_that_ran_out_from_a_world_that_ended(
    task: str, terminal: bool
) -> None:
    trainer = OffPolicyTrainer(make_short_config(task=f"toy/{task}", schedule={"seed_frames": 100}))
    ended = [episode for _ in range(40) for episode in trainer.advance().episodes]
    trainer.close()
    steps = trainer.replay.steps[: trainer.replay.inserted - 1].reshape(4, 11)  # ten steps and what was seen last
    assert steps["acted"].tolist() == [[True] * 10 + [False]] * 4
    assert (steps["terminated"] & steps["acted"]).tolist() == [[False] * 9 + [terminal] + [False]] * 4
    paid = np.where(steps["acted"], steps["reward"], 0).sum(1)
    assert paid.tolist() == pytest.approx([episode["return"] for episode in ended], abs=1e-6)


def test_every_episode_begins_by_a_seed_of_its_own() -> None:
    trainer = OffPolicyTrainer(make_short_config(schedule={"seed_frames": 100}))
    trainer.collector.env = watched = SeedRecorder(trainer.env)
    for _ in range(40):
        trainer.advance()
    trainer.close()
    assert watched.reset_seeds == [derive_seed(1, "episode", number) for number in range(1, 5)]
    assert len(set(watched.reset_seeds)) == 4


def test_random_actions_are_others_at_every_step_and_from_all_of_their_range() -> None:
    trainer = OffPolicyTrainer(make_short_config(schedule={"random_steps": 60, "seed_frames": 100}))
    for _ in range(60):
        trainer.advance()
    trainer.close()
    actions = trainer.replay.steps["action"][trainer.replay.steps["acted"]]
    assert len(np.unique(actions)) == actions.size == 120
    counts, _ = np.histogram(actions, bins=4, range=(-1, 1))
    assert counts.sum() == 120
    assert counts.min() > 15


def test_where_an_episode_cannot_be_restored_the_next_one_begins(tmp_path: Path) -> None:
    config = make_short_config(task=f"{__name__}:doubled", replay={"capacity": 40})
    trainer, twin = train_and_resume(config, tmp_path, steps=25)
    env = factory.make_env(config)
    shown, _ = env.reset(seed=derive_seed(config.seed, "episode", trainer.counters.episodes))
    views, _ = to_tensors(shown, twin.shapes.views, twin.device)
    assert np.array_equal(twin.replay.get_observation()[0], views.numpy())
    assert twin.counters.episodes == trainer.counters.episodes + 1
    assert twin.replay.inserted == trainer.replay.inserted + 1
    before, newest = twin.replay.steps[[(twin.replay.inserted - back) % 40 for back in (2, 1)]]
    assert not before["acted"]
    assert not newest["acted"]
    for each in (trainer, twin, env):
        each.close()
