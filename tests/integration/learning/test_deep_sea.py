"""QUALITY C1: the bonus solves the deep sea, random exploration does not; see `experiments/deep_sea.py`."""

import pytest

from experiments.deep_sea import SEEDS, run_attempts
from quality.plugin import Figure

METHOD, BASELINE = "mem marginal", "none"


def count_solved(seeds: range, method: str = METHOD, baseline: str = BASELINE) -> dict[str, int]:
    """Return the number of solved seeds of a method and of its baseline."""
    attempts = list(run_attempts([(name, seed) for name in (method, baseline) for seed in seeds], processes=2))
    return {
        name: sum(attempt.method == name and attempt.solved_at_frame is not None for attempt in attempts)
        for name in (method, baseline)
    }


@pytest.mark.quality("C1")
@pytest.mark.long
def test_the_bonus_finds_the_treasure_of_the_deep_sea(figure: Figure) -> None:
    """The agent is DrQ-v2; the gate has time for PPO only."""
    num_solved = count_solved(SEEDS)
    figure(num_solved[METHOD], "with MEM's bonus")
    figure(num_solved[BASELINE], "without")


@pytest.mark.quality("C1")
@pytest.mark.long
def test_the_bonus_of_ppo_finds_the_treasure_of_the_deep_sea(figure: Figure) -> None:
    num_solved = count_solved(SEEDS, "ppo mem marginal", "ppo none")
    figure(num_solved["ppo mem marginal"], "with MEM's bonus")
    figure(num_solved["ppo none"], "without")
