"""`manyview runs`: what is running, what has ended, and how well."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from manyview.cli.arguments import JsonFlag, refuse
from manyview.report.runs import Run, summaries

WIDE = 1000
"""Columns; more than any path has."""
STYLES = {"running": "cyan", "finished": "green", "failed": "bold red", "killed": "red", "broken": "bold red"}


def runs(
    folder: Positional[Annotated[Path, arg(metavar="FOLDER", help="All runs below it are listed.")]] = Path("runs"),
    *,
    as_json: JsonFlag = False,
) -> int:
    """List runs, their state and last return.

    Killed means that a run wrote no end and its process is gone.
    Unknown is one that wrote no end and ran on another machine.
    """
    if not folder.is_dir():
        return refuse(f"no folder {folder}: `manyview train` makes runs/; name the folder of yours")
    found = list(summaries(folder))
    if as_json:
        print(json.dumps([{**asdict(run), "path": str(run.path)} for run in found], indent=2))
    elif found:
        print_table(found)
    else:
        print(f"no runs below {folder}")
    return 0


def print_table(found: Sequence[Run]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("state", "task", "method"):
        table.add_column(heading)
    for heading in ("seed", "frames", "return", "age"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("path", overflow="fold")
    for run in found:
        path = Text(str(run.path))
        if run.reason is not None:
            path.append(f"\n{run.reason}", style="dim")
        cells = (
            run.task or "",
            run.method or "",
            "" if run.seed is None else str(run.seed),
            frames_in_words(run),
            "" if run.last_return is None else f"{run.last_return:.1f}",
            "" if run.age_s is None else age_in_words(run.age_s),
        )
        table.add_row(Text(run.state, style=STYLES.get(run.state, "")), *map(Text, cells), path)
    # A file or another program wants whole lines.
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def frames_in_words(run: Run) -> str:
    if run.frames is None:
        return ""
    return f"{run.frames:,}" + ("" if run.total_frames is None else f" / {run.total_frames:,}")


def age_in_words(seconds: float) -> str:
    """In the largest unit of which there are two: 90 s, 5 min, 3 h, 2 d."""
    for unit, in_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * in_s:
            return f"{seconds // in_s:.0f} {unit}"
    return f"{seconds:.0f} s"
