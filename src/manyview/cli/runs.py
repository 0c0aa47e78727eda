"""`manyview runs`: list runs with their state and last return."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import JsonFlag, report_error
from manyview.report.runs import RunSummary, summarize_runs
from manyview.utils.text import print_line, sanitize_text

HEADINGS = ("state", "task", "method", "seed", "frames", "return", "age")
TEXT_COLUMNS = 3
"""Number of leading columns with text; the others hold numbers."""
UNWRAPPED_WIDTH = 1000
"""Console width, in characters, that no line of the table exceeds."""
MAX_CELL_CHARS, MAX_PATH_CHARS = 80, 4096
FORMULA_STARTS = ("=", "+", "-", "@")
CsvFlag = Annotated[bool, FlagCreatePairsOff, arg(name="csv", help="Print CSV with the fields of --json.")]
STYLES = {"running": "cyan", "finished": "green", "failed": "bold red", "killed": "red", "broken": "bold red"}


def runs(
    directory: Positional[Annotated[Path, arg(metavar="DIRECTORY", help="List all runs below it.")]] = Path("runs"),
    *,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> int:
    """List runs with their state and last return.

    Killed: the run did not record its end, and its process is gone.
    Unknown: the run did not record its end, and it ran on another machine.
    """
    if not directory.is_dir():
        return report_error(
            f"directory does not exist: {directory}. Pass the directory of your runs; `manyview train` creates runs/"
        )
    if as_json and as_csv:
        return report_error("one format at a time: expected --json or --csv, got both")
    summaries = list(summarize_runs(directory))
    if as_csv:
        write_csv(summaries)
    elif as_json:
        print(json.dumps([{**asdict(run), "path": str(run.path)} for run in summaries], indent=2))
    elif summaries:
        print_runs(summaries)
    else:
        print_line(f"no runs below {directory}")
    return 0


def write_csv(summaries: Sequence[RunSummary]) -> None:
    """Print a header and one line per run as CSV; unknown values are empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(field.name for field in fields(RunSummary))
    writer.writerows([format_csv_cell(value) for value in astuple(run)] for run in summaries)


def format_csv_cell(value: object) -> object:
    """Return a value as one printable line; text that a spreadsheet would take for a formula starts with a quote."""
    if value is None or isinstance(value, int | float):
        return value
    text = sanitize_text(value, max_chars=MAX_PATH_CHARS)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def print_runs(summaries: Sequence[RunSummary]) -> None:
    """Print one line per run, or two if the terminal is too narrow for its path; no word is broken."""
    from rich.console import Console
    from rich.text import Text

    # Files and pipes get unwrapped lines.
    console = Console(width=None if sys.stdout.isatty() else UNWRAPPED_WIDTH)
    rows = [format_cells(run) for run in summaries]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    paths = [sanitize_text(run.path, max_chars=MAX_PATH_CHARS) for run in summaries]
    max_path_width = max(map(len, paths))
    gap = "  " if sum(widths) + 2 * len(widths) + max_path_width <= console.width else "\n    "
    console.print(Text(align_row(HEADINGS, widths), style="bold").append(f"{gap}path"), soft_wrap=True)
    for run, row, path in zip(summaries, rows, paths, strict=True):
        line = Text(align_row(row, widths)).append(f"{gap}{path}")
        line.stylize(STYLES.get(run.state, ""), 0, len(run.state))
        if run.reason is not None:
            line.append(f"\n    {run.reason}", style="dim")
        console.print(line, soft_wrap=True)


def format_cells(run: RunSummary) -> tuple[str, ...]:
    """Return the cells of a run, one per heading; unknown values are empty."""
    return (
        run.state,
        sanitize_text(run.task or "", max_chars=MAX_CELL_CHARS),
        sanitize_text(run.method or "", max_chars=MAX_CELL_CHARS),
        "" if run.seed is None else str(run.seed),
        format_frames(run),
        "" if run.last_return is None else format_return(run.last_return),
        "" if run.age_s is None else format_age(run.age_s),
    )


def align_row(row: Sequence[str], widths: Sequence[int]) -> str:
    """Join the cells of a row, text aligned left and numbers right."""
    pairs = enumerate(zip(row, widths, strict=True))
    return "  ".join(cell.ljust(width) if index < TEXT_COLUMNS else cell.rjust(width) for index, (cell, width) in pairs)


def format_frames(run: RunSummary) -> str:
    """Format the progress as `45% of 100,000`; an unfinished run shows at most 99%."""
    if run.frames is None:
        return ""
    if not run.total_frames:
        return f"{run.frames:,}"
    percent = 100 * run.frames // run.total_frames
    return f"{percent if run.state == 'finished' else min(percent, 99)}% of {run.total_frames:,}"


def format_return(value: float) -> str:
    """Format a return as `812.3`, or in scientific notation from 1e9 on."""
    return f"{value:.1f}" if abs(value) < 1e9 else f"{value:.2e}"


def format_age(seconds: float) -> str:
    """Format an age in the largest unit that gives at least 2: 90 s, 5 min, 3 h, 2 d."""
    for unit, in_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * in_s:
            return f"{seconds // in_s:.0f} {unit}"
    return f"{seconds:.0f} s"
