"""QUALITY C2: each agent learns to name the target that its views show."""

import pytest

from quality.plugin import Figure
from tests.support.toys import train_and_evaluate


@pytest.mark.quality("C2")
@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["drqv2+mem", *(pytest.param(method, marks=pytest.mark.long) for method in ("sac+mem", "drqv2+none", "sac+none"))],
)
def test_an_off_policy_agent_learns_identity(method: str, figure: Figure) -> None:
    figure(train_and_evaluate("toy/identity_continuous", method, frames=1_500))


@pytest.mark.quality("C2")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppo+mem", "ppo+none"])
def test_ppo_learns_identity(method: str, figure: Figure) -> None:
    figure(train_and_evaluate("toy/identity", method, frames=8_000))
