"""Report on a kept study as one HTML page, as `manyview report` writes it for run directories.

    python -m experiments.report dmc --out dmc.html
    python -m experiments.report dmc --out dmc.html --published results/published.json

A table keeps returns, some diagnostics and the settings of each variant, but no videos, versions or states: every run
in a table has finished. `--metric` reports on another metric than the return, such as `test_return` or `solved`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from shlex import join

import numpy as np

from experiments.tables import TableRun, read_runs, read_settings
from manyview.report.curves import Curve
from manyview.report.material import RunMaterial, is_diagnostic
from manyview.report.page import write_page
from manyview.report.published_results import read_published_results

RETURN = "return"


def main(args: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--metric", default=RETURN)
    parser.add_argument("--published", type=Path)
    chosen = parser.parse_args(args)
    runs = [make_material(run, chosen.metric) for run in read_runs(chosen.study) if chosen.metric in run.metrics]
    published = [] if chosen.published is None else read_published_results(chosen.published)
    size = write_page(chosen.out, runs, published=published, title=f"Study {chosen.study}: {chosen.metric}")
    print(f"{len(runs)} runs, {size / 1000:,.0f} kB, written to {chosen.out}")


def make_material(run: TableRun, metric: str) -> RunMaterial:
    """Return what a report shows of a run of a table."""
    first, name = run.rows[0], "/".join((run.variant, run.task, run.method, f"seed{run.seed}"))
    settings = {"variant": run.variant, **read_settings(run)}
    points = [(row.frames, row.wall_time_s, row.value) for row in run.rows if row.metric == metric]
    timed = [(seconds, value) for _, seconds, value in points if seconds is not None]
    return RunMaterial(
        name=name,
        state="finished",
        curve=_make_curve(run, name, [(frames, value) for frames, _, value in points]),
        timed_curve=_make_curve(run, name, timed),
        diagnostics={name: series for name, series in run.metrics.items() if is_diagnostic(name)},
        settings=settings,
        versions={"commit": first.commit} if first.commit else {},
        command=join(["manyview", "train", run.task, "--method", run.method, "--seed", str(run.seed)])
        + f"  # with the settings of variant {run.variant}",
    )


def _make_curve(run: TableRun, name: str, points: Sequence[tuple[float, float]]) -> Curve:
    x, returns = np.array(sorted(points), np.float64).reshape(-1, 2).T
    return Curve(
        task=run.task,
        method=run.method,
        seed=run.seed,
        path=Path(name),
        settings={"variant": run.variant},
        x=x,
        returns=returns,
    )


if __name__ == "__main__":
    main()
