"""Study: a policy on the simulator's state with a bonus of the cameras; see PLAN.md."""

from experiments.bonus.comparisons import PENDULUM, Comparison, Plan

STUDY = "privileged"
NONE = "sac+no_images"
MEM, SHUFFLED, UNTRAINED, FROZEN, RANDOM, RE3, TRUE_STATE = (
    f"{NONE}+{bonus}"
    for bonus in ("mem", "shuffled_mem", "untrained_mem", "frozen_mem", "random_mem", "re3", "true_state")
)
TEMPERATURE = "temperature"
"""Variant of `NONE` whose temperature adapts ten times as fast."""
PLAN = Plan(
    MEM,
    in_order=(Comparison(PENDULUM, NONE), Comparison(PENDULUM, SHUFFLED), Comparison(PENDULUM, NONE, TEMPERATURE)),
    described=tuple(Comparison(PENDULUM, other) for other in (UNTRAINED, FROZEN, RANDOM, RE3, TRUE_STATE)),
)
