"""The command `manyview` and its list of subcommands.

A subcommand is a function in a file of its own, `manyview.cli.<name>.<name>`, that returns the exit status; tyro reads
its arguments from the signature. Only the one that was asked for is imported: `--help` stays quick, and `doctor` still
runs where the import of another subcommand fails.
"""

import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

from tyro.extras import SubcommandApp

from manyview import __version__
from manyview.cli.arguments import EXIT_FAILED, EXIT_INTERRUPTED, print_line

COMMANDS = {
    "doctor": "Check this installation; name the command that repairs it.",
    "train": "Train an agent from several cameras.",
    "sweep": "Train every combination of tasks, methods and seeds, on Ray.",
    "evaluate": "Play episodes with a run's agent, with all or some cameras.",
    "plot": "Draw learning curves of runs, also beside published figures.",
    "runs": "List runs, their state and last return.",
    "tasks": "List the tasks with their cameras and settings.",
    "views": "Draw what the views of a task show during some random actions.",
}
"""Every subcommand, with its line in `manyview --help`."""

DESCRIPTION = """Reinforcement learning from several cameras with sparse rewards.
`manyview <subcommand> --help` explains one; `manyview --version` prints the version."""


def main(args: Sequence[str] | None = None) -> int:
    """Run `manyview` with `args` (by default those of the process) and return its exit status."""
    _prepare_streams()
    status = 0
    try:
        try:
            status = _run(args)
        finally:
            sys.stdout.flush()  # while what goes wrong with it can still be said
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):  # as rich says it
            raise
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_reader_gone():  # `manyview tasks | head` has seen enough
            return status
        with suppress(OSError):
            print_line(f"manyview: {error}", file=sys.stderr)
        return status or EXIT_FAILED
    finally:
        _discard_unwritable()
    return status


def _run(args: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
    if arguments == ["--version"]:
        print(f"manyview {__version__}")
        return 0
    app = SubcommandApp()
    for name, summary in COMMANDS.items():
        if arguments[0] == name:
            app.command(name=name)(getattr(import_module(f"manyview.cli.{name}"), name))
        else:
            app.command(name=name, help=summary)(_raise_not_loaded)
    status: int = app.cli(prog="manyview", description=DESCRIPTION, args=arguments)
    return status


def _prepare_streams() -> None:
    """Open closed standard streams, and let stdout take every letter, as stderr does."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # the next file that is opened would get its number, and what is printed
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
            if null != number:
                os.close(null)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _is_reader_gone() -> bool:
    """Return whether nobody reads stdout any more, so that it is not another pipe that broke."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # what is wrong with it is told in any case
    return bool(output.poll(0))


def _discard_unwritable() -> None:
    """Lead streams that take no more nowhere, or the interpreter complains at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _raise_not_loaded() -> int:
    raise AssertionError("a subcommand must be the first argument, and tyro refuses anything before it")
