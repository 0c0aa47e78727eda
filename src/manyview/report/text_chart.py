"""Charts of curves as lines of text, for a terminal."""

from collections.abc import Sequence

import numpy as np

from manyview.report.curves import Curve, FloatArray

WIDTH, HEIGHT = 60, 12
"""Size of the plotted area in characters."""
MARKERS = ("●", "○")
BOTH = "◉"


def draw_text_chart(curves: Sequence[Curve]) -> list[str]:
    """Draw up to two curves as lines of text, with the range of returns on the left and that of x below.

    Between two evaluations a curve is interpolated; a cell that both curves cross has another marker.
    """
    drawn = [(marker, curve) for marker, curve in zip(MARKERS, curves, strict=False) if len(curve.x)]
    if not drawn:
        return []
    x_low, x_high = (float(end) for end in _find_range([curve.x for _, curve in drawn]))
    y_low, y_high = (float(end) for end in _find_range([curve.returns for _, curve in drawn]))
    columns = np.linspace(x_low, x_high, WIDTH)
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    for marker, curve in drawn:
        for column in np.flatnonzero((columns >= curve.x[0]) & (columns <= curve.x[-1])):
            value = float(np.interp(columns[column], curve.x, curve.returns))
            row = cells[_find_row(value, y_low, y_high)]
            row[column] = BOTH if row[column] not in (" ", marker) else marker
    labels = [f"{y_high:.4g}", *[""] * (HEIGHT - 2), f"{y_low:.4g}"]
    width = max(map(len, labels))
    lines = [f"{label.rjust(width)} │{''.join(row)}".rstrip() for label, row in zip(labels, cells, strict=True)]
    start, end = f"{x_low:,.0f}", f"{x_high:,.0f}"
    return [*lines, f"{' ' * width} └{'─' * WIDTH}", f"{' ' * width}  {start}{end.rjust(WIDTH - len(start))}"]


def _find_range(parts: Sequence[FloatArray]) -> tuple[float, float]:
    return min(part.min() for part in parts), max(part.max() for part in parts)


def _find_row(value: float, low: float, high: float) -> int:
    """Return the row of a value, 0 on top; a constant curve is in the middle."""
    share = (value - low) / (high - low) if high > low else 0.5
    return round((1 - share) * (HEIGHT - 1))
