"""The command `manyview` and its list of subcommands.

A subcommand is a function in a file of its own, `manyview.cli.<name>.<name>`, that returns the exit status; tyro reads
its arguments from the signature. Only the one that was asked for is imported: `--help` stays quick, and `doctor` still
runs where the import of another subcommand fails.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from tyro.extras import SubcommandApp

from manyview import __version__

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
    arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
    if arguments == ["--version"]:
        print(f"manyview {__version__}")
        return 0
    app = SubcommandApp()
    for name, summary in COMMANDS.items():
        if arguments[0] == name:
            app.command(name=name)(getattr(import_module(f"manyview.cli.{name}"), name))
        else:
            app.command(name=name, help=summary)(_not_loaded)
    try:
        status: int = app.cli(prog="manyview", description=DESCRIPTION, args=arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `manyview tasks | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 0
    return status


def _not_loaded() -> int:
    raise AssertionError("a subcommand must be the first argument, and tyro refuses anything before it")
