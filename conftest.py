import pytest
import torch

from benchmarks.memory import keep_freed_memory

pytest_plugins = ["quality.plugin"]
keep_freed_memory()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Tests that draw without a generator of their own draw the same every time."""
    torch.manual_seed(0)
