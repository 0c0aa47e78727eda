"""QUALITY P rows. Ratios of medians taken in turns; absolute times would measure the machine."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from benchmarks.update import Update, gigaflops, side_by_side
from quality.plugin import Figure


@pytest.mark.quality("P1")
@pytest.mark.slow
def test_flops_of_an_update_with_three_views(figure: Figure) -> None:
    figure(gigaflops(Update(views=3, batch=256)))


@pytest.mark.quality("P3")
@pytest.mark.slow
@pytest.mark.timing
def test_views_cost_in_proportion(figure: Figure) -> None:
    counts = [1, 2, 3, 4, 6, 8]
    seconds = side_by_side(*(Update(views=n, batch=64) for n in counts), rounds=5)
    per_view, fixed = np.polyfit(counts, seconds, 1)
    figure((fixed + 3 * per_view) / (fixed + per_view))  # from the line: six timings instead of two
    figure(float(np.corrcoef(counts, seconds)[0, 1] ** 2), "R2")


@pytest.mark.quality("P5")
@pytest.mark.slow
@pytest.mark.timing
def test_the_reward_is_nearly_free(figure: Figure) -> None:
    update = Update(views=3, batch=256)
    with torch.no_grad():
        features = update.mem.encode(update.views)
    whole, reward = side_by_side(update, lambda: update.mem.reward(features), rounds=3)
    figure(reward / whole)


@pytest.mark.quality("P12")
@pytest.mark.timing
def test_importing_manyview_costs_no_more_than_torch(figure: Figure) -> None:
    """In one process, torch first: two processes differ by more than what is measured."""
    code = (
        "import time; start = time.perf_counter(); import torch; between = time.perf_counter(); import manyview.mem\n"
        "print((time.perf_counter() - start) / (between - start))"
    )
    command = [sys.executable, "-c", code]
    ratios = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(3)]
    figure(sorted(ratios)[1])
