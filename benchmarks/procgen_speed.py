"""Compare our Procgen vector environment with bare EnvPool in transitions per second, game by game.

    python -m benchmarks.procgen_speed [--games bigfish miner] [--rounds 200]

A transition is the result of an action. Bare EnvPool uses the step after each episode end for the reset: it ignores the
action, no learner can use the step, and it does not count. All our steps count, with all of their time. Both sides play
64 games with two threads and the same actions, in alternating turns of a few steps; the ratio is the median over the
turns, so that other load on the machine slows both alike.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyview.envs.procgen import ProcgenVector
from manyview.envs.procgen.suite import PAPER_GAMES

NUM_ENVS, NUM_THREADS, SEED = 64, 2, 0
STEPS_PER_TURN = 10
UNTIMED_TURNS = 15
"""Warm-up: at first all episodes have the same age and none ends."""

Play = Callable[[NDArray[np.int32]], int]
"""Takes the actions [T, N] of a turn and returns the number of transitions."""


@dataclass(frozen=True)
class Speed:
    """Medians over the turns, in real transitions per second."""

    bare_per_s: float
    ours_per_s: float
    ratio: float


def make_bare_player(game: str) -> Play:
    import envpool

    pool = envpool.make_gymnasium(
        f"{game.capitalize()}Easy-v0", num_envs=NUM_ENVS, num_threads=NUM_THREADS, seed=SEED, num_levels=200
    )
    pool.reset()
    resetting = 0

    def play(turn: NDArray[np.int32]) -> int:
        nonlocal resetting
        transitions = 0
        for actions in turn:
            transitions += NUM_ENVS - resetting
            _, _, terminated, truncated, _ = pool.step(actions)
            resetting = int(np.count_nonzero(terminated | truncated))
        return transitions

    return play


def make_our_player(game: str) -> Play:
    vector = ProcgenVector(f"procgen/{game}", NUM_ENVS, num_threads=NUM_THREADS)
    vector.reset(seed=SEED)

    def play(turn: NDArray[np.int32]) -> int:
        for actions in turn:
            vector.step(actions)
        return turn.size

    return play


def measure(game: str, *, rounds: int) -> Speed:
    sides = (make_bare_player(game), make_our_player(game))
    rates: tuple[list[float], list[float]] = ([], [])
    rng = np.random.default_rng(SEED)
    for number in range(UNTIMED_TURNS + rounds):
        turn = rng.integers(15, size=(STEPS_PER_TURN, NUM_ENVS)).astype(np.int32)
        for side in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            transitions = sides[side](turn)
            rates[side].append(transitions / (time.perf_counter() - start))
    bare, ours = (side_rates[UNTIMED_TURNS:] for side_rates in rates)
    ratio = statistics.median(our / their for our, their in zip(ours, bare, strict=True))
    return Speed(statistics.median(bare), statistics.median(ours), ratio)


def format_table(speeds: dict[str, Speed]) -> str:
    lines = [f"{'game':12}{'bare/s':>10}{'ours/s':>10}{'ratio':>8}"]
    lines += [f"{game:12}{s.bare_per_s:10,.0f}{s.ours_per_s:10,.0f}{s.ratio:8.3f}" for game, s in speeds.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=PAPER_GAMES)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    print(format_table({game: measure(game, rounds=args.rounds) for game in args.games}))
