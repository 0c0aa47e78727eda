"""What subcommands share: an argument, and how a wrong one is refused."""

import sys
from typing import Annotated

import tyro

JsonFlag = Annotated[
    bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="json", help="Print a JSON list instead of a table.")
]


FAILED, INTERRUPTED = 1, 130
"""What a shell expects of a command that did not reach its end, and of one that Ctrl-C ended."""


def refuse(reason: object) -> int:
    """Say in one paragraph what cannot be done; the exit status of a wrong argument, as tyro has it."""
    print(reason, file=sys.stderr)
    return 2
