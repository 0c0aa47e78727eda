"""Compare changes to the agent on the simulator's state; see PLAN.md.

python -m experiments.state                        # run what results/state is missing, then print the tables
python -m experiments.state --only seed1           # a part of it
python -m experiments.state --table                # only print the tables
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from experiments.tables import TableRun, format_mean
from manyview.config.overrides import merge_overrides
from manyview.config.presets import apply_sections, load_preset
from manyview.config.schema import RunConfig

STUDY = "state"
Stage = Literal["tuning", "final"]
SEEDS: dict[Stage, Sequence[int]] = {"tuning": (101, 102, 103), "final": (1, 2, 3, 4, 5)}
CUP, PENDULUM = "dmc/ball_in_cup_catch", "dmc/pendulum_swingup"
BONUS = {CUP: "none", PENDULUM: "pixel+mem"}
"""Settings of the bonus by task; those of `mem` are used for the bonus of the true state."""
BARS, MIN_PASSED = {CUP: 800.0, PENDULUM: 700.0}, 4
FRAMES, EVALUATE_EVERY_FRAMES = 50_000, 5_000

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
FINAL_ARM = Arm("preset", agent="preset")
FINAL_BETA0 = 1.8


def make_config(arm: Arm, task: str, seed: int) -> RunConfig:
    if arm == FINAL_ARM:
        sections: Sections = {"replay": {"augmentation": "none"}, "bonus": {"all": {"beta0": FINAL_BETA0}}}
        sections |= {"schedule": {"frames": FRAMES}, "evaluation": COMMON["evaluation"]}
        return apply_sections(_load_preset("sac", task, seed), sections)
    agent, sections = AGENTS[arm.agent]
    for change in arm.changes:
        sections = merge_overrides(sections, CHANGES[change])
    return apply_sections(_load_preset(agent, task, seed), COMMON, sections)


def _load_preset(agent: str, task: str, seed: int) -> RunConfig:
    return load_preset("cpu", task=task, method=f"{agent}+{BONUS[task]}", seed=seed)


def list_final_runs() -> list[tuple[str, int]]:
    """Return task and seed of each run of the last stage."""
    return [(task, seed) for seed in SEEDS["final"] for task in BARS]


HEAD = ("task", "variant", "seeds", "last three evaluations, each seed", "mean", "minutes a run")
FINAL_HEAD = ("task", "bar", "seeds that reach it", "of")


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
    """Yield the bar of each task, and how many seeds reach it."""
    for task, bar in BARS.items():
        scores = [run.score for run in runs if run.task == task and run.seed in SEEDS["final"]]
        passed = sum(score >= bar for score in scores)
        yield f"`{task}`", f"{bar:.0f} on {MIN_PASSED} seeds", str(passed), str(len(scores))
