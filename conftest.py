import pytest
import torch

from manyview.utils.resources import keep_freed_memory

pytest_plugins = ["quality.plugin"]
keep_freed_memory()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Tests that draw without a generator of their own draw the same every time."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first: two workers then end together."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
