"""A run's folder in which something leads elsewhere: nothing outside of it is read, written or removed."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyview.cli.main import main
from manyview.envs.visualization import save_image, write_video
from manyview.training import RunDir, checkpoint
from manyview.training.runner import Runner
from manyview.utils.atomic_io import remove, write_atomic
from tests.support.corrupted_run import CorruptedRun, make_config

INSIDE = pytest.mark.attack("a run with links, pipes or devices in it reads, writes and removes nothing outside")
SETTINGS = pytest.mark.attack("hostile config.json and manifest.json are one readable line each")


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """What is not the run's."""
    folder = tmp_path / "treasure"
    folder.mkdir()
    for name in ("000000000000-000000000005.segment", "state.json", "metrics.jsonl"):
        (folder / name).write_text("gold")
    return folder


def is_whole(treasure: Path) -> bool:
    return [path.read_text() for path in treasure.iterdir()] == ["gold"] * 3


@INSIDE
@pytest.mark.quality("X1")
@pytest.mark.parametrize("name", ["replay", "checkpoints", "videos", "tensorboard", "metrics.jsonl", "lock"])
def test_a_run_with_a_link_in_it_is_refused(victim: CorruptedRun, treasure: Path, name: str) -> None:
    path = victim.run_dir.path / name
    remove(path)
    path.symlink_to(treasure / name if (treasure / name).exists() else treasure)
    with pytest.raises(ValueError, match=f"{name} is neither a file nor a directory"):
        Runner(make_config(), victim.run_dir)
    assert is_whole(treasure)


@INSIDE
@pytest.mark.quality("X1")
@pytest.mark.parametrize("name", ["config.json", "manifest.json", "lock", "metrics.jsonl"])
def test_a_run_with_a_pipe_in_it_is_refused(victim: CorruptedRun, name: str) -> None:
    remove(victim.run_dir.path / name)
    os.mkfifo(victim.run_dir.path / name)
    with pytest.raises(ValueError, match=f"{name} is neither a file nor a directory"):
        Runner(make_config(), victim.run_dir)


@INSIDE
@pytest.mark.quality("X1")
def test_what_is_removed_is_a_link_and_never_what_it_leads_to(victim: CorruptedRun, treasure: Path) -> None:
    (victim.run_dir.checkpoints_dir / "000000099.unfinished").symlink_to(treasure)
    (victim.run_dir.checkpoints_dir / "000000001").symlink_to(treasure)
    (victim.run_dir.replay_dir / "000000000000-000000000009.segment").symlink_to(treasure / "state.json")
    deep = victim.run_dir.replay_dir / "000000000000-000000000008.segment"
    deep.mkdir()
    (deep / "in").symlink_to(treasure)
    victim.open_log().truncate(keep=())
    checkpoint.prune_checkpoints(victim.run_dir.checkpoints_dir, 1)
    assert is_whole(treasure)
    assert not list(victim.run_dir.replay_dir.iterdir())
    assert len(list(victim.run_dir.checkpoints_dir.iterdir())) == 1


@INSIDE
@pytest.mark.quality("X1")
def test_what_is_written_is_new_whatever_had_its_name(tmp_path: Path, treasure: Path) -> None:
    target = tmp_path / "file"
    beside = tmp_path / "file.unfinished"
    traps: list[Callable[[], None]] = [
        lambda: beside.symlink_to(treasure / "state.json"),
        lambda: beside.hardlink_to(treasure / "state.json"),
        lambda: os.mkfifo(beside),
        lambda: target.symlink_to(treasure / "state.json"),
    ]
    for trap in traps:
        target.unlink(missing_ok=True)
        trap()
        write_atomic(target, [b"ours"])
        assert target.read_bytes() == b"ours"
        assert not target.is_symlink()
    assert is_whole(treasure)


@INSIDE
@pytest.mark.quality("X1")
def test_a_run_is_not_set_aside_onto_a_link(victim: CorruptedRun, tmp_path: Path) -> None:
    tmp_path.joinpath("run.old1").symlink_to(tmp_path / "nowhere")
    assert victim.run_dir.move_aside() == tmp_path / "run.old2"


PLACES = ["videos/000000300.mp4", "checkpoints/000000045/state.json", "checkpoints/000000099", "tensorboard/events"]
PLACES += ["replay/000000000000-000000000009.segment", "replay/shard0/000000000000-000000000009.segment"]


@INSIDE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("place", PLACES)
def test_a_link_or_a_pipe_at_any_level_is_refused(victim: CorruptedRun, treasure: Path, place: str, kind: str) -> None:
    path = victim.run_dir.path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    if kind == "link":
        path.symlink_to(treasure / "state.json")
    else:
        os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{path.name} is neither a file nor a directory"):
        Runner(make_config(), victim.run_dir)
    assert is_whole(treasure)


def test_links_that_weights_and_biases_makes_are_none_of_ours(victim: CorruptedRun) -> None:
    (victim.run_dir.path / "wandb").mkdir()
    (victim.run_dir.path / "wandb" / "latest-run").symlink_to("run-1")
    victim.run_dir.check_no_links()


@INSIDE
@pytest.mark.quality("X5")
@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe"])
@pytest.mark.parametrize("name", ["clip.mp4", "clip.gif", "sheet.png"])
def test_a_picture_or_film_replaces_what_has_its_name(tmp_path: Path, treasure: Path, name: str, kind: str) -> None:
    pytest.importorskip("imageio_ffmpeg")
    path, frame = tmp_path / "videos" / name, np.zeros((16, 16, 3), np.uint8)
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        path.hardlink_to(treasure / "state.json")
    else:
        path.symlink_to(treasure / ("state.json" if kind == "link" else "nowhere"))
    if path.suffix == ".png":
        save_image(frame, path)
    else:
        write_video(path, [frame, frame])
    assert stat.S_ISREG(path.lstat().st_mode)
    assert path.stat().st_size
    assert list(path.parent.iterdir()) == [path]
    assert is_whole(treasure)


def test_a_film_that_a_kill_cut_off_goes_with_the_next_start(victim: CorruptedRun) -> None:
    left = victim.run_dir.videos_dir / ".abc.unfinished"
    left.mkdir(parents=True)
    (left / "000000000.mp4").touch()
    victim.run_dir.initialize(make_config(), victim.run_dir.read_manifest())
    assert not left.exists()


@INSIDE
@pytest.mark.quality("X5")
def test_a_lock_is_neither_a_link_nor_a_pipe(tmp_path: Path) -> None:
    lock, elsewhere = tmp_path / "lock", tmp_path / "elsewhere"
    lock.symlink_to(elsewhere)
    with pytest.raises(OSError, match="lock"):
        RunDir(tmp_path).lock()
    assert not elsewhere.exists()
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(OSError, match="lock"):
        RunDir(tmp_path).lock()


HOSTILE_CONFIGS: dict[str, Any] = {
    "a list": b"[1]",
    "nothing": b"",
    "not text": b"\xff\xff",
    "deep": b'{"a":' * 50_000,
    "large": b" " * (5 * 2**20),
    "a name twice": b'{"task": "a", "task": "b"}',
    "unknown": b'{"__class__": "os.system"}',
    "a number for a group": b'{"replay": 1e999}',
    "only a number": b'{"seed": ' + b"9" * 5000 + b"}",
    "no task": b"{}",
}


@SETTINGS
@pytest.mark.quality("X1")
@pytest.mark.parametrize("content", HOSTILE_CONFIGS.values(), ids=HOSTILE_CONFIGS.keys())
def test_a_hostile_file_of_settings_is_a_readable_error(tmp_path: Path, content: bytes) -> None:
    folder = RunDir(tmp_path)
    folder.config_file.write_bytes(content)
    with pytest.raises((ValueError, OSError), match=r"config\.json"):
        folder.read_config()


@SETTINGS
@pytest.mark.quality("X1")
@pytest.mark.parametrize("name", ["a list", "nothing", "not text", "deep", "large", "a name twice"])
def test_a_hostile_manifest_is_a_readable_error(tmp_path: Path, name: str) -> None:
    folder = RunDir(tmp_path)
    folder.manifest_file.write_bytes(HOSTILE_CONFIGS[name])
    with pytest.raises((ValueError, OSError), match=r"manifest\.json"):
        folder.read_manifest()


@pytest.mark.attack("no file in the working directory is executed but the user's own task")
@pytest.mark.quality("X1")
def test_a_run_does_not_choose_what_is_executed(
    victim: CorruptedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('EXECUTED').touch()\n")
    monkeypatch.chdir(tmp_path)
    text = victim.run_dir.config_file.read_text()
    victim.run_dir.config_file.write_text(text.replace("toy/hidden_goal_continuous", "evil:make"))
    assert main(["evaluate", str(victim.run_dir.path)]) == 2
    assert "--own-task evil:make" in capsys.readouterr().err
    assert not (tmp_path / "EXECUTED").exists()


@SETTINGS
@pytest.mark.quality("X1")
def test_the_command_refuses_without_a_traceback(victim: CorruptedRun, capsys: pytest.CaptureFixture[str]) -> None:
    victim.run_dir.config_file.write_bytes(b'{"a":' * 50_000)
    run = ["train", "toy/hidden_goal_continuous", "--preset", "minute", "--out", str(victim.run_dir.path)]
    assert main(run) == 2
    assert main(["evaluate", str(victim.run_dir.path)]) == 2
    assert capsys.readouterr().err.count("nested too deeply") == 2
