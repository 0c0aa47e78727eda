"""Closed, full or unread streams and unusable files give at most one line, never a traceback."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from manyview.cli.main import main
from manyview.training import RunDir
from tests.support.run_dirs import TASK, write_run_dir

STREAMS = pytest.mark.attack("a closed or full stdout or stderr, or a reader that leaves, never ends in a traceback")
FILES = pytest.mark.attack("a file or folder that a command cannot use is refused in one readable line")


def run_manyview(
    *arguments: str | Path,
    before_exec: Callable[[], object] | None = None,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
) -> tuple[int, str]:
    """Run the command and return its status and stderr."""
    command = [sys.executable, "-m", "manyview", *map(str, arguments)]
    result = subprocess.run(command, stdout=stdout, stderr=stderr, preexec_fn=before_exec, timeout=60)
    return result.returncode, (result.stderr or b"").decode()


def open_unread_pipe() -> int:
    """Return the write end of a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def close_descriptors(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """Return a directory with one run."""
    write_run_dir(tmp_path / "runs" / "a", [1.0])
    return tmp_path / "runs"


@STREAMS
@pytest.mark.quality("X5")
@pytest.mark.parametrize("arguments", [["runs", "."], ["runs", ".", "--json"], ["tasks"], ["--help"]], ids=" ".join)
def test_a_reader_that_has_left_is_no_error(
    arguments: list[str], runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs_dir)
    writer = open_unread_pipe()
    assert run_manyview(*arguments, stdout=writer) == (0, "")
    os.close(writer)


@STREAMS
@pytest.mark.quality("X5")
def test_an_error_that_nobody_reads_still_fails(tmp_path: Path) -> None:
    writer, full_device = open_unread_pipe(), os.open("/dev/full", os.O_WRONLY)
    assert run_manyview("runs", tmp_path / "none", stderr=writer)[0] == 1
    assert run_manyview("runs", tmp_path / "none", stderr=full_device)[0] == 1
    os.close(writer)
    os.close(full_device)


@STREAMS
@pytest.mark.quality("X5")
@pytest.mark.parametrize("closed", [[1], [2], [0, 1, 2]])
def test_closed_streams_are_no_error(closed: list[int], runs_dir: Path) -> None:
    assert run_manyview("runs", runs_dir, before_exec=partial(close_descriptors, *closed)) == (0, "")


@STREAMS
@pytest.mark.quality("X5")
def test_output_to_a_closed_stream_is_written_to_no_file(runs_dir: Path, tmp_path: Path) -> None:
    """The first file that is opened would get the number of the stream."""
    out = tmp_path / "curves.png"
    status, error = run_manyview("plot", runs_dir, "--out", out, before_exec=partial(close_descriptors, 0, 1, 2))
    assert (status, error) == (0, "")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert b"written to" not in out.read_bytes()


@STREAMS
@pytest.mark.quality("X5")
@pytest.mark.parametrize("arguments", [["runs", "."], ["runs", ".", "--json"], ["tasks"], ["--help"]], ids=" ".join)
def test_a_full_disk_behind_stdout_gives_one_line(
    arguments: list[str], runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs_dir)
    full_device = os.open("/dev/full", os.O_WRONLY)
    assert run_manyview(*arguments, stdout=full_device) == (1, "manyview: [Errno 28] No space left on device\n")
    os.close(full_device)


SWEEP = f'tasks = ["{TASK}"]\nmethods = ["drqv2+mem"]\n'


@FILES
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (SWEEP + "set = " + "[" * 100_000, "nested too deeply"),
        (SWEEP + "[set]\na" + ".a" * 50_000 + " = 1", "nested too deeply"),
        (SWEEP + "preset = 5", "invalid preset: expected a name, got 5"),
        (SWEEP + "out = 2020-01-01", "invalid out: expected a directory"),
        (SWEEP + "variants = 5", "invalid variants: expected a table of tables"),
        (SWEEP + "cpus = nan", "cpus must be a number"),
        (SWEEP + "cpus = inf", "cpus must be a number"),
        (SWEEP + "retries = true", "retries must be a number"),
        (SWEEP + "retries = 1.5", "retries must be a whole number"),
        (SWEEP + '[set]\n"agent.lr" = ' + "9" * 400, "agent.lr must be float"),
        (SWEEP + 'preset = "\\u001b[2J\\nfinished"', "unknown preset"),
        ("x" * 2_000_000, "expected at most 262,144 bytes, got 2,000,000"),
        ("\x00", "sweep.toml"),
    ],
    ids=lambda value: value[-30:] if len(value) > 30 else value,
)
def test_a_hostile_sweep_is_refused_in_a_line(
    content: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.toml").write_text(content)
    assert main(["sweep", str(tmp_path / "sweep.toml"), "--dry-run"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert reason in captured.err
    assert captured.err.endswith("\n")
    assert captured.err[:-1].isprintable()


@FILES
@pytest.mark.quality("X5")
def test_a_sweep_that_is_a_pipe_or_a_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        assert main(["sweep", str(path), "--dry-run"]) == 2
        assert "expected a file" in capsys.readouterr().err


@FILES
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    "out", ["folder", "folder.png", "file/curves.png", "readonly/curves.png", "a.xyz", "a.pgf", "x" * 300]
)
def test_a_path_that_no_plot_can_be_written_to_is_refused(
    out: str, runs_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs_dir)
    Path("folder").mkdir()
    Path("folder.png").mkdir()
    Path("file").touch()
    Path("readonly").symlink_to("/proc")
    assert main(["plot", "a", "--out", out]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1


@FILES
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("agent.lr=" + "9" * 400, "agent.lr must be float"),
        ("replay.batch_size=" + "[" * 100_000, "replay.batch_size must be int"),
        ("replay.batch_size=\x1b[2J\nfinished", "replay.batch_size must be int"),
    ],
    ids=["400 digits", "deep", "escapes"],
)
def test_an_invalid_setting_is_refused_in_a_line(
    override: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", TASK, "--preset", "minute", "--set", override]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error[:-1].isprintable()


@FILES
@pytest.mark.quality("X5")
def test_a_lock_that_cannot_be_taken_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / "folder" / "lock").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "lock")
    for name, reason in (("folder", "Is a directory"), ("pipe", "No such device or address")):
        with pytest.raises(OSError, match=rf"{name}/lock cannot be locked: {reason}\. Use a writable file"):
            RunDir(tmp_path / name).lock()
    monkeypatch.setattr(fcntl, "flock", raise_no_locks)
    with pytest.raises(OSError, match=r"nolocks/lock cannot be locked: No locks available"):
        RunDir(tmp_path / "nolocks").lock()
