import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # the same result on any machine, and two of these tests on two cores
