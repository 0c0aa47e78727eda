"""QUALITY P1 to P5 and P12. Ratios of times measured in turns: absolute times depend on the machine."""

import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.update import PlainUpdate, count_gigaflops, measure_ratio
from manyview.training.update_benchmark import BareNetworks, MEMUpdate, time_alternating
from quality.plugin import Figure
from tests.support.timing import MAX_ATTEMPTS, measure_minimum


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread, as the CPU seconds of several threads would add up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.quality("P1")
@pytest.mark.slow
def test_flops_of_an_update_with_three_views(figure: Figure) -> None:
    figure(count_gigaflops(MEMUpdate(views=3, batch=256)), "")


@pytest.mark.quality("P2")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("one_thread")
def test_an_update_costs_little_more_than_its_convolutions_and_linear_layers(figure: Figure) -> None:
    """`BareNetworks` lists what the baseline does and what it leaves out."""
    update = MEMUpdate(views=3, batch=128)
    bare = BareNetworks(update)
    figure(measure_minimum(lambda: measure_ratio(update, bare, rounds=5), stop_at=1.08))


@pytest.mark.quality("P3")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("one_thread")
def test_views_cost_in_proportion(figure: Figure) -> None:
    counts = [1, 2, 3, 4, 6]
    updates = [MEMUpdate(views=n, batch=32) for n in counts]
    for _ in range(MAX_ATTEMPTS):
        seconds = time_alternating(*updates, rounds=4, clock=time.process_time)
        r_squared = float(np.corrcoef(counts, seconds)[0, 1] ** 2)
        if r_squared >= 0.99:
            break  # otherwise another process may have slowed the machine
    per_view, fixed = np.polyfit(counts, seconds, 1)
    figure((fixed + 3 * per_view) / (fixed + per_view))  # the fit uses five timings instead of two
    figure(r_squared, "R2")


@pytest.mark.quality("P4")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("one_thread")
def test_with_one_view_mem_costs_little_more_than_plain_drqv2(figure: Figure) -> None:
    mem, plain = MEMUpdate(views=1, batch=256), PlainUpdate(views=1, batch=256)
    figure(measure_minimum(lambda: measure_ratio(mem, plain, rounds=5), stop_at=1.04))


@pytest.mark.quality("P5")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("one_thread")
def test_the_reward_is_nearly_free(figure: Figure) -> None:
    update = MEMUpdate(views=3, batch=256)
    with torch.no_grad():
        features = update.mem.encode(update.batch.views)
    compute_reward = lambda: update.bonus.entropy.compute_reward(features, indices=update.batch.indices)  # noqa: E731
    figure(measure_ratio(compute_reward, update, rounds=3))


@pytest.mark.quality("P12")
@pytest.mark.timing
def test_importing_manyview_costs_no_more_than_torch(figure: Figure) -> None:
    """One process imports torch first: times of two processes differ too much."""
    code = (
        "import time; start = time.perf_counter(); import torch; between = time.perf_counter(); import manyview.mem\n"
        "print((time.perf_counter() - start) / (between - start))"
    )
    command = [sys.executable, "-c", code]
    ratios = [
        float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout) for _ in range(3)
    ]
    figure(sorted(ratios)[1])
