"""Trainers on several domains of dm_control resume in mid-episode."""

from pathlib import Path

import pytest

from benchmarks.run_comparison import compare_trees
from tests.support.checkpoints import train_and_resume
from tests.support.runs import make_short_config

TASKS = ("ball_in_cup_catch", "cheetah_run", "finger_turn_hard", "hopper_hop", "reacher_hard")


@pytest.mark.simulator
@pytest.mark.quality("D7")
@pytest.mark.parametrize("task", TASKS)
def test_a_resumed_episode_is_identical_for_200_steps(task: str, tmp_path: Path) -> None:
    config = make_short_config(
        task=f"dmc/{task}",
        env={"image_size": 16, "action_repeat": 2},
        schedule={"frames": 10_000, "random_steps": 10_000, "seed_frames": 10_000},
        replay={"capacity": 300},
    )
    trainer, resumed = train_and_resume(config, tmp_path, steps=30)
    for _ in range(200):
        trainer.advance()
        resumed.advance()
        assert compare_trees(trainer.replay.get_observation(), resumed.replay.get_observation()) == []
    assert compare_trees(trainer.get_state(), resumed.get_state()) == []
    for open_trainer in (trainer, resumed):
        open_trainer.close()
