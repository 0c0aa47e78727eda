"""What subcommands share: an argument, how a wrong one is refused, and where modules are found."""

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


def find_modules_here() -> None:
    """Let `my_robot:make_env` name a file where one stands; only `python -m` does so by itself."""
    if "" not in sys.path:
        sys.path.append("")  # last: what is installed comes first
