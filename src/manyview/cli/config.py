"""`manyview config`: show the settings of a run, or list presets and methods, without building anything."""

import inspect
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from manyview.cli.arguments import report_error
from manyview.cli.settings import RunOptions
from manyview.config.files import format_toml
from manyview.config.overrides import to_plain
from manyview.config.presets import PARTS, list_presets, read_preset
from manyview.config.resolve import DEFAULT_TASK
from manyview.envs.registration import find_task
from manyview.methods.registry import Part, Registry
from manyview.utils.docstrings import read_class_doc
from manyview.utils.text import print_line

Row = tuple[str, str, str]


def config(
    action: Positional[Annotated[Literal["show", "list"], arg(metavar="show|list", help="What to print.")]],
    task: Positional[
        Annotated[
            str | None,
            arg(
                metavar="[TASK]",
                help="Task; presets depend on its suite.",
                help_behavior_hint=f"(default: that of --config, or {DEFAULT_TASK})",
            ),
        ]
    ] = None,
    *,
    task_option: Annotated[
        str | None, arg(name="task", metavar="TASK", help="The same as TASK.", help_behavior_hint="")
    ] = None,
    options: Annotated[RunOptions, arg(name="")],
    format: Annotated[Literal["toml", "json"], arg(metavar="toml|json", help="Format of the settings.")] = "toml",  # noqa: A002
) -> int:
    """Show the settings of a run, or list presets and methods.

    `show` prints the config that `manyview train` would use with the same options, without starting anything.
    Save it to a file, edit it and pass it with --config.
    `list` prints the presets, agents, representations and bonuses that are installed.
    """
    if action == "list":
        _print_lists()
        return 0
    try:
        given_task = task or task_option
        if given_task and ":" not in given_task:
            find_task(given_task)
        run_config = options.resolve(given_task)
        text = format_toml(run_config) if format == "toml" else json.dumps(to_plain(run_config), indent=2) + "\n"
    except (ValueError, TypeError, OSError) as error:
        return report_error(error)
    print(text, end="")
    return 0


def _print_lists() -> None:
    tables = {"presets": list(_iter_presets())}
    tables |= {registry.group.removeprefix("manyview."): list(_iter_parts(registry)) for registry in PARTS.values()}
    width = max(len(name) for rows in tables.values() for name, *_ in rows)
    for title, rows in tables.items():
        print_line(title)
        for name, text, source in rows:
            print_line(f"  {name:<{width}}  {text} [{source}]")


def _iter_presets() -> Iterator[Row]:
    """Yield name, summary or error, and file of every preset."""
    for name, file in list_presets().items():
        try:
            yield name, read_preset(name).summary, str(file)
        except (ValueError, OSError) as error:
            yield name, f"invalid: {error}", str(file)


def _iter_parts(registry: Registry) -> Iterator[Row]:
    """Yield name, description or error, and package of every part."""
    for name in registry.list_names():
        try:
            part = registry[name]
            yield name, _describe_part(part), part.config.__module__.partition(".")[0]
        except ValueError as error:
            yield name, f"invalid: {error}", "not loaded"


def _describe_part(part: Part) -> str:
    """Return what a part does: the docstring of its class, or of the module of its builder."""
    owner: Any = part.build if isinstance(part.build, type) else inspect.getmodule(part.build)
    return read_class_doc(owner) or read_class_doc(part.config)
