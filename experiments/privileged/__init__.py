"""Study: a policy on the simulator's state with a bonus of the cameras; see PLAN.md."""

from experiments.bonus.comparisons import PENDULUM, Comparison, Plan

STUDY = "privileged"
NONE = "sac+no_images"
MEM, SHUFFLED, RE3, TRUE_STATE = (f"{NONE}+{bonus}" for bonus in ("mem", "shuffled_mem", "re3", "true_state"))
PLAN = Plan(
    MEM,
    in_order=(Comparison(PENDULUM, NONE), Comparison(PENDULUM, SHUFFLED)),
    described=(Comparison(PENDULUM, RE3), Comparison(PENDULUM, TRUE_STATE)),
)
