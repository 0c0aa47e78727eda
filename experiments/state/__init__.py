"""Compare changes to the agent on the simulator's state; see PLAN.md.

python -m experiments.state                        # run what results/state is missing, then print the tables
python -m experiments.state --stage tuning         # one stage alone
python -m experiments.state --table                # only print the tables
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from experiments.tables import TableRun, format_mean
from manyview.config.overrides import merge_overrides
from manyview.config.presets import apply_sections, load_preset
from manyview.config.schema import RunConfig
from manyview.report.statistics import compute_permutation_p, correct_holm

STUDY = "state"
Stage = Literal["tuning", "final"]
SEEDS: dict[Stage, Sequence[int]] = {"tuning": (101, 102, 103), "final": (1, 2, 3, 4, 5)}
CUP, PENDULUM = "dmc/ball_in_cup_catch", "dmc/pendulum_swingup"
BONUS = {CUP: "none", PENDULUM: "pixel+mem"}
"""Settings of the bonus by task; those of `mem` are used for the bonus of the true state."""
BARS, MIN_PASSED = {CUP: 800.0, PENDULUM: 700.0}, 4
FRAMES, EVALUATE_EVERY_FRAMES = 50_000, 5_000
MAX_LOSS = 100.0
"""Return that a kept change may cost on one task."""

Sections = dict[str, Any]
CHANGES: dict[str, Sections] = {
    "update every step": {"schedule": {"update_every_steps": 1}},
    "layer norm": {"agent": {"all": {"layer_norm": True}}},
    "two-hot critic": {"agent": {"all": {"critic": "two_hot"}}},
    "normalized actor loss": {"agent": {"all": {"normalize_actor_loss": True}}},
    "next state": {"bonus": {"all": {"rewarded_state": "next"}}},
    "pink noise": {"agent": {"all": {"noise_color": "pink"}}},
    "noise warm-up": {"agent": {"all": {"std_warmup_steps": 1_000}}},  # the first update: 4,000 frames, repeat 4
}
AGENTS: dict[str, tuple[str, Sections]] = {
    "base": ("drqv2", {}),
    "sac": ("sac", {}),
    "sac one step": ("sac", {"replay": {"n_step": 1}}),
}
COMMON: Sections = {  # over the preset; the study began with an earlier one
    "schedule": {"frames": FRAMES, "update_every_steps": 2},
    "replay": {"batch_size": 128, "augmentation": "none"},
    "agent": {"all": {"layer_norm": False}, "sac": {"lr": 0.0003, "target_every_updates": 2}},
    "evaluation": {"every_frames": EVALUATE_EVERY_FRAMES, "episodes": 10, "video": False},
}


@dataclass(frozen=True)
class Arm:
    """An agent with changes, as one variant of the study."""

    variant: str
    agent: str = "base"
    changes: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        return (PENDULUM,) if self.changes == ("next state",) else (CUP, PENDULUM)


BASE = Arm("base")
TUNING_ARMS = (
    BASE,
    *(Arm(name, changes=(name,)) for name in CHANGES),
    *(Arm(name, agent=name) for name in AGENTS if name != "base"),
)


def make_config(arm: Arm, task: str, seed: int) -> RunConfig:
    agent, sections = AGENTS[arm.agent]
    for change in arm.changes:
        sections = merge_overrides(sections, CHANGES[change])
    return apply_sections(load_preset("cpu", task=task, method=f"{agent}+{BONUS[task]}", seed=seed), COMMON, sections)


def choose_combination(runs: Iterable[TableRun]) -> Arm | None:
    """Return the best agent with all changes that helped alone, by PLAN.md; None until tuning is complete."""
    scores: dict[tuple[str, str], list[float]] = {(arm.variant, task): [] for arm in TUNING_ARMS for task in arm.tasks}
    for run in runs:
        if run.seed in SEEDS["tuning"]:
            scores[run.variant, run.task].append(run.score)
    if any(len(values) < len(SEEDS["tuning"]) for values in scores.values()):
        return None
    means = {cell: float(np.mean(values)) for cell, values in scores.items()}
    agent = max(AGENTS, key=lambda name: sum(means[name, task] for task in BARS))
    gains = {
        arm.variant: [means[arm.variant, task] - means[BASE.variant, task] for task in arm.tasks]
        for arm in TUNING_ARMS
        if arm.changes
    }
    kept = tuple(name for name, gain in gains.items() if np.mean(gain) > 0 and min(gain) >= -MAX_LOSS)
    return Arm("combined", agent, kept)


def list_cells(stage: Stage, runs: Iterable[TableRun]) -> list[tuple[Arm, str, int]]:
    """Return arm, task and seed of the runs of a stage, seed by seed: a table of the first few is a fair one.

    Raises ValueError if the final stage is asked for before tuning is complete.
    """
    if stage == "tuning":
        arms: tuple[Arm, ...] = TUNING_ARMS
    elif (combined := choose_combination(runs)) is not None:
        arms = (BASE, combined)
    else:
        raise ValueError("tuning is incomplete: expected all its runs. Run --stage tuning first.")
    return [(arm, task, seed) for seed in SEEDS[stage] for arm in arms for task in arm.tasks]


HEAD = ("task", "variant", "seeds", "last three evaluations, each seed", "mean", "minutes a run")
FINAL_HEAD = ("task", "bar", "seeds that reach it", "of", "p against base")


def list_rows(stage: Stage, runs: Sequence[TableRun]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each task and variant of a stage, best first."""
    for task in BARS:
        groups: dict[str, list[TableRun]] = {}
        for run in runs:
            if run.task == task and run.seed in SEEDS[stage]:
                groups.setdefault(run.variant, []).append(run)
        for variant, seeds in sorted(groups.items(), key=lambda group: -np.mean([run.score for run in group[1]])):
            seeds.sort(key=lambda run: run.seed)
            scores = [run.score for run in seeds]
            minutes = np.mean([(run.rows[-1].wall_time_s or 0) / 60 for run in seeds])
            each, names = ", ".join(f"{score:.0f}" for score in scores), ", ".join(str(run.seed) for run in seeds)
            yield f"`{task}`", variant, names, each, format_mean(scores), f"{minutes:.1f}"


def list_final_rows(runs: Sequence[TableRun]) -> Iterator[tuple[str, ...]]:
    """Yield the bar and the test of each task."""
    scores = {
        (variant, task): [
            run.score for run in runs if (run.variant, run.task) == (variant, task) and run.seed in SEEDS["final"]
        ]
        for variant in ("combined", BASE.variant)
        for task in BARS
    }
    complete = all(len(values) == len(SEEDS["final"]) for values in scores.values())
    p_values = correct_holm(
        {task: compute_permutation_p(scores["combined", task], scores[BASE.variant, task]) for task in BARS}
        if complete
        else {}
    )
    for task, bar in BARS.items():
        values = scores["combined", task]
        passed = sum(value >= bar for value in values)
        p_text = f"{p_values[task]:.3f}" if complete else ""
        yield f"`{task}`", f"{bar:.0f} on {MIN_PASSED} seeds", str(passed), str(len(values)), p_text
