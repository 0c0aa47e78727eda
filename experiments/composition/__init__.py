"""Compare bonuses and encoders on Deep Sea; see PLAN.md.

python -m experiments.composition                  # run what results/composition is missing, then print the table
python -m experiments.composition --size 10        # the small sea alone
python -m experiments.composition --table          # only print the table
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

from experiments.deep_sea import OFF_POLICY, ON_POLICY, Attempt, run_until_solved
from manyview.config.overrides import merge_overrides
from manyview.config.presets import apply_sections, load_preset
from manyview.config.schema import RunConfig
from manyview.report.statistics import compute_fisher_p, correct_holm

STUDY = "composition"
SEEDS = range(11, 21)
SIZES = (10, 20)
AGENTS = ("drqv2", "sac", "ppo")
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "re3": ("re3", {}),
    "rnd": ("rnd", {}),
    "mem marginal": ("mem", {"bonus": {"mem": {"entropy": "marginal"}}}),
    "mem joint": ("mem", {"bonus": {"mem": {"entropy": "joint"}}}),
    "own mem marginal": ("pixel+mem", {"bonus": {"mem": {"entropy": "marginal"}}}),
    "own mem joint": ("pixel+mem", {"bonus": {"mem": {"entropy": "joint"}}}),
}
FRAMES = {("replay", 10): 3_000, ("rollout", 10): 5_120, ("rollout", 20): 102_400}
COMMON: dict[str, Any] = {
    "agent": {"sac": {"hidden": 128, "lr": 1e-3, "critic_tau": 0.05}},
    "bonus": {
        "all": {"reward_scale": "centered"},
        "rnd": {"hidden": 128, "lr": 1e-3},
        "mem": {"encoder": {"latent_dim": 16, "lr": 1e-3}},
    },
}


@dataclass(frozen=True)
class Arm:
    """One agent and bonus on a sea of `size` x `size` cells."""

    agent: str
    bonus: str
    size: int

    @property
    def variant(self) -> str:
        return f"{self.agent} {self.bonus} {self.size}"


AGENTS_BY_SIZE = {10: AGENTS, 20: ("ppo",)}
"""DrQ-v2 and SAC do not find the treasure of the large sea; see PLAN.md."""
ALL_ARMS = [Arm(agent, bonus, size) for size in SIZES for agent, bonus in product(AGENTS_BY_SIZE[size], ARMS)]


def make_config(arm: Arm, seed: int) -> RunConfig:
    return make_arm_config(arm, seed, *ARMS[arm.bonus])


def make_arm_config(arm: Arm, seed: int, method: str, changes: Mapping[str, Any]) -> RunConfig:
    """Return the config of an arm whose representation and bonus are `method`, with `changes` last but the frames."""
    on_policy = arm.agent == "ppo"
    task = "toy/deep_sea" + ("" if arm.size == 10 else f"_{arm.size}") + ("" if on_policy else "_continuous")
    config = load_preset("minute", task=task, method=f"{arm.agent}+{method}", seed=seed)
    frames = FRAMES["rollout" if on_policy else "replay", arm.size]
    settings = merge_overrides(ON_POLICY if on_policy else OFF_POLICY, COMMON)
    return apply_sections(config, settings, changes, {"schedule": {"frames": frames}})


def run_arm(arm: Arm, seed: int) -> Attempt:
    return run_until_solved(make_config(arm, seed), arm.variant)


HEAD = ("sea", "agent", "bonus", "seeds", "found", "solved", "p against none", "median frame")


def list_rows(attempts: Mapping[tuple[str, int], Attempt]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each arm."""
    for size, agent in dict.fromkeys((arm.size, arm.agent) for arm in ALL_ARMS):
        counts = {}
        for bonus in ARMS:
            runs = [attempts[key] for seed in SEEDS if (key := (Arm(agent, bonus, size).variant, seed)) in attempts]
            frames = [run.solved_at_frame for run in runs if run.solved_at_frame is not None]
            num_found = sum(run.first_found_at_frame is not None for run in runs)
            counts[bonus] = (len(runs), num_found, len(frames), median(frames) if frames else None)
        total, _, solved, _ = counts["none"]
        p_values = {
            bonus: compute_fisher_p(num_solved, num_runs, solved, total)
            for bonus, (num_runs, _, num_solved, _) in counts.items()
            if bonus != "none"
        }
        corrected = correct_holm(p_values)
        for bonus, (num_runs, num_found, num_solved, middle) in counts.items():
            p_text = "" if bonus == "none" else format_p(corrected[bonus])
            median_text = "" if middle is None else f"{middle:,.0f}"
            yield f"{size} × {size}", agent, bonus, str(num_runs), str(num_found), str(num_solved), p_text, median_text


def format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
