"""Print the returns and the tests of the study with privileged state; see PLAN.md.

python -m experiments.privileged
"""

from experiments.bonus.comparisons import HEAD, list_rows
from experiments.privileged import PLAN, STUDY
from experiments.results_table import make_table
from experiments.tables import format_table, read_runs

if __name__ == "__main__":
    print(make_table(STUDY))
    print()
    print(format_table(HEAD, list_rows(read_runs(STUDY), PLAN)))
