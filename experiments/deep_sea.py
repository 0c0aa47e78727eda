"""Compare bonuses on Deep Sea, 10 x 10 cells seen as two views, with DrQ-v2 and PPO.

    python -m experiments.deep_sea                  # run what results/deep_sea is missing, then print the table
    python -m experiments.deep_sea --table          # only print the table

Seeds 1 to 10 of every method, all counted. Noise and frame limits were lowered after seeds without a bonus solved the
task (docs/research/log.md). A seed is solved once the policy, without noise,
reaches the treasure at two evaluations in a row; the run then ends. Otherwise it is unsolved at its last frame.
"""

import argparse
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from experiments.tables import Row, append_rows, format_table, read_runs, select_settings
from manyview.config.method import parse_method
from manyview.config.overrides import to_plain
from manyview.config.presets import apply_sections, load_preset
from manyview.config.schema import RunConfig
from manyview.training import factory
from manyview.training.evaluation import evaluate_policy
from manyview.training.manifest import describe_commit
from manyview.training.runner import make_trainer

STUDY, VIEWS = "deep_sea", "depth+column"
SEEDS = range(1, 11)
EVALUATE_EVERY_FRAMES, EVALUATIONS_IN_A_ROW = 200, 2

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "mem marginal": ("drqv2+mem", {"bonus": {"mem": {"entropy": "marginal"}}}),
    "mem joint": ("drqv2+mem", {"bonus": {"mem": {"entropy": "joint"}}}),
    "re3": ("drqv2+re3", {}),
    "none": ("drqv2+none", {}),
    "ppo mem marginal": ("ppo+mem", {"bonus": {"mem": {"entropy": "marginal"}}}),
    "ppo mem joint": ("ppo+mem", {"bonus": {"mem": {"entropy": "joint"}}}),
    "ppo re3": ("ppo+re3", {}),
    "ppo none": ("ppo+none", {}),
}
OFF_POLICY: dict[str, Any] = {
    "compute": {"device": "cpu", "threads": 1},
    "schedule": {"frames": 1_500, "random_steps": 200, "seed_frames": 200},
    "replay": {
        "batch_size": 64,
        # The treasure is ten steps away: a lower discount would hide it.
        "discount": 0.99,
        # Bars are two pixels wide: a shift by one would show the next cell.
        "augmentation": "none",
    },
    "agent": {
        "drqv2": {
            "hidden": 128,
            "lr": 1e-3,
            "critic_tau": 0.05,
            # With more noise (0.6 to 0.4) 4 of 5 seeds found the treasure without a bonus.
            "std_start": 0.2,
            "std_end": 0.2,
            "std_steps": 1_000,
            # Without it the policy saturates its tanh in every cell, and noise never flips the sign of an action.
            "saturation_coef": 0.1,
            # The sign of an action decides: the sampled actions of the update must reach the other side of 0.
            "std_clip": 1.0,
        }
    },
    "representation": {"all": {"latent_dim": 16}},
    # A batch of 64 holds most cells once or never, so rare cells do not stand out within it.
    "bonus": {"all": {"beta0": 0.05, "latent_dim": 16}, "mem": {"bank": 2_048}},
}
ON_POLICY: dict[str, Any] = {
    "compute": {"device": "cpu", "threads": 1},
    "schedule": {"frames": 2_560},  # eight rollouts; by then a uniform policy finds it on one of four seeds
    "rollout": {"envs": 8, "steps": 40},
    "agent": {
        "ppo": {
            "hidden": 64,
            "lr": 1e-3,
            "batch_size": 80,
            "discount": 0.99,
            # The first returns are the small costs of moving right; normalized by them, these costs would dominate.
            "normalize_rewards": False,
            "entropy_coef": 0.003,
            "neighbors": "pooled",
            "greedy_evaluation": True,
        }
    },
    "representation": {"all": {"latent_dim": 16}},
    "bonus": {"all": {"beta0": 0.2, "latent_dim": 16}, "re3": {"k": 3}},
}


@dataclass(frozen=True)
class Attempt:
    method: str
    seed: int
    solved_at_frame: int | None
    first_found_at_frame: int | None
    """When a training episode, with its noise, first ended at the treasure."""
    frames: int


def make_config(method: str, seed: int) -> RunConfig:
    name, changes = METHODS[method]
    on_policy = name.startswith("ppo")
    task = "toy/deep_sea" if on_policy else "toy/deep_sea_continuous"
    config = load_preset("minute", task=task, method=name, seed=seed)
    return apply_sections(config, ON_POLICY if on_policy else OFF_POLICY, changes)


def run_attempt(method: str, seed: int) -> Attempt:
    return run_until_solved(make_config(method, seed), method)


def run_until_solved(config: RunConfig, name: str) -> Attempt:
    """Train until the policy without noise reaches the treasure at two evaluations in a row, or the run ends."""
    torch.set_num_threads(1)
    trainer, env = make_trainer(config), factory.make_env(config)
    found, solved, in_a_row, evaluated = None, None, 0, 0
    while solved is None and not trainer.is_done:
        episodes = trainer.advance().episodes
        frames = trainer.counters.frames
        if found is None and any(_is_treasure(episode["return"]) for episode in episodes):
            found = frames
        if frames // EVALUATE_EVERY_FRAMES > evaluated and trainer.can_checkpoint:
            evaluated = frames // EVALUATE_EVERY_FRAMES
            played = evaluate_policy(
                trainer.agent, env, trainer.shapes, episodes=1, seed=0, step=trainer.counters.steps
            )
            in_a_row = in_a_row + 1 if _is_treasure(played.mean_return) else 0
            solved = frames if in_a_row == EVALUATIONS_IN_A_ROW else None
    trainer.close()
    env.close()
    return Attempt(name, config.seed, solved, found, trainer.counters.frames)


def run_attempts(wanted: Iterable[tuple[str, int]], *, processes: int) -> Iterable[Attempt]:
    """Yield each attempt as it finishes."""
    methods, seeds = zip(*wanted, strict=True)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_attempt, methods, seeds)


def _is_treasure(episode_return: float) -> bool:
    return episode_return > 0.5  # it pays 1, all else costs


def read_attempts(study: str = STUDY) -> dict[tuple[str, int], Attempt]:
    """Return the attempts in the table of a study by method and seed."""
    found = {}
    for run in read_runs(study):
        (solved_at, solved), (found_at, was_found) = run.series("solved"), run.series("found")
        found[run.variant, run.seed] = Attempt(
            run.variant,
            run.seed,
            int(solved_at[-1]) if solved[-1] else None,
            int(found_at[-1]) if was_found[-1] else None,
            int(solved_at[-1]),
        )
    return found


def append_attempt(made: Attempt, config: RunConfig, study: str = STUDY) -> None:
    """Add an attempt to the table: `found` and `solved` are 1 at the frame where they happened, or 0 at the last."""
    key = (study, made.method, config.task, *parse_method(config.method), VIEWS, made.seed)
    rows = make_rows(made, key, commit=describe_commit() or "")
    append_rows(study, rows, {made.method: select_settings(to_plain(config))})


def make_rows(made: Attempt, key: tuple[str, str, str, str, str, str, str, int], *, commit: str = "") -> list[Row]:
    """Return the rows of an attempt; `key` is the first columns, from study to seed."""
    events = {"found": made.first_found_at_frame, "solved": made.solved_at_frame}
    return [
        Row(*key, float(made.frames if at is None else at), None, metric, float(at is not None), commit)
        for metric, at in events.items()
    ]


HEAD = ("method", "seeds", "found the treasure", "solved", "solved at frame, by seed")


def list_rows(
    attempts: Mapping[tuple[str, int], Attempt], methods: Iterable[str] = METHODS
) -> Iterator[tuple[str, ...]]:
    """Yield a line for each method."""
    for method in methods:
        seeds = [attempts[method, seed] for seed in SEEDS if (method, seed) in attempts]
        found = sum(made.first_found_at_frame is not None for made in seeds)
        solved = sum(made.solved_at_frame is not None for made in seeds)
        frames = ", ".join("-" if made.solved_at_frame is None else f"{made.solved_at_frame:,}" for made in seeds)
        yield method, str(len(seeds)), str(found), str(solved), frames


def make_table() -> str:
    return format_table(HEAD, list_rows(read_attempts()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--processes", type=int, default=2, help="runs at once, each on one thread")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    asked = parser.parse_args()
    done = read_attempts()
    # Seed by seed, so that a table of the first few is a fair one.
    missing = [(method, seed) for seed in SEEDS for method in asked.methods if (method, seed) not in done]
    if missing and not asked.table:
        for made in run_attempts(missing, processes=asked.processes):
            append_attempt(made, make_config(made.method, made.seed))
            print(f"{made.method}, seed {made.seed}: solved at {made.solved_at_frame}", flush=True)
    print(make_table())


if __name__ == "__main__":
    main()
