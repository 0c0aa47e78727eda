"""QUALITY C1: the bonus finds what no chance would. All methods and what they need: `experiments/deep_sea.py`."""

import pytest

from experiments.deep_sea import SEEDS, run_attempts
from quality.plugin import Figure

METHOD, NONE = "mem marginal", "none"


def solved(seeds: range, method: str = METHOD, none: str = NONE) -> dict[str, int]:
    made = list(run_attempts([(name, seed) for name in (method, none) for seed in seeds], processes=2))
    return {
        name: sum(one.method == name and one.solved_at_frame is not None for one in made) for name in (method, none)
    }


@pytest.mark.quality("C1")
@pytest.mark.long
def test_the_bonus_finds_the_treasure_of_the_deep_sea(figure: Figure) -> None:
    """With DrQ-v2; the gate has time for PPO alone."""
    found = solved(SEEDS)
    figure(found[METHOD], "with MEM's bonus")
    figure(found[NONE], "without")


@pytest.mark.quality("C1")
@pytest.mark.long
def test_so_does_ppo(figure: Figure) -> None:
    found = solved(SEEDS, "ppo mem marginal", "ppo none")
    figure(found["ppo mem marginal"], "with MEM's bonus")
    figure(found["ppo none"], "without")
