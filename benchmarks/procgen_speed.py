"""Procgen: our vector environment against bare EnvPool, in transitions a second, game by game.

    python -m benchmarks.procgen_speed [--games bigfish miner] [--rounds 7]

A transition is what an action makes of a game. Bare EnvPool spends the step after each end on the reset: its action is
ignored, no learner can use it, and it is not counted. Ours resets ended games between two steps: all of its steps
count, and so does the time of the resets.

Both sides play 64 games with two threads, the same seed and the same actions, in turns, and every round again from the
start. So the k-th step is the same work in every round, and its time is taken as the median over the rounds. The first
steps are not timed: at first all episodes are equally old and none ends.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyview.envs.procgen import ProcgenVector
from manyview.envs.procgen.suite import PAPER

NUM_ENVS, NUM_THREADS, SEED = 64, 2, 0
UNTIMED_STEPS = 100


@dataclass(frozen=True)
class Round:
    transitions: NDArray[np.int64]  # [T], in each step
    seconds: NDArray[np.float64]  # [T]


@dataclass(frozen=True)
class Speed:
    bare_per_s: float
    ours_per_s: float

    @property
    def ratio(self) -> float:
        return self.ours_per_s / self.bare_per_s


def play_bare(game: str, actions: NDArray[np.int32]) -> Round:
    import envpool

    pool = envpool.make_gymnasium(
        f"{game.capitalize()}Easy-v0", num_envs=NUM_ENVS, num_threads=NUM_THREADS, seed=SEED, num_levels=200
    )
    pool.reset()
    transitions, seconds = np.empty(len(actions), np.int64), np.empty(len(actions))
    ended = np.zeros(NUM_ENVS, bool)
    for index, action in enumerate(actions):
        transitions[index] = np.count_nonzero(~ended)
        start = time.perf_counter()
        _, _, terminated, truncated, _ = pool.step(action)
        seconds[index] = time.perf_counter() - start
        ended = terminated | truncated
    return Round(transitions, seconds)


def play_ours(game: str, actions: NDArray[np.int32]) -> Round:
    vector = ProcgenVector(f"procgen/{game}", NUM_ENVS, num_threads=NUM_THREADS)
    vector.reset(seed=SEED)
    transitions, seconds = np.full(len(actions), NUM_ENVS), np.empty(len(actions))
    for index, action in enumerate(actions):
        start = time.perf_counter()
        vector.step(action)
        seconds[index] = time.perf_counter() - start
    vector.close()
    return Round(transitions, seconds)


def measure(game: str, *, rounds: int, steps: int) -> Speed:
    size = (UNTIMED_STEPS + steps, NUM_ENVS)
    actions = np.random.default_rng(SEED).integers(15, size=size).astype(np.int32)
    played: dict[Callable[[str, NDArray[np.int32]], Round], list[Round]] = {play_bare: [], play_ours: []}
    for _ in range(rounds):
        for play, done in played.items():
            done.append(play(game, actions))
    return Speed(*(_per_second(done) for done in played.values()))


def _per_second(rounds: list[Round]) -> float:
    seconds = np.median([done.seconds for done in rounds], axis=0)
    return float(rounds[0].transitions[UNTIMED_STEPS:].sum() / seconds[UNTIMED_STEPS:].sum())


def table(speeds: dict[str, Speed]) -> str:
    lines = [f"{'game':12}{'bare/s':>10}{'ours/s':>10}{'ratio':>8}"]
    lines += [f"{game:12}{s.bare_per_s:10,.0f}{s.ours_per_s:10,.0f}{s.ratio:8.3f}" for game, s in speeds.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=PAPER)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    asked = parser.parse_args()
    print(table({game: measure(game, rounds=asked.rounds, steps=asked.steps) for game in asked.games}))
