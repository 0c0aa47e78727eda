"""Arguments, exit statuses and printing shared by the subcommands."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.utils.json_io import parse_value
from manyview.utils.text import print_line

JsonFlag = Annotated[bool, FlagCreatePairsOff, arg(name="json", help="Print a JSON list instead of a table.")]
RunArgument = Positional[Annotated[Path, arg(metavar="RUN", help="Run directory.")]]
CheckpointOption = Annotated[
    str, arg(metavar="last|best|NAME", help="Checkpoint: the newest, the best evaluated of those kept, or a name.")
]
OwnTaskOption = Annotated[
    str | None,
    arg(
        metavar="MODULE:FUNCTION",
        help="Confirm the task of a run on your own environment, because it is code to execute.",
        help_behavior_hint="",
    ),
]
SETTING_FLAG = re.compile(r"--(?P<no>no-)?(?P<name>\w[\w-]*(?:\.[\w-]+)+)(?:=(?P<value>.*))?", re.S)
"""Flag of a setting; the dot tells it from other options."""
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
"""Exit statuses of a failed command, of invalid arguments as tyro has it, and after Ctrl-C by shell convention."""


class CommandFailedError(Exception):
    """A command cannot go on; its reason has been printed."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def report_error(reason: object) -> int:
    """Print an error as one line to stderr and return the exit status of invalid arguments."""
    print_line(reason, file=sys.stderr)
    return EXIT_USAGE


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error of the input, a file or an environment as one line and raise `CommandFailedError`."""
    # Not imported with this module, so that `manyview --help` stays fast.
    from manyview.envs.contract import ContractError, EnvError

    try:
        yield
    except (EnvError, ContractError) as error:
        print_line(error, file=sys.stderr)
        raise CommandFailedError(EXIT_FAILED) from None
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        raise CommandFailedError(report_error(error)) from None


def log_progress(text: str) -> None:
    """Print a line of progress to stderr."""
    print_line(text, file=sys.stderr)


def convert_setting_flags(arguments: Sequence[str]) -> list[str]:
    """Convert flags such as `--replay.batch-size 512` to assignments, `--set replay.batch_size=512`.

    A flag takes all values up to the next option, several as a list; without a value it is true, as `--no-` is false.
    """
    converted: list[str] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        flag = SETTING_FLAG.fullmatch(argument)
        if flag is None or (flag["no"] and flag["value"] is not None):
            converted.append(argument)
            continue
        values = [] if flag["value"] is None else [flag["value"]]
        while not flag["no"] and flag["value"] is None and remaining and not _is_option(remaining[0]):
            values.append(remaining.pop(0))
        text = values[0] if len(values) == 1 else json.dumps([parse_value(value) for value in values])
        if not values:
            text = "false" if flag["no"] else "true"
        converted += ["--set", f"{flag['name'].replace('-', '_')}={text}"]
    return converted


def list_flags(arguments: Sequence[str]) -> list[str]:
    """Return the names of the flags without a dot, such as `batch-size` of `--batch-size=3`."""
    flags = (argument.removeprefix("--").partition("=")[0] for argument in arguments if _is_option(argument))
    return [flag for flag in flags if "." not in flag]


def _is_option(argument: str) -> bool:
    return argument.startswith("--") or argument == "-h"  # `-1` is a value
