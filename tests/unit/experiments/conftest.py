import pytest

from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS


@pytest.fixture(autouse=True)
def forget_registered_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the parts that a study registers out of the tests that follow."""
    for registry in (AGENTS, BONUSES, REPRESENTATIONS):
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
