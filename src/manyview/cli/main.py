"""Entry point of the command `manyview`, with the list of subcommands.

A subcommand is a function `manyview.cli.<name>.<name>`, with `_` for `-`, that returns the exit status; tyro reads its
arguments from the signature. Only the requested subcommand is imported: `--help` stays fast, and `doctor` runs even if
the import of another subcommand fails.
"""

import os
import select
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import get_type_hints

from tyro.extras import SubcommandApp

from manyview import __version__
from manyview.cli.arguments import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CommandFailedError,
    convert_setting_flags,
    list_flags,
    report_error,
)
from manyview.utils.text import MAX_LINE_CHARS, format_suggestions, print_line, sanitize_text, suggest

COMMANDS = {
    "doctor": "Check the installation and show commands that repair it.",
    "train": "Train an agent from several cameras.",
    "resume": "Resume a run with its own settings.",
    "extend": "Train a finished or stopped run for more frames.",
    "sweep": "Train combinations of tasks, methods and seeds on Ray.",
    "paper": "List, explain, run and plot experiments of the paper.",
    "evaluate": "Evaluate a trained agent with all or some cameras.",
    "cameras": "Measure what each camera is worth to a trained policy.",
    "export": "Export a trained policy for a robot.",
    "run": "Run a trained policy on a robot, real or simulated.",
    "import-dataset": "Import a LeRobot dataset as demonstrations for runs.",
    "export-dataset": "Write episodes of a trained policy as a LeRobot dataset.",
    "card": "Write a run as a folder to share, with a model card.",
    "hub": "Push a run to the Hugging Face hub, or pull one.",
    "plot": "Plot learning curves of runs and published results.",
    "report": "Write a report on runs as one HTML page.",
    "compare": "Compare two runs: settings, versions and curves.",
    "runs": "List runs with their state and last return.",
    "tasks": "List the tasks with their cameras and settings.",
    "views": "Show the views of a task during random actions.",
    "config": "Show the settings of a run, or list presets and methods.",
    "acceptance": "Test manyview on a device and write a report to send.",
}
"""Subcommands with their lines in `manyview --help`."""
MODULES = {"extend": "resume"}
"""Modules of the subcommands that have none of their own name."""
SETTINGS_COMMANDS = ("train", "config", "import-dataset")
"""Subcommands that take settings with `--set` and as flags."""

DESCRIPTION = """Reinforcement learning from several cameras with sparse rewards.
`manyview <subcommand> --help` describes a subcommand; `manyview --version` prints the version."""


def main(args: Sequence[str] | None = None) -> int:
    """Run `manyview` with `args` (default: the arguments of the process) and return the exit status."""
    _prepare_streams()
    status = 0
    try:
        try:
            with _print_warnings_as_lines():
                status = _run(args)
        finally:
            sys.stdout.flush()  # here, where an error can still be reported
    except SystemExit as exit_request:
        if not isinstance(exit_request.__context__, BrokenPipeError):  # rich turns a broken pipe into SystemExit
            raise
        return 0
    except CommandFailedError as failed:
        return failed.status
    except KeyboardInterrupt:
        print_line("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_reader_gone():  # for example `manyview tasks | head`
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
    if arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        hint = suggest(arguments[0], COMMANDS)
        return report_error(f"unknown subcommand {arguments[0]!r}: expected one of {', '.join(COMMANDS)}{hint}")
    if arguments[0] in SETTINGS_COMMANDS:
        arguments = convert_setting_flags(arguments)
    app = SubcommandApp()
    for name, summary in COMMANDS.items():
        if arguments[0] == name:
            app.command(name=name)(load_command(name))
        else:
            app.command(name=name, help=summary)(_raise_not_loaded)
    try:
        status: int = app.cli(prog="manyview", description=DESCRIPTION, args=arguments)
    except SystemExit as exit_request:
        if exit_request.code == EXIT_USAGE and arguments[0] in SETTINGS_COMMANDS:
            _suggest_groups(arguments)
        raise
    return status


def _suggest_groups(arguments: Sequence[str]) -> None:
    """Print the full name of each flag that names a setting without its group, such as `--batch-size`."""
    from manyview.config.setting_names import find_settings  # imports torch, as the subcommand did

    options = set(_iter_option_names(load_command(arguments[0])))
    for flag in list_flags(arguments):
        name = flag.replace("-", "_")
        if name not in options and (settings := find_settings(name)):
            names = (f"--{setting.replace('_', '-')}" for setting in settings)
            print_line(f"--{flag} has no group{format_suggestions(names)}", file=sys.stderr)


def _iter_option_names(command: Callable[..., int]) -> Iterator[str]:
    for name, kind in get_type_hints(command).items():
        yield from (field.name for field in fields(kind)) if is_dataclass(kind) else (name,)


def load_command(name: str) -> Callable[..., int]:
    """Import the function of a subcommand."""
    function = name.replace("-", "_")
    command: Callable[..., int] = getattr(import_module(f"manyview.cli.{MODULES.get(name, function)}"), function)
    return command


def _prepare_streams() -> None:
    """Open closed standard streams, and let stdout escape characters that it cannot encode, as stderr does."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # otherwise the next opened file gets this descriptor, and the output with it
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
            if null != number:
                os.close(null)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def _print_warnings_as_lines() -> Iterator[None]:
    """Print a warning as its text alone: the source line that raised it means nothing to the user of a command."""

    def format_line(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        del category, filename, lineno, line
        return f"warning: {sanitize_text(message, max_chars=MAX_LINE_CHARS)}\n"

    previous, warnings.formatwarning = warnings.formatwarning, format_line
    try:
        yield
    finally:
        warnings.formatwarning = previous


def _is_reader_gone() -> bool:
    """Return whether the reader of stdout is gone, as opposed to another broken pipe."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # error conditions are reported for any event mask
    return bool(output.poll(0))


def _discard_unwritable() -> None:
    """Redirect streams that fail to /dev/null; otherwise the interpreter prints an error at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _raise_not_loaded() -> int:
    raise AssertionError("subcommand is not loaded: expected it as the first argument, as tyro requires")
