"""View dropout in training: one camera alone finds the hidden goal as often as its coordinate allows."""

import pytest

from manyview.config.overrides import apply_overrides
from manyview.config.presets import apply_sections, load_preset
from manyview.envs.toy import HiddenGoal
from manyview.training import factory, make_trainer
from manyview.training.evaluation import evaluate_policy
from quality.plugin import Figure
from tests.support.toys import TOY_SETTINGS

BOUND = HiddenGoal(actions="continuous").max_success_single_view
EPISODES = 200


def score_cameras(method: str, task: str, *, frames: int, dropout: float, seed: int = 1) -> dict[str, float]:
    """Return the mean reward per step with both cameras and with each alone."""
    config = apply_sections(load_preset("minute", task=task, method=method, seed=seed), TOY_SETTINGS)
    changes = {"schedule": {"frames": frames}, "agent": {"view_dropout": dropout}}
    config = apply_overrides(config, changes)
    trainer, scores = make_trainer(config), {}
    while not trainer.is_done:
        trainer.advance()
    env, step = factory.make_env(config), trainer.counters.steps
    for name, absent in {"both": (), "column": ("row",), "row": ("column",)}.items():
        evaluation = evaluate_policy(
            trainer.agent, env, trainer.shapes, episodes=EPISODES, seed=0, step=step, absent_views=absent
        )
        scores[name] = sum(evaluation.returns) / sum(evaluation.steps)
    env.close()
    trainer.close()
    return scores


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "task", "frames"),
    [("sac+mem", "toy/hidden_goal_continuous", 3_000), ("ppo+mem", "toy/hidden_goal", 30_000)],
)
def test_each_camera_alone_reaches_its_bound(method: str, task: str, frames: int, figure: Figure) -> None:
    with_dropout = score_cameras(method, task, frames=frames, dropout=0.3)
    without_dropout = score_cameras(method, task, frames=frames, dropout=0.0)
    for name in ("column", "row"):
        figure(with_dropout[name] / BOUND, f"of the bound of {name}")
        assert with_dropout[name] >= 0.9 * BOUND, (with_dropout, without_dropout)
    assert with_dropout["both"] >= 0.9


@pytest.mark.long
def test_mad_reaches_the_bound_of_each_camera_without_dropout(figure: Figure) -> None:
    scores = score_cameras("sac+mad", "toy/hidden_goal_continuous", frames=1_000, dropout=0.0)
    for name in ("column", "row"):
        figure(scores[name] / BOUND, f"of the bound of {name}")
        assert scores[name] >= 0.9 * BOUND, scores
    assert scores["both"] >= 0.9
