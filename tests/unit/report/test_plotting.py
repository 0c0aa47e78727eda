"""Panels and bands of the plots."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyview.report import plotting
from manyview.report.curves import Curve, CurveGroup

RETURNS = ([0.0, 3.0, 9.0], [1.0, 1.0, 1.0], [5.0, 2.0, 2.0])


@pytest.fixture
def group() -> CurveGroup:
    """Return a group of three seeds."""
    curves = [
        Curve(
            task="toy/identity",
            method="ppo+mem",
            seed=seed,
            path=Path("run"),
            settings={},
            x=np.asarray([0.0, 10.0, 20.0]),
            returns=np.asarray(returns),
        )
        for seed, returns in enumerate(RETURNS)
    ]
    return CurveGroup(task="toy/identity", label="ppo+mem", curves=tuple(curves))


def build_axes(group: CurveGroup, band: plotting.Band) -> Any:
    """Return the axes of a figure with one group."""
    by_task = {group.task: [group]}
    figure = plotting._build_figure(by_task, [group], unit="frames", published=(), source="evaluations", band=band)
    return figure.axes[0]


def test_a_std_band_is_over_seeds_and_without_single_curves(group: CurveGroup) -> None:
    axes = build_axes(group, "std")
    columns = list(zip(*RETURNS, strict=True))
    means = [sum(column) / 3 for column in columns]
    stds = [
        (sum((value - mean) ** 2 for value in column) / 3) ** 0.5 for column, mean in zip(columns, means, strict=True)
    ]
    (band,) = axes.collections
    corners = {(float(x), round(float(y), 9)) for path in band.get_paths() for x, y in path.vertices}
    for x, mean, std in zip((0.0, 10.0, 20.0), means, stds, strict=True):
        assert {(x, round(mean - std, 9)), (x, round(mean + std, 9))} <= corners
    (line,) = axes.lines
    assert np.allclose(line.get_ydata(), means)


def test_an_interval_band_is_drawn_with_the_single_curves(group: CurveGroup) -> None:
    assert len(build_axes(group, "interval").lines) == 4


def test_panels_have_the_order_of_the_tasks_even_without_curves(group: CurveGroup, tmp_path: Path) -> None:
    out = tmp_path / "figure.svg"
    tasks = ("toy/deep_sea", "toy/identity", "toy/hidden_goal")
    plotting.draw_curves(out, [group], unit="frames", tasks=tasks, band="std")
    text = out.read_text()
    positions = [text.index(f"<!-- {task} -->") for task in tasks]
    assert positions == sorted(positions)
    assert text.count("<!-- no runs yet -->") == 2
