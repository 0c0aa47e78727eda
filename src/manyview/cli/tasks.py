"""`manyview tasks`: what there is to learn on, and what has to be installed for it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated

import tyro

from manyview.cli.arguments import JsonFlag, refuse
from manyview.envs.make import SUITES
from manyview.envs.make import suite as find_suite
from manyview.envs.suite import Settings, Suite, Task

if TYPE_CHECKING:
    from rich.table import Table

SETTINGS = tuple(field.name for field in fields(Settings) if field.name != "views")

SuiteName = Annotated[
    str | None, tyro.conf.arg(metavar="NAME", help=f"Only this one: {', '.join(SUITES)}.", help_behavior_hint="")
]


def tasks(*, suite: SuiteName = None, as_json: JsonFlag = False) -> int:
    """List the tasks with their cameras and settings.

    The settings are the paper's where the paper has the task.
    They hold wherever nothing else is asked for.
    """
    if suite is not None and suite not in SUITES:
        return refuse(f"no suite {suite!r}; there are {', '.join(SUITES)}")
    chosen = [find_suite(name) for name in (SUITES if suite is None else (suite,))]
    if as_json:
        print(json.dumps([entry for found in chosen for entry in entries(found)], indent=2))
    else:
        print_tables(chosen)
    return 0


def entries(suite: Suite) -> list[dict[str, object]]:
    """Everything that is known of each task of a suite."""
    about = {"suite": suite.name, "installed": suite.installed, "install": suite.install or None}
    return [{**asdict(task), **about} for task in suite.tasks.values()]


def print_tables(suites: Sequence[Suite]) -> None:
    """A heading and a table for each suite."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for number, suite in enumerate(suites):
        if number:
            console.print()
        state = "installed" if suite.installed else "not installed"
        console.print(Text(f"{suite.name}: {suite.title}", style="bold").append(f" ({state})", style="not bold"))
        if not suite.installed:
            # Never broken: it is there to be copied.
            console.print(Text("install it: ").append(suite.install, style="bold"), soft_wrap=True)
        if shared := shared_settings(suite):
            console.print(Text(", ".join(f"{_spaced(name)} {value}" for name, value in shared.items())))
        console.print()
        console.print(table_of(suite))


def shared_settings(suite: Suite) -> dict[str, object]:
    """What all tasks of a suite have in common: said once above the table, it leaves room at 80 columns."""
    return {name: values.pop() for name in SETTINGS if len(values := _values(suite, name)) == 1 and None not in values}


def table_of(suite: Suite) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    different = [name for name in SETTINGS if len(_values(suite, name)) > 1]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("task", no_wrap=True)  # likewise
    for heading in ("paper", *map(_spaced, different), "views (further cameras)"):
        table.add_column(heading)
    for task in suite.tasks.values():
        settings = (_shown(getattr(task.settings, name)) for name in different)
        table.add_row(*map(Text, (task.id, "yes" if task.in_paper else "no", *settings, views_and_cameras(task))))
    return table


def views_and_cameras(task: Task) -> str:
    """The views that are shown, and in brackets the cameras that could be."""
    views = ", ".join(task.settings.views)
    further = ", ".join(camera for camera in task.cameras if camera not in task.settings.views)
    return f"{views} ({further})" if further else views


def _values(suite: Suite, setting: str) -> set[object]:
    return {getattr(task.settings, setting) for task in suite.tasks.values()}


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def _spaced(name: str) -> str:
    return name.replace("_", " ")
