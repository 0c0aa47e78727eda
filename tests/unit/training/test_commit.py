"""The commit in the manifest of a run."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from manyview.training import manifest


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Module in a new Git checkout, which replaces the module of the library."""
    module = tmp_path / "module.py"
    module.write_text("1\n")
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, timeout=30)  # noqa: S607
    monkeypatch.setattr(manifest, "__file__", str(module))
    return module


def test_a_commit_with_changed_sources_is_marked_as_dirty(module: Path) -> None:
    commit = manifest.describe_commit()
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{12}", commit)
    (module.parent / "new.py").write_text("1\n")
    assert manifest.describe_commit() == commit  # untracked files do not count
    module.write_text("2\n")
    assert manifest.describe_commit() == f"{commit}-dirty"


def test_the_index_is_not_written(module: Path) -> None:
    """A run killed during the write would leave the lock file of Git."""
    index = module.parent / ".git" / "index"
    os.utime(module, (0, 0))  # git would refresh the index
    before = index.stat().st_mtime_ns
    assert manifest.describe_commit() is not None
    assert index.stat().st_mtime_ns == before


def test_without_a_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "__file__", str(tmp_path / "module.py"))
    assert manifest.describe_commit() is None
