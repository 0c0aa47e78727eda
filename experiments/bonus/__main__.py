"""Print the returns and the tests of the study of the bonus; see PLAN.md.

python -m experiments.bonus
"""

from itertools import chain

from experiments.bonus.comparisons import CUP, HEAD, NONE, list_rows
from experiments.results_table import SCORES_HEAD, list_scores
from experiments.tables import format_table, read_runs

if __name__ == "__main__":
    base = (run for run in read_runs("base") if (run.task, run.method) == (CUP, NONE))
    print(format_table(SCORES_HEAD, list_scores("bonus")))
    print()
    print(format_table(HEAD, list_rows(chain(base, read_runs("bonus")))))
