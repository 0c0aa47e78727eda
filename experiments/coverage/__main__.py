"""Train the runs of the study of coverage, and print its table; see PLAN.md.

    python -m experiments.coverage experiments/coverage/bonuses.toml --only pendulum   # train what is missing
    python -m experiments.coverage experiments/coverage/random.toml
    python -m experiments.coverage --table

Options are those of `experiments.study`.
"""

import sys

from experiments import study
from experiments.coverage import HEAD, STUDY, list_rows
from experiments.coverage.training import measure, train
from experiments.tables import format_table, read_runs

if __name__ == "__main__":
    if "--table" in sys.argv[1:]:
        print(format_table(HEAD, list_rows(read_runs(STUDY))))
    else:
        study.main(__doc__, train=train, measure=measure)
