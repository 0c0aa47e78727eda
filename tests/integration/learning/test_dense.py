"""QUALITY C4: the bonus costs nothing on tasks with dense rewards."""

import pytest

from quality.plugin import Figure
from tests.support.toys import train_and_evaluate

CASES = [
    ("drqv2", "toy/identity_continuous", 700),
    ("sac", "toy/identity_continuous", 700),
    ("ppo", "toy/identity", 8_000),
]


@pytest.mark.quality("C4")
@pytest.mark.long
@pytest.mark.parametrize(("agent", "task", "frames"), CASES)
def test_the_bonus_costs_nothing_on_a_dense_task(agent: str, task: str, frames: int, figure: Figure) -> None:
    with_bonus = train_and_evaluate(task, f"{agent}+mem", frames=frames)
    without_bonus = train_and_evaluate(task, f"{agent}+mem", frames=frames, changes={"bonus": {"beta0": 0.0}})
    figure(with_bonus / without_bonus)
