"""Meta-World's task list without the simulator, which tests/unit/envs/metaworld needs."""

import pytest

from manyview.envs import list_tasks, make
from manyview.envs import suite as suites


def test_fifty_tasks_are_listed_with_three_of_their_cameras() -> None:
    tasks = [task for name, task in list_tasks().items() if name.startswith("metaworld/")]
    assert len(tasks) == 50
    for task in tasks:
        assert len(task.settings.views) == 3
        assert "gripperPOV" in task.settings.views
        assert set(task.settings.views) <= set(task.cameras)


def test_a_missing_simulator_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs metaworld: pip install \"\.\[metaworld\]\" in a sep"):
        make("metaworld/drawer-open")
