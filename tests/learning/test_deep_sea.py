"""QUALITY C1: the bonus finds what no chance would. All methods and what they need: `benchmarks/deep_sea.py`."""

import pytest

from benchmarks.deep_sea import SEEDS, attempts
from quality.plugin import Figure

METHOD = "mem marginal"


@pytest.mark.quality("C1")
@pytest.mark.slow
def test_the_bonus_finds_the_treasure_of_the_deep_sea(figure: Figure) -> None:
    made = list(attempts([(method, seed) for method in (METHOD, "none") for seed in SEEDS], processes=2))
    solved = [one.method for one in made if one.solved_at_frame is not None]
    figure(solved.count(METHOD), "with MEM's bonus")
    figure(solved.count("none"), "without")
