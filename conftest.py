import pytest
import torch

from manyview.utils.resources import keep_freed_memory

pytest_plugins = ["quality.plugin"]
keep_freed_memory()


@pytest.fixture(autouse=True)
def seed_torch() -> None:
    """Seed torch's global generator before every test."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that parallel workers finish at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
