"""QUALITY C4: where every step is paid, a bonus for exploring does no harm."""

import pytest

from quality.plugin import Figure
from tests.learning.toys import score

TASK, FRAMES = "toy/identity_continuous", 700


@pytest.mark.quality("C4")
@pytest.mark.slow
@pytest.mark.parametrize("agent", ["drqv2", "sac"])
def test_the_bonus_costs_nothing_on_a_dense_task(agent: str, figure: Figure) -> None:
    with_bonus = score(TASK, f"{agent}+mem", frames=FRAMES)
    without = score(TASK, f"{agent}+mem", frames=FRAMES, changes={"bonus": {"beta0": 0.0}})
    figure(with_bonus / without)
