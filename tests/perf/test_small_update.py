"""QUALITY P13: updates at small image sizes. Ratios of CPU times measured in turns."""

from collections.abc import Iterator

import pytest
import torch

from benchmarks.small_update import BareSAC, Update
from benchmarks.update import measure_ratio
from manyview.nn.trunks import Trunk
from quality.plugin import Figure
from tests.support.timing import measure_minimum


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread, as the CPU seconds of several threads would add up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.quality("P13")
@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("one_thread")
def test_an_update_at_24_pixels_costs_little_more_than_its_networks(figure: Figure) -> None:
    """The trunk is for images of 16 to 32 pixels. `BareSAC` lists what the baseline leaves out."""
    trunk: Trunk = "area"
    update = Update("sac+mem", pixels=24, batch_size=256, views=3, trunk=trunk)
    figure(measure_minimum(lambda: measure_ratio(update, BareSAC(update), rounds=7), stop_at=1.25))
