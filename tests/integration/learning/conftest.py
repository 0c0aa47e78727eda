"""Thread settings of the learning tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # results do not depend on the machine, and two tests fit on two cores
