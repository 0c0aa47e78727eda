"""What is known of Meta-World where it is not installed. Its own tests are in tests/unit/envs/metaworld."""

import pytest

from manyview.envs import list_tasks, make
from manyview.envs import suite as suites


def test_its_fifty_tasks_are_listed_with_three_of_their_cameras() -> None:
    found = [task for name, task in list_tasks().items() if name.startswith("metaworld/")]
    assert len(found) == 50
    for task in found:
        assert len(task.settings.views) == 3
        assert "gripperPOV" in task.settings.views
        assert set(task.settings.views) <= set(task.cameras)


def test_a_missing_simulator_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs metaworld: pip install \"\.\[metaworld\]\" in a sep"):
        make("metaworld/drawer-open")
