"""Train on a toy, then play without exploring."""

from typing import Any

from manyview.train import build
from manyview.train.evaluation import evaluate
from manyview.train.opening import trainer_for
from manyview.train.presets import preset_config
from manyview.train.tree import changed, merged

EPISODES = 100
TOYS: dict[str, Any] = {
    "machine": {"device": "cpu", "threads": 1},
    "schedule": {"random_steps": 200, "seed_frames": 200},
    "drqv2": {"lr": 1e-3},
    "sac": {"lr": 1e-3},
}
"""Over the preset `minute`: on one thread of the CPU, and in a hurry."""


def score(task: str, method: str, *, frames: int, changes: dict[str, Any] | None = None) -> float:
    """Mean reward a step, once so many frames are over; the toys pay at most 1."""
    config = preset_config("minute", task=task, method=method, seed=1)
    config = changed(config, merged(TOYS, merged({"schedule": {"frames": frames}}, changes or {})))
    trainer, env = trainer_for(config), build.environment(config)
    try:
        while not trainer.done:
            trainer.advance()
        step = trainer.clock.steps
        played = evaluate(trainer.agent, env, trainer.shapes, episodes=EPISODES, seed=0, step=step)
    finally:
        trainer.close()
        env.close()
    return sum(played.returns) / sum(played.steps)
