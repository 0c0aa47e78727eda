"""`manyview report`: write a report on runs as one HTML page."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from manyview.cli.arguments import report_error
from manyview.report.material import BrokenRun, RunMaterial, read_material
from manyview.report.page import write_page
from manyview.report.published_results import read_published_results
from manyview.report.runs import BrokenRunError, find_all_runs
from manyview.utils.output_paths import check_output_file
from manyview.utils.text import format_count, print_line

PAGE_SUFFIXES = (".html", ".htm")


def report(
    runs: Positional[
        Annotated[tuple[Path, ...], arg(metavar="RUN ...", help="Run directories, or directories that contain runs.")]
    ],
    *,
    out: Annotated[Path, arg(metavar="HTML", help="Page to write.")] = Path("report.html"),
    published: Annotated[
        Path | None, arg(metavar="JSON", help="Published results to show beside the runs.", help_behavior_hint="")
    ] = None,
) -> int:
    """Write a report on runs as one HTML page, which needs no network.

    It has the best method of each task with its uncertainty, failed runs, curves, videos, the value of the cameras,
    diagnostics, settings, versions and commands.
    """
    try:
        check_output_file(out, PAGE_SUFFIXES)
        rows = [] if published is None else read_published_results(published)
        materials, broken = read_runs(find_all_runs(runs))
        size = write_page(out, materials, broken=broken, published=rows)
    except (ValueError, OSError) as error:
        return report_error(error)
    for run in broken:
        print_line(f"note: {run.name} is broken: {run.reason}")
    print_line(f"{format_count(len(materials), 'run')}, {size / 1000:,.0f} kB, written to {out}")
    return 0


def read_runs(paths: Sequence[Path]) -> tuple[list[RunMaterial], list[BrokenRun]]:
    """Read run directories; broken ones are listed apart, with their reasons."""
    root = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    materials, broken = list[RunMaterial](), list[BrokenRun]()
    for number, path in enumerate(paths, 1):
        name = str(path.absolute().relative_to(root))  # the directories above stay private
        print_line(f"reading {number} of {len(paths)}: {name}", file=sys.stderr)
        try:
            materials.append(read_material(path, name=name))
        except BrokenRunError as error:
            broken.append(BrokenRun(name, str(error).removeprefix(f"{path}: ")))
    return materials, broken
