"""Print the returns and the tests of the study with privileged state; see PLAN.md.

python -m experiments.privileged
"""

from experiments.bonus.comparisons import HEAD, PENDULUM, Comparison, Plan, list_rows
from experiments.results_table import SCORES_HEAD, list_scores
from experiments.tables import format_table, read_runs

NONE = "sac+no_images"
MEM, SHUFFLED, RE3, TRUE_STATE = (f"{NONE}+{bonus}" for bonus in ("mem", "shuffled_mem", "re3", "true_state"))
PLAN = Plan(
    MEM,
    in_order=(Comparison(PENDULUM, NONE), Comparison(PENDULUM, SHUFFLED)),
    described=(Comparison(PENDULUM, RE3), Comparison(PENDULUM, TRUE_STATE)),
)

if __name__ == "__main__":
    print(format_table(SCORES_HEAD, list_scores("privileged")))
    print()
    print(format_table(HEAD, list_rows(read_runs("privileged"), PLAN)))
