"""A private folder is closed to others, and gone when its process is, however that ended."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.launcher import read_line
from manyview.utils import private_dir as module
from manyview.utils.private_dir import make_private_directory

PRIVATE = "another user of the machine can neither list, read nor write the files of the Ray that a run starts"
HOLD = """
import sys
from manyview.utils.private_dir import make_private_directory
with make_private_directory(sys.argv[1], "held-", max_chars=1000) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""
NOBODY = 65534


def try_as_nobody(folder: Path) -> str:
    """Return what another user can do with a folder, by a process of that user."""
    attempt = 'ls "$0" && echo listed; : > "$0/r/file" && echo written; cd "$0" && echo entered'
    command = ["/bin/sh", "-c", attempt, str(folder)]
    found = subprocess.run(command, user=NOBODY, cwd="/", capture_output=True, text=True, timeout=30, check=False)
    return found.stdout


@pytest.mark.attack(PRIVATE)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_user_can_do_nothing_with_it() -> None:
    # Not below pytest's own folder, which is closed to others too.
    with TemporaryDirectory() as parent, make_private_directory(parent, "test-", max_chars=1000) as folder:
        folder.parent.chmod(0o755)
        (folder / "r").mkdir()
        (folder / "r").chmod(0o777)  # as Ray does
        assert try_as_nobody(folder) == ""
        folder.chmod(0o777)
        assert try_as_nobody(folder).split() == ["r", "listed", "written", "entered"]


@pytest.mark.attack(PRIVATE)
def test_its_mode_is_private_and_it_is_gone_at_the_end(tmp_path: Path) -> None:
    with make_private_directory(str(tmp_path), "test-", max_chars=1000) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    held = Path(read_line(holding, at_most_s=30).strip())
    (held / "file").touch()
    with make_private_directory(str(tmp_path), "held-", max_chars=1000) as ours:
        assert held.is_dir()
        assert ours != held
    holding.kill()
    holding.communicate(timeout=30)
    assert held.is_dir()
    with make_private_directory(str(tmp_path), "held-", max_chars=1000) as ours:
        assert list(tmp_path.iterdir()) == [ours]


@pytest.mark.attack(PRIVATE)
def test_a_link_that_another_user_put_there_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (tmp_path / "test-link").symlink_to(precious)
    with make_private_directory(str(tmp_path), "test-", max_chars=1000):
        pass
    assert (precious / "file").exists()


def test_where_the_path_would_be_too_long_for_a_socket_it_is_made_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHORT_PARENT", str(tmp_path / "s"))
    (tmp_path / "s").mkdir()
    with make_private_directory(str(tmp_path), "test-", max_chars=len(str(tmp_path)) + 5) as folder:
        assert folder.parent == tmp_path / "s"
