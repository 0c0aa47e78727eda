"""Study: controls of MEM's bonus on Deep Sea with SAC; see PLAN.md."""

from collections.abc import Iterator, Mapping
from itertools import product

from experiments import composition
from experiments.composition import Arm, format_p, make_arm_config
from experiments.deep_sea import Attempt
from manyview.config.overrides import to_plain
from manyview.config.schema import RunConfig
from manyview.report.statistics import compute_fisher_p, correct_holm

STUDY, AGENT, SIZE = "adaptation", "sac", 10
SEEDS = composition.SEEDS
CONTROLS, ENTROPIES = ("untrained_mem", "frozen_mem", "shuffled_mem"), ("joint", "marginal")
ARMS = [Arm(AGENT, f"{control} {entropy}", SIZE) for control, entropy in product(CONTROLS, ENTROPIES)]


def make_config(arm: Arm, seed: int) -> RunConfig:
    """Return the config of `own mem` with the control in place of MEM's bonus."""
    control, entropy = arm.bonus.split()
    mem = composition.make_config(Arm(AGENT, f"own mem {entropy}", SIZE), seed)
    return make_arm_config(arm, seed, f"pixel+{control}", {"bonus": to_plain(mem.bonus)})


HEAD = ("bonus", "seeds", "found", "solved", "solved at frame, by seed", "p of own mem above it")


def list_rows(attempts: Mapping[tuple[str, int], Attempt]) -> Iterator[tuple[str, ...]]:
    """Yield a line for `none`, each arm of MEM's bonus and each control."""
    compared = [Arm(AGENT, bonus, SIZE) for bonus in ("none", *(f"own mem {entropy}" for entropy in ENTROPIES))]
    made = {
        arm.bonus: [attempts[arm.variant, seed] for seed in SEEDS if (arm.variant, seed) in attempts]
        for arm in (*compared, *ARMS)
    }
    solved = {bonus: sum(one.solved_at_frame is not None for one in runs) for bonus, runs in made.items()}
    p_values = {}
    for arm in ARMS:
        mem = f"own mem {arm.bonus.split()[1]}"
        p_values[arm.bonus] = compute_fisher_p(solved[mem], len(made[mem]), solved[arm.bonus], len(made[arm.bonus]))
    corrected = correct_holm(p_values)
    for bonus, runs in made.items():
        found = sum(one.first_found_at_frame is not None for one in runs)
        frames = ", ".join("-" if one.solved_at_frame is None else f"{one.solved_at_frame:,}" for one in runs)
        p_text = format_p(corrected[bonus]) if bonus in corrected else ""
        yield bonus, str(len(runs)), str(found), str(solved[bonus]), frames, p_text
