"""Arguments, exit statuses and printing shared by the subcommands."""

import sys
from typing import IO, Annotated

import tyro

from manyview.utils.text import sanitize_text

JsonFlag = Annotated[
    bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="json", help="Print a JSON list instead of a table.")
]
MAX_LINE_CHARS = 2_000
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
"""Exit statuses of a failed command and of one ended by Ctrl-C, by shell convention."""


def print_line(line: object, *, file: IO[str] | None = None) -> None:
    """Print one line, to stdout by default, without line breaks or control sequences of quoted text."""
    print(sanitize_text(line, max_chars=MAX_LINE_CHARS), file=file, flush=True)


def report_error(reason: object) -> int:
    """Print an error as one line to stderr and return 2, tyro's exit status of invalid arguments."""
    print_line(reason, file=sys.stderr)
    return 2
