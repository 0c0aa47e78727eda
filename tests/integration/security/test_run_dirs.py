"""A run directory with links, pipes or devices: nothing outside of it is read, written or removed."""

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

LINKS_AND_PIPES = pytest.mark.attack(
    "a run with links, pipes or devices in it reads, writes and removes nothing outside"
)
HOSTILE_SETTINGS = pytest.mark.attack("hostile config.json and manifest.json are one readable line each")


@pytest.fixture
def outside_dir(tmp_path: Path) -> Path:
    """Return a directory outside the run, with three files."""
    directory = tmp_path / "treasure"
    directory.mkdir()
    for name in ("000000000000-000000000005.segment", "state.json", "metrics.jsonl"):
        (directory / name).write_text("gold")
    return directory


def is_unchanged(outside_dir: Path) -> bool:
    """Return whether the files outside the run are unchanged."""
    return [path.read_text() for path in outside_dir.iterdir()] == ["gold"] * 3


@LINKS_AND_PIPES
@pytest.mark.quality("X1")
@pytest.mark.parametrize("name", ["replay", "checkpoints", "videos", "tensorboard", "metrics.jsonl", "lock"])
def test_a_run_with_a_link_in_it_is_refused(corrupted_run: CorruptedRun, outside_dir: Path, name: str) -> None:
    path = corrupted_run.run_dir.path / name
    remove(path)
    path.symlink_to(outside_dir / name if (outside_dir / name).exists() else outside_dir)
    with pytest.raises(ValueError, match=f"{name} is neither a file nor a directory"):
        Runner(make_config(), corrupted_run.run_dir)
    assert is_unchanged(outside_dir)


@LINKS_AND_PIPES
@pytest.mark.quality("X1")
@pytest.mark.parametrize("name", ["config.json", "manifest.json", "lock", "metrics.jsonl"])
def test_a_run_with_a_pipe_in_it_is_refused(corrupted_run: CorruptedRun, name: str) -> None:
    remove(corrupted_run.run_dir.path / name)
    os.mkfifo(corrupted_run.run_dir.path / name)
    with pytest.raises(ValueError, match=f"{name} is neither a file nor a directory"):
        Runner(make_config(), corrupted_run.run_dir)


@LINKS_AND_PIPES
@pytest.mark.quality("X1")
def test_links_are_removed_and_never_their_targets(corrupted_run: CorruptedRun, outside_dir: Path) -> None:
    (corrupted_run.run_dir.checkpoints_dir / "000000099.unfinished").symlink_to(outside_dir)
    (corrupted_run.run_dir.checkpoints_dir / "000000001").symlink_to(outside_dir)
    (corrupted_run.run_dir.replay_dir / "000000000000-000000000009.segment").symlink_to(outside_dir / "state.json")
    directory = corrupted_run.run_dir.replay_dir / "000000000000-000000000008.segment"
    directory.mkdir()
    (directory / "in").symlink_to(outside_dir)
    corrupted_run.open_log().truncate(keep=())
    checkpoint.prune_checkpoints(corrupted_run.run_dir.checkpoints_dir, 1)
    assert is_unchanged(outside_dir)
    assert not list(corrupted_run.run_dir.replay_dir.iterdir())
    assert len(list(corrupted_run.run_dir.checkpoints_dir.iterdir())) == 1


@LINKS_AND_PIPES
@pytest.mark.quality("X1")
def test_a_new_file_replaces_links_and_pipes_of_its_name(tmp_path: Path, outside_dir: Path) -> None:
    target = tmp_path / "file"
    unfinished = tmp_path / "file.unfinished"
    attacks: list[Callable[[], None]] = [
        lambda: unfinished.symlink_to(outside_dir / "state.json"),
        lambda: unfinished.hardlink_to(outside_dir / "state.json"),
        lambda: os.mkfifo(unfinished),
        lambda: target.symlink_to(outside_dir / "state.json"),
    ]
    for attack in attacks:
        target.unlink(missing_ok=True)
        attack()
        write_atomic(target, [b"ours"])
        assert target.read_bytes() == b"ours"
        assert not target.is_symlink()
    assert is_unchanged(outside_dir)


@LINKS_AND_PIPES
@pytest.mark.quality("X1")
def test_a_run_is_not_set_aside_onto_a_link(corrupted_run: CorruptedRun, tmp_path: Path) -> None:
    tmp_path.joinpath("run.old1").symlink_to(tmp_path / "nowhere")
    assert corrupted_run.run_dir.move_aside() == tmp_path / "run.old2"


RELATIVE_PATHS = [
    "videos/000000300.mp4",
    "checkpoints/000000045/state.json",
    "checkpoints/000000099",
    "tensorboard/events",
]
RELATIVE_PATHS += ["replay/000000000000-000000000009.segment", "replay/shard0/000000000000-000000000009.segment"]


@LINKS_AND_PIPES
@pytest.mark.quality("X5")
@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("relative_path", RELATIVE_PATHS)
def test_a_link_or_a_pipe_at_any_level_is_refused(
    corrupted_run: CorruptedRun, outside_dir: Path, relative_path: str, kind: str
) -> None:
    path = corrupted_run.run_dir.path / relative_path
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    if kind == "link":
        path.symlink_to(outside_dir / "state.json")
    else:
        os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{path.name} is neither a file nor a directory"):
        Runner(make_config(), corrupted_run.run_dir)
    assert is_unchanged(outside_dir)


def test_links_of_weights_and_biases_are_allowed(corrupted_run: CorruptedRun) -> None:
    (corrupted_run.run_dir.path / "wandb").mkdir()
    (corrupted_run.run_dir.path / "wandb" / "latest-run").symlink_to("run-1")
    corrupted_run.run_dir.check_no_links()


@LINKS_AND_PIPES
@pytest.mark.quality("X5")
@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe"])
@pytest.mark.parametrize("name", ["clip.mp4", "clip.gif", "sheet.png"])
def test_an_image_or_video_replaces_links_and_pipes_of_its_name(
    tmp_path: Path, outside_dir: Path, name: str, kind: str
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    path, frame = tmp_path / "videos" / name, np.zeros((16, 16, 3), np.uint8)
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        path.hardlink_to(outside_dir / "state.json")
    else:
        path.symlink_to(outside_dir / ("state.json" if kind == "link" else "nowhere"))
    if path.suffix == ".png":
        save_image(frame, path)
    else:
        write_video(path, [frame, frame])
    assert stat.S_ISREG(path.lstat().st_mode)
    assert path.stat().st_size
    assert list(path.parent.iterdir()) == [path]
    assert is_unchanged(outside_dir)


def test_an_unfinished_video_is_removed_at_the_next_start(corrupted_run: CorruptedRun) -> None:
    unfinished_dir = corrupted_run.run_dir.videos_dir / ".abc.unfinished"
    unfinished_dir.mkdir(parents=True)
    (unfinished_dir / "000000000.mp4").touch()
    corrupted_run.run_dir.initialize(make_config(), corrupted_run.run_dir.read_manifest())
    assert not unfinished_dir.exists()


@LINKS_AND_PIPES
@pytest.mark.quality("X5")
def test_a_lock_is_neither_a_link_nor_a_pipe(tmp_path: Path) -> None:
    lock, link_target = tmp_path / "lock", tmp_path / "elsewhere"
    lock.symlink_to(link_target)
    with pytest.raises(OSError, match="lock"):
        RunDir(tmp_path).lock()
    assert not link_target.exists()
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


@HOSTILE_SETTINGS
@pytest.mark.quality("X1")
@pytest.mark.parametrize("content", HOSTILE_CONFIGS.values(), ids=HOSTILE_CONFIGS.keys())
def test_a_hostile_file_of_settings_is_a_readable_error(tmp_path: Path, content: bytes) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.config_file.write_bytes(content)
    with pytest.raises((ValueError, OSError), match=r"config\.json"):
        run_dir.read_config()


@HOSTILE_SETTINGS
@pytest.mark.quality("X1")
@pytest.mark.parametrize("name", ["a list", "nothing", "not text", "deep", "large", "a name twice"])
def test_a_hostile_manifest_is_a_readable_error(tmp_path: Path, name: str) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.manifest_file.write_bytes(HOSTILE_CONFIGS[name])
    with pytest.raises((ValueError, OSError), match=r"manifest\.json"):
        run_dir.read_manifest()


@pytest.mark.attack("no file in the working directory is executed but the user's own task")
@pytest.mark.quality("X1")
def test_a_run_does_not_choose_what_is_executed(
    corrupted_run: CorruptedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('EXECUTED').touch()\n")
    monkeypatch.chdir(tmp_path)
    text = corrupted_run.run_dir.config_file.read_text()
    corrupted_run.run_dir.config_file.write_text(text.replace("toy/hidden_goal_continuous", "evil:make"))
    assert main(["evaluate", str(corrupted_run.run_dir.path)]) == 2
    assert "--own-task evil:make" in capsys.readouterr().err
    assert not (tmp_path / "EXECUTED").exists()


@HOSTILE_SETTINGS
@pytest.mark.quality("X1")
def test_the_command_refuses_without_a_traceback(
    corrupted_run: CorruptedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    corrupted_run.run_dir.config_file.write_bytes(b'{"a":' * 50_000)
    arguments = ["train", "toy/hidden_goal_continuous", "--preset", "minute", "--out", str(corrupted_run.run_dir.path)]
    assert main(arguments) == 2
    assert main(["evaluate", str(corrupted_run.run_dir.path)]) == 2
    assert capsys.readouterr().err.count("nested too deeply") == 2
