"""Private folders: closed to other users, and removed with or after their process."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.launcher import read_line
from manyview.utils import private_dir as private_dir_module
from manyview.utils.private_dir import make_private_directory

PRIVATE = "another user of the machine can neither list, read nor write the files of the Ray that a run starts"
HOLD_SCRIPT = """
import sys
from manyview.utils.private_dir import make_private_directory
with make_private_directory(sys.argv[1], "held-", max_chars=1000) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""
NOBODY = 65534


def try_as_nobody(folder: Path) -> str:
    """Return what another user can do with a folder, by a process of that user."""
    script = 'ls "$0" && echo listed; : > "$0/r/file" && echo written; cd "$0" && echo entered'
    command = ["/bin/sh", "-c", script, str(folder)]
    result = subprocess.run(command, user=NOBODY, cwd="/", capture_output=True, text=True, timeout=30, check=False)
    return result.stdout


@pytest.mark.attack(PRIVATE)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_user_cannot_use_the_folder() -> None:
    # Not below the folder of pytest, which is closed to others too.
    with TemporaryDirectory() as parent, make_private_directory(parent, "test-", max_chars=1000) as folder:
        folder.parent.chmod(0o755)
        (folder / "r").mkdir()
        (folder / "r").chmod(0o777)  # as Ray does
        assert try_as_nobody(folder) == ""
        folder.chmod(0o777)
        assert try_as_nobody(folder).split() == ["r", "listed", "written", "entered"]


@pytest.mark.attack(PRIVATE)
def test_the_folder_has_mode_700_and_is_removed_at_the_end(tmp_path: Path) -> None:
    with make_private_directory(str(tmp_path), "test-", max_chars=1000) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert not folder.exists()


def test_folders_of_killed_processes_are_removed_and_those_of_running_ones_kept(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_SCRIPT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    process_folder = Path(read_line(process, at_most_s=30).strip())
    (process_folder / "file").touch()
    with make_private_directory(str(tmp_path), "held-", max_chars=1000) as folder:
        assert process_folder.is_dir()
        assert folder != process_folder
    process.kill()
    process.communicate(timeout=30)
    assert process_folder.is_dir()
    with make_private_directory(str(tmp_path), "held-", max_chars=1000) as folder:
        assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.attack(PRIVATE)
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    link_target = tmp_path / "precious"
    link_target.mkdir()
    (link_target / "file").touch()
    (tmp_path / "test-link").symlink_to(link_target)
    with make_private_directory(str(tmp_path), "test-", max_chars=1000):
        pass
    assert (link_target / "file").exists()


def test_a_path_too_long_for_a_socket_is_replaced_by_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_dir_module, "SHORT_PARENT", str(tmp_path / "s"))
    (tmp_path / "s").mkdir()
    with make_private_directory(str(tmp_path), "test-", max_chars=len(str(tmp_path)) + 5) as folder:
        assert folder.parent == tmp_path / "s"
