import pytest
import torch

pytest_plugins = ["quality.plugin"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Tests that draw without a generator of their own draw the same every time."""
    torch.manual_seed(0)
