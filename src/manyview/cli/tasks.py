"""`manyview tasks`: list tasks with their settings, and how to install their suites."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated

import tyro

from manyview.cli.arguments import JsonFlag, report_error
from manyview.envs.registration import list_suites, load_suite
from manyview.envs.suite import Suite, Task, TaskSettings

if TYPE_CHECKING:
    from rich.table import Table

SETTINGS = {
    field.name.replace("_", " "): field.name
    for field in fields(TaskSettings)
    if field.name not in ("views", "state", "state_stack")
}
VIEWS = "views (further cameras)"
HEADINGS = (*SETTINGS, VIEWS)

SuiteName = Annotated[
    str | None,
    tyro.conf.arg(metavar="NAME", help=f"List only this suite: {', '.join(list_suites())}.", help_behavior_hint=""),
]


def tasks(*, suite: SuiteName = None, as_json: JsonFlag = False) -> int:
    """List the tasks with their cameras and settings.

    The settings are the defaults of `manyview train` and `manyview.make`.
    For tasks of the paper they are the paper's.
    """
    if suite is not None and suite not in list_suites():
        return report_error(f"unknown suite {suite!r}: expected one of {', '.join(list_suites())}")
    try:
        suites = [load_suite(name) for name in (list_suites() if suite is None else (suite,))]
    except ValueError as error:  # of a broken package
        return report_error(error)
    if as_json:
        print(json.dumps([entry for suite_spec in suites for entry in describe_tasks(suite_spec)], indent=2))
    else:
        print_tables(suites)
    return 0


def describe_tasks(suite: Suite) -> list[dict[str, object]]:
    """Return all facts about each task of a suite as plain values."""
    about = {"suite": suite.name, "installed": suite.is_installed, "install": suite.install or None}
    return [{**asdict(task), **about} for task in suite.tasks.values()]


def print_tables(suites: Sequence[Suite]) -> None:
    """Print a heading and a table for each suite."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for number, suite in enumerate(suites):
        if number:
            console.print()
        state = "installed" if suite.is_installed else "not installed"
        console.print(Text(f"{suite.name}: {suite.title}", style="bold").append(f" ({state})", style="not bold"))
        if not suite.is_installed:
            # Never wrapped, so that the command can be copied.
            console.print(Text("install: ").append(suite.install, style="bold"), soft_wrap=True)
        shared = "; ".join(f"{name}: {value}" for name, value in find_shared_facts(suite).items() if value)
        console.print(Text(f"{shared}\n"))
        console.print(build_table(suite))


def build_table(suite: Suite) -> "Table":
    """Return a table of the settings that differ between the tasks of a suite."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shared = find_shared_facts(suite)
    rows = [[value for name, value in format_task(task).items() if name not in shared] for task in suite.tasks.values()]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("task", no_wrap=True)  # so that the name can be copied
    for heading in ("paper", *(name for name in HEADINGS if name not in shared)):
        table.add_column(heading)
    for task, row in zip(suite.tasks.values(), rows, strict=True):
        table.add_row(*map(Text, (task.id, "yes" if task.in_paper else "no", *row)))
    return table


def find_shared_facts(suite: Suite) -> dict[str, str]:
    """Return the settings that all tasks of a suite share, shown once to keep the table within 80 columns."""
    first, *others = map(format_task, suite.tasks.values())
    return {name: value for name, value in first.items() if all(other[name] == value for other in others)}


def format_task(task: Task) -> dict[str, str]:
    """Return the cells of a task by heading; settings that the task does not have are empty."""
    settings = {heading: getattr(task.settings, name) for heading, name in SETTINGS.items()}
    extra_cameras = ", ".join(camera for camera in task.cameras if camera not in task.settings.views)
    views = ", ".join(task.settings.views) + (f" ({extra_cameras})" if extra_cameras else "")
    return {**{heading: "" if value is None else str(value) for heading, value in settings.items()}, VIEWS: views}
