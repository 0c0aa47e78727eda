"""Arguments that several subcommands have, and how they refuse a wrong one."""

import sys
from typing import Annotated

import tyro

JsonFlag = Annotated[
    bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="json", help="Print a JSON list instead of a table.")
]


def refuse(reason: object) -> int:
    """Say in one paragraph what cannot be done; the exit status of a wrong argument, as tyro has it."""
    print(reason, file=sys.stderr)
    return 2
