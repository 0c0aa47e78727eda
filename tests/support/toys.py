"""Train on a toy, then play without exploring."""

from typing import Any

from manyview.config.overrides import apply_overrides, merge_overrides
from manyview.config.presets import apply_sections, load_preset
from manyview.training import factory
from manyview.training.evaluation import evaluate_policy
from manyview.training.runner import make_trainer

EPISODES = 100
TOYS: dict[str, Any] = {
    "compute": {"device": "cpu", "threads": 1},
    "schedule": {"random_steps": 200, "seed_frames": 200},
    "agent": {"drqv2": {"lr": 1e-3}, "sac": {"lr": 1e-3}},
}
"""Over the preset `minute`: on one thread of the CPU, and in a hurry."""


def score(task: str, method: str, *, frames: int, changes: dict[str, Any] | None = None, seed: int = 1) -> float:
    """Mean reward a step, once so many frames are over; the toys pay at most 1."""
    config = load_preset("minute", task=task, method=method, seed=seed)
    config = apply_sections(config, TOYS)
    config = apply_overrides(config, merge_overrides({"schedule": {"frames": frames}}, changes or {}))
    trainer, env = make_trainer(config), factory.make_env(config)
    try:
        while not trainer.is_done:
            trainer.advance()
        step = trainer.counters.steps
        played = evaluate_policy(trainer.agent, env, trainer.shapes, episodes=EPISODES, seed=0, step=step)
    finally:
        trainer.close()
        env.close()
    return sum(played.returns) / sum(played.steps)
