"""Training on toy tasks, and evaluation of the result."""

from typing import Any

from manyview.config.overrides import apply_overrides, merge_overrides
from manyview.config.presets import apply_sections, load_preset
from manyview.training import factory
from manyview.training.evaluation import evaluate_policy
from manyview.training.runner import make_trainer

EVALUATION_EPISODES = 100
TOY_SETTINGS: dict[str, Any] = {
    "compute": {"device": "cpu", "threads": 1},
    "schedule": {"random_steps": 200, "seed_frames": 200},
    "agent": {"drqv2": {"lr": 1e-3}, "sac": {"lr": 1e-3}},
}
"""Changes to the preset `minute`: one CPU thread, fewer initial steps and higher learning rates."""


def train_and_evaluate(
    task: str, method: str, *, frames: int, changes: dict[str, Any] | None = None, seed: int = 1
) -> float:
    """Train on a toy task and return the mean evaluation reward per step, at most 1."""
    config = load_preset("minute", task=task, method=method, seed=seed)
    config = apply_sections(config, TOY_SETTINGS)
    config = apply_overrides(config, merge_overrides({"schedule": {"frames": frames}}, changes or {}))
    trainer, env = make_trainer(config), factory.make_env(config)
    try:
        while not trainer.is_done:
            trainer.advance()
        step = trainer.counters.steps
        evaluation = evaluate_policy(
            trainer.agent, env, trainer.shapes, episodes=EVALUATION_EPISODES, seed=0, step=step
        )
    finally:
        trainer.close()
        env.close()
    return sum(evaluation.returns) / sum(evaluation.steps)
