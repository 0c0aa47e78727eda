"""`manyview compare`: show in what two runs differ, and their curves."""

from collections.abc import Iterable, Sequence

from manyview.cli.arguments import RunArgument, report_error
from manyview.cli.runs import format_age, format_return
from manyview.report.comparison import MAX_ROWS, Difference, format_value, leave_out_parts, list_differences
from manyview.report.material import RunMaterial, read_material
from manyview.report.runs import BrokenRunError
from manyview.report.text_chart import MARKERS, draw_text_chart
from manyview.utils.text import print_line, sanitize_text

MAX_CELL_CHARS = 60


def compare(first: RunArgument, second: RunArgument) -> int:
    """Compare two runs: results, settings and versions in which they differ, curves and commands.

    Settings of an agent, a representation or a bonus that the other run does not have are left out.
    """
    try:
        runs = [read_material(path, name=str(path)) for path in (first, second)]
    except BrokenRunError as error:
        return report_error(error)
    for marker, run in zip(MARKERS, runs, strict=True):
        print_line(f"{marker} {run.name}")
    _print_table("results", list_results(runs))
    columns = [{"task": run.curve.task, "seed": run.curve.seed, **run.settings} for run in runs]
    _print_differences("settings", leave_out_parts(list_differences(columns)))
    _print_differences("versions and hardware", list_differences([run.versions for run in runs]))
    chart = draw_text_chart([run.curve for run in runs])
    _print_heading("evaluation return over simulator frames" if chart else "no evaluations")
    for line in chart:
        print(line)
    _print_heading("commands")
    for marker, run in zip(MARKERS, runs, strict=True):
        print_line(f"{marker} {run.command}")
    return 0


def list_results(runs: Sequence[RunMaterial]) -> list[tuple[str, ...]]:
    """Return the name of each figure with its value in each run; unknown values are `-`."""
    return [
        ("state", *(run.state for run in runs)),
        ("frames", *(f"{run.curve.x[-1]:,.0f}" if len(run.curve.x) else "-" for run in runs)),
        ("last return", *("-" if run.last_return is None else format_return(run.last_return) for run in runs)),
        ("best return", *(format_return(run.curve.returns.max()) if len(run.curve.x) else "-" for run in runs)),
        ("wall-clock", *("-" if run.seconds is None else format_age(run.seconds) for run in runs)),
    ]


def _print_differences(what: str, differences: Sequence[Difference]) -> None:
    if differences:
        rows = ((row.name, *map(format_value, row.values)) for row in differences[:MAX_ROWS])
        _print_table(f"{what} that differ", rows)
        if len(differences) > MAX_ROWS:
            print_line(f"and {len(differences) - MAX_ROWS:,} more")
    else:
        _print_heading(f"no {what} differ")


def _print_table(heading: str, rows: Iterable[Sequence[str]]) -> None:
    """Print rows below their heading with the marker of each run above its column."""
    _print_heading(heading)
    table = [tuple(sanitize_text(cell, max_chars=MAX_CELL_CHARS) for cell in row) for row in (("", *MARKERS), *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_heading(heading: str) -> None:
    print()
    print_line(heading)
