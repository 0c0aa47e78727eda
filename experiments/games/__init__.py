"""How often random actions are rewarded in each Procgen game; see PLAN.md.

python -m experiments.games              # play the games that results/games is missing, then print the table
python -m experiments.games --table      # only print the table
"""

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.tables import Row, TableRun
from manyview.envs import make_vector
from manyview.envs.procgen.suite import SUITE
from manyview.envs.vector import extract_finished_episodes
from manyview.training.manifest import describe_commit

STUDY = "games"
GAMES = tuple(SUITE.tasks)
NUM_ENVS, EPISODES_PER_ENV, SEED, NUM_ACTIONS = 100, 10, 1, 15


def play_random(task: str, *, num_envs: int = NUM_ENVS, episodes_per_env: int = EPISODES_PER_ENV) -> list[float]:
    """Return the returns of random actions on training levels.

    The first episodes to end are the short ones, so every environment plays the same number.
    """
    games, rng = make_vector(task, num_envs), np.random.default_rng(SEED)
    left, returns = np.full(num_envs, episodes_per_env), list[float]()
    games.reset(seed=SEED)
    while left.any():
        _, _, terminated, truncated, info = games.step(rng.integers(0, NUM_ACTIONS, num_envs))
        ended = np.flatnonzero(terminated | truncated)
        for place, episode in zip(ended, extract_finished_episodes(info), strict=True):
            if left[place]:
                left[place] -= 1
                returns.append(episode["return"])
    games.close()
    return returns


def make_rows(task: str, returns: Sequence[float]) -> list[Row]:
    values = {
        "return": float(np.mean(returns)),
        "episodes": float(len(returns)),
        "rewarded_episodes": float(np.sum(np.array(returns) > 0)),
    }
    key = (STUDY, "random", task, "random", "none", "none", "screen", SEED, 0.0, None)
    return [Row(*key, metric, value, describe_commit() or "") for metric, value in values.items()]


HEAD = ("game", "mean return", "episodes", "rewarded")


def list_rows(runs: Sequence[TableRun]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each game, the one that is rewarded least first."""
    for run in sorted(runs, key=lambda run: run.last("rewarded_episodes") / run.last("episodes")):
        share = run.last("rewarded_episodes") / run.last("episodes")
        yield f"`{run.task}`", f"{run.last('return'):.2f}", f"{run.last('episodes'):.0f}", f"{share:.1%}"
