"""QUALITY C2: each agent learns to say what it sees."""

import pytest

from quality.plugin import Figure
from tests.support.toys import train_and_evaluate


@pytest.mark.quality("C2")
@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["drqv2+mem", *(pytest.param(method, marks=pytest.mark.long) for method in ("sac+mem", "drqv2+none", "sac+none"))],
)
def test_an_agent_learns_to_say_what_it_sees(method: str, figure: Figure) -> None:
    figure(train_and_evaluate("toy/identity_continuous", method, frames=1_500))


@pytest.mark.quality("C2")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppo+mem", "ppo+none"])
def test_so_does_ppo(method: str, figure: Figure) -> None:
    figure(train_and_evaluate("toy/identity", method, frames=8_000))
