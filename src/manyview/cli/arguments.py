"""What subcommands share: an argument, how lines are printed, and how a wrong argument is refused."""

import sys
from typing import IO, Annotated

import tyro

from manyview.utils.text import sanitize_text

JsonFlag = Annotated[
    bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="json", help="Print a JSON list instead of a table.")
]


MAX_LINE_CHARS = 2_000
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
"""What a shell expects of a command that did not reach its end, and of one that Ctrl-C ended."""


def print_line(line: object, *, file: IO[str] | None = None) -> None:
    """Print one line, to stdout by default. Whatever it quotes, it is one, and moves no cursor."""
    print(sanitize_text(line, max_chars=MAX_LINE_CHARS), file=file, flush=True)


def report_error(reason: object) -> int:
    """Say in one line what cannot be done; the exit status of a wrong argument, as tyro has it."""
    print_line(reason, file=sys.stderr)
    return 2
