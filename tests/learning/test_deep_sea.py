"""QUALITY C1: the bonus finds what no chance would. All methods and what they need: `benchmarks/deep_sea.py`."""

import pytest

from benchmarks.deep_sea import SEEDS, attempts
from quality.plugin import Figure

METHOD = "mem marginal"
FIRST_SEEDS = SEEDS[:4]


def solved(seeds: range) -> dict[str, int]:
    made = list(attempts([(method, seed) for method in (METHOD, "none") for seed in seeds], processes=2))
    return {
        method: sum(one.method == method and one.solved_at_frame is not None for one in made)
        for method in (METHOD, "none")
    }


@pytest.mark.slow
def test_the_bonus_finds_the_treasure_more_often_than_chance() -> None:
    """What the gate has time for."""
    found = solved(FIRST_SEEDS)
    assert found[METHOD] >= found["none"] + 2, found


@pytest.mark.quality("C1")
@pytest.mark.long
def test_the_bonus_finds_the_treasure_of_the_deep_sea(figure: Figure) -> None:
    found = solved(SEEDS)
    figure(found[METHOD], "with MEM's bonus")
    figure(found["none"], "without")
