"""Deep Sea of 10 x 10 cells as two views, with DrQ-v2 and PPO: which bonus finds the treasure?

    python -m benchmarks.deep_sea                  # runs what is missing in results/deep_sea.jsonl, then the table
    python -m benchmarks.deep_sea --table          # only the table

Decided before the runs: seeds 1 to 10 of every method, all counted. A seed is solved once the policy, without noise,
reaches the treasure at two evaluations in a row; it then ends. One that has not by its last frame is unsolved.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from manyview.config import schema as known
from manyview.config.overrides import apply_overrides, from_plain, merge_overrides, to_plain
from manyview.config.presets import load_preset
from manyview.config.schema import RunConfig
from manyview.train import factory
from manyview.train.evaluation import evaluate_policy
from manyview.train.runner import make_trainer

RESULTS = Path(__file__).parents[1] / "results" / "deep_sea.jsonl"
SEEDS = range(1, 11)
EVALUATE_EVERY_FRAMES, EVALUATIONS_IN_A_ROW = 200, 2

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "mem marginal": ("drqv2+mem", {"mem": {"entropy": "marginal"}}),
    "mem joint": ("drqv2+mem", {"mem": {"entropy": "joint"}}),
    "re3": ("drqv2+re3", {}),
    "none": ("drqv2+none", {}),
    "ppo mem marginal": ("ppo+mem", {"mem": {"entropy": "marginal"}}),
    "ppo mem joint": ("ppo+mem", {"mem": {"entropy": "joint"}}),
    "ppo re3": ("ppo+re3", {}),
    "ppo none": ("ppo+none", {}),
}
OFF_POLICY: dict[str, Any] = {
    "machine": {"device": "cpu", "threads": 1},
    "schedule": {"frames": 1_500, "random_steps": 200, "seed_frames": 200},
    # The treasure lies ten steps ahead, so it must not be discounted away.
    "replay": {"batch_size": 64, "discount": 0.99},
    "bonus": {"beta0": 0.05},
    "drqv2": {
        "hidden": 128,
        "lr": 1e-3,
        "target_rate": 0.05,
        # With more noise (0.6 to 0.4) chance finds the treasure too: without a bonus 4 of 5 seeds did.
        "std_start": 0.2,
        "std_end": 0.2,
        "std_steps": 1_000,
        # Without it the policy soon stands at an end of its tanh in every cell, and noise never turns its sign.
        "saturation_coef": 0.1,
        # The sign of an action decides: the actor must see the other side of 0 from where it stands.
        "std_clip": 1.0,
        # Bars are two pixels wide: a shift by one would show the next cell.
        "shift_pixels": 0,
    },
    # A batch of 64 holds most cells once or never, so within it alone the rare ones do not stand out.
    "mem": {"latent_dim": 16, "bank": 2_048},
    "re3": {"latent_dim": 16},
    "none": {"latent_dim": 16},
}
ON_POLICY: dict[str, Any] = {
    "machine": {"device": "cpu", "threads": 1},
    "schedule": {"frames": 2_560},  # eight rollouts; by then a uniform policy has found it on one of four seeds
    "rollout": {"envs": 8, "steps": 40},
    "ppo": {
        "hidden": 64,
        "lr": 1e-3,
        "batch_size": 80,
        "discount": 0.99,
        # The first returns are the small costs of drifting right: in units of them these would be all that counts.
        "scale_rewards": False,
        "entropy_coef": 0.003,
        "neighbours": "pooled",
        "greedy_evaluation": True,
    },
    "bonus": {"beta0": 0.2},
    "mem": {"latent_dim": 16},
    "re3": {"latent_dim": 16, "k": 3},
    "none": {"latent_dim": 16},
}


@dataclass(frozen=True)
class Attempt:
    method: str
    seed: int
    solved_at_frame: int | None
    first_found_at_frame: int | None
    """When an episode, noise and all, first ended at the treasure."""
    frames: int
    config: dict[str, Any]


def config_of(method: str, seed: int) -> RunConfig:
    name, changes = METHODS[method]
    on_policy = name.startswith("ppo")
    task = "toy/deep_sea" if on_policy else "toy/deep_sea_continuous"
    config = load_preset("minute", task=task, method=name, seed=seed)
    return apply_overrides(config, merge_overrides(ON_POLICY if on_policy else OFF_POLICY, changes))


def attempt(method: str, seed: int) -> Attempt:
    torch.set_num_threads(1)
    config = config_of(method, seed)
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
    return Attempt(method, seed, solved, found, trainer.counters.frames, to_plain(config))


def attempts(wanted: Iterable[tuple[str, int]], *, processes: int) -> Iterable[Attempt]:
    """Each as it is done."""
    methods, seeds = zip(*wanted, strict=True)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(attempt, methods, seeds)


def _is_treasure(episode_return: float) -> bool:
    return episode_return > 0.5  # it pays 1, all else costs


def kept() -> dict[tuple[str, int], Attempt]:
    """Those made with the settings of today."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = [Attempt(**json.loads(line)) for line in lines]
    return {(one.method, one.seed): one for one in done if _is_current(one)}


def _is_current(one: Attempt) -> bool:
    """By value: a setting that came later has its default in an older line."""
    try:
        before = from_plain(RunConfig, one.config)
    except ValueError:  # a setting that is no more
        return False
    return _that_counts(before) == _that_counts(config_of(one.method, one.seed))


def _that_counts(config: RunConfig) -> dict[str, Any]:
    """All settings but those of agents and methods that it has nothing of."""
    # The encoder of `none` also serves methods that bring none.
    others = {*known.AGENTS, *known.METHODS} - {*config.method.split("+"), "none"}
    return {name: part for name, part in to_plain(config).items() if name not in others}


def table() -> None:
    done = kept()
    print("| method | seeds | found the treasure | solved | solved at frame, by seed |\n|---|---|---|---|---|")
    for method in METHODS:
        mine = [done[method, seed] for seed in SEEDS if (method, seed) in done]
        found = sum(one.first_found_at_frame is not None for one in mine)
        solved = sum(one.solved_at_frame is not None for one in mine)
        frames = ", ".join("-" if one.solved_at_frame is None else f"{one.solved_at_frame:,}" for one in mine)
        print(f"| {method} | {len(mine)} | {found} | {solved} | {frames} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--processes", type=int, default=2, help="runs at once, each on one thread")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    asked = parser.parse_args()
    done = kept()
    # Seed by seed, so that a table of the first few is a fair one.
    missing = [(method, seed) for seed in SEEDS for method in asked.methods if (method, seed) not in done]
    if missing and not asked.table:
        RESULTS.parent.mkdir(exist_ok=True)
        for one in attempts(missing, processes=asked.processes):
            with RESULTS.open("a") as out:
                out.write(json.dumps(asdict(one)) + "\n")
            print(f"{one.method}, seed {one.seed}: solved at {one.solved_at_frame}", flush=True)
    table()


if __name__ == "__main__":
    main()
