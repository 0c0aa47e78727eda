"""Random play of a game: every environment counts equally."""

import numpy as np
import pytest

from experiments.games import list_rows, make_rows, play_random
from experiments.tables import TableRun


@pytest.mark.simulator
def test_each_environment_plays_the_same_number_of_episodes() -> None:
    returns = play_random("procgen/bigfish", num_envs=4, episodes_per_env=2)
    assert len(returns) == 8
    assert returns == play_random("procgen/bigfish", num_envs=4, episodes_per_env=2)


def test_the_table_has_the_share_of_rewarded_episodes() -> None:
    rare, common = (
        TableRun(tuple(make_rows(task, returns))) for task, returns in [("b", [0.0, 0, 0, 10]), ("a", [1.0])]
    )
    assert list(list_rows([common, rare])) == [("`b`", "2.50", "4", "25.0%"), ("`a`", "1.00", "1", "100.0%")]
    assert np.isclose(rare.last("rewarded_episodes"), 1)
