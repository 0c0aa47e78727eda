"""Study: controls of MEM's bonus on Deep Sea with SAC; see PLAN.md."""

from collections.abc import Iterator, Mapping

from experiments import composition
from experiments.composition import Arm, format_p, make_arm_config
from experiments.deep_sea import Attempt
from manyview.config.overrides import to_plain
from manyview.config.schema import RunConfig
from manyview.report.statistics import compute_fisher_p, correct_holm

STUDY, AGENT, SIZE = "adaptation", "sac", 10
SEEDS = composition.SEEDS
ARMS = [
    Arm(AGENT, bonus, SIZE)
    for bonus in (
        *("mem joint", "mem marginal", "untrained_mem joint", "untrained_mem marginal"),
        *("frozen_mem joint", "frozen_mem marginal", "random_mem joint"),
    )
]


def make_config(arm: Arm, seed: int) -> RunConfig:
    """Return the config of `own mem` of `experiments.composition`, with a control in place of MEM's bonus."""
    bonus, entropy = arm.bonus.split()
    mem = composition.make_config(Arm(AGENT, f"own mem {entropy}", SIZE), seed)
    return make_arm_config(arm, seed, f"pixel+{bonus}", {"bonus": to_plain(mem.bonus)})


HEAD = ("bonus", "seeds", "found", "solved", "solved at frame, by seed", "p of mem above it")


def list_rows(attempts: Mapping[tuple[str, int], Attempt]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each arm; p-values once all are complete."""
    runs = {
        arm.bonus: [attempts[arm.variant, seed] for seed in SEEDS if (arm.variant, seed) in attempts] for arm in ARMS
    }
    num_solved = {bonus: sum(run.solved_at_frame is not None for run in seeds) for bonus, seeds in runs.items()}
    p_values = {}
    if all(len(seeds) == len(SEEDS) for seeds in runs.values()):
        for bonus, count in num_solved.items():
            name, entropy = bonus.split()
            if name != "mem":
                p_values[bonus] = compute_fisher_p(num_solved[f"mem {entropy}"], len(SEEDS), count, len(SEEDS))
    corrected = correct_holm(p_values)
    for bonus, seeds in runs.items():
        num_found = sum(run.first_found_at_frame is not None for run in seeds)
        frames = ", ".join("-" if run.solved_at_frame is None else f"{run.solved_at_frame:,}" for run in seeds)
        p_text = format_p(corrected[bonus]) if bonus in corrected else ""
        yield bonus, str(len(seeds)), str(num_found), str(num_solved[bonus]), frames, p_text
