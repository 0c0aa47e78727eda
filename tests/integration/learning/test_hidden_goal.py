"""QUALITY C3: what no camera sees alone is learned from both, and nothing is learned that is not to be seen.

With one view an agent knows one of the goal's two coordinates. The other is drawn anew at every step, so a policy finds
the goal at most once in `cells` steps, and does so by knowing the first and naming any second.
"""

import pytest

from manyview.envs.toy import HiddenGoal
from quality.plugin import Figure
from tests.support.toys import train_and_evaluate

CASES = [
    ("drqv2+mem", "toy/hidden_goal_continuous", 1_000),
    ("sac+mem", "toy/hidden_goal_continuous", 1_000),
    ("ppo+mem", "toy/hidden_goal", 20_000),
]
BOUND = HiddenGoal(actions="continuous").max_success_single_view


@pytest.mark.quality("C3")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "task", "frames"), [CASES[0], pytest.param(*CASES[1], marks=pytest.mark.long), CASES[2]]
)
def test_both_views_together_find_the_goal(method: str, task: str, frames: int, figure: Figure) -> None:
    figure(train_and_evaluate(task, method, frames=frames), "both views")


@pytest.mark.quality("C3")
@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "task", "frames", "view"),
    [(*CASES[0], "column"), (*CASES[2], "column"), (*CASES[1], "column"), (*CASES[0], "row")],
)
def test_one_view_alone_finds_it_as_often_as_one_coordinate_allows(
    method: str, task: str, frames: int, view: str, figure: Figure
) -> None:
    success = train_and_evaluate(task, method, frames=frames, changes={"env": {"views": (view,)}})
    # Of 1,000 steps: the bound itself is measured with a deviation of 4.5 %.
    figure(success / BOUND, "most of one view's bound")
    figure(success / BOUND, "least of one view's bound")
