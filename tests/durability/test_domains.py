"""Environments in mid-episode, through the trainer: other domains, other states."""

from pathlib import Path

import numpy as np
import pytest

from manyview.train.trainer import Trainer
from tests.train.runs import short_run
from tests.train.test_resume import differences, loaded, saved

TASKS = ("ball_in_cup_catch", "cheetah_run", "finger_turn_hard", "hopper_hop", "reacher_hard")


@pytest.mark.simulator
@pytest.mark.quality("D7")
@pytest.mark.parametrize("task", TASKS)
def test_an_episode_goes_on_exactly_for_200_steps(task: str, tmp_path: Path) -> None:
    config = short_run(
        task=f"dmc/{task}",
        env={"image_size": 16, "action_repeat": 2},
        schedule={"frames": 10_000, "random_steps": 10_000, "seed_frames": 10_000},
        replay={"capacity": 300},
    )
    trainer = Trainer(config)
    for _ in range(30):
        trainer.advance()
    saved(trainer, tmp_path)
    other = loaded(config, tmp_path)
    for _ in range(200):
        trainer.advance()
        other.advance()
        assert all(np.array_equal(trainer.observation[name], other.observation[name]) for name in other.observation)
    assert differences(trainer.state(), other.state()) == []
    for each in (trainer, other):
        each.close()
