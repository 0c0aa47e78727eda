"""Streams that are closed, full or read by nobody, and files that no command can use: a line, never a traceback."""

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


def run(
    *arguments: str | Path,
    before: Callable[[], object] | None = None,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
) -> tuple[int, str]:
    """Run the command; its status and what it said to stderr."""
    command = [sys.executable, "-m", "manyview", *map(str, arguments)]
    shown = subprocess.run(command, stdout=stdout, stderr=stderr, preexec_fn=before, timeout=60)
    return shown.returncode, (shown.stderr or b"").decode()


def left_pipe() -> int:
    """Return the end to write to of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def close(*numbers: int) -> None:
    for number in numbers:
        os.close(number)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run_dir(tmp_path / "runs" / "a", [1.0])
    return tmp_path / "runs"


@STREAMS
@pytest.mark.quality("X5")
@pytest.mark.parametrize("arguments", [["runs", "."], ["runs", ".", "--json"], ["tasks"], ["--help"]], ids=" ".join)
def test_a_reader_that_has_left_is_no_error(arguments: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    writer = left_pipe()
    assert run(*arguments, stdout=writer) == (0, "")
    os.close(writer)


@STREAMS
@pytest.mark.quality("X5")
def test_a_refusal_that_nobody_reads_still_fails(tmp_path: Path) -> None:
    writer, full = left_pipe(), os.open("/dev/full", os.O_WRONLY)
    assert run("runs", tmp_path / "none", stderr=writer)[0] == 1
    assert run("runs", tmp_path / "none", stderr=full)[0] == 1
    os.close(writer)
    os.close(full)


@STREAMS
@pytest.mark.quality("X5")
@pytest.mark.parametrize("closed", [[1], [2], [0, 1, 2]])
def test_closed_streams_are_no_error(closed: list[int], runs: Path) -> None:
    assert run("runs", runs, before=partial(close, *closed)) == (0, "")


@STREAMS
@pytest.mark.quality("X5")
def test_what_is_printed_to_a_closed_stream_gets_into_no_file(runs: Path, tmp_path: Path) -> None:
    """The first file that is opened would have its number."""
    out = tmp_path / "curves.png"
    status, said = run("plot", runs, "--out", out, before=partial(close, 0, 1, 2))
    assert (status, said) == (0, "")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert b"written to" not in out.read_bytes()


@STREAMS
@pytest.mark.quality("X5")
@pytest.mark.parametrize("arguments", [["runs", "."], ["runs", ".", "--json"], ["tasks"], ["--help"]], ids=" ".join)
def test_a_full_disk_behind_stdout_is_a_line(arguments: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    full = os.open("/dev/full", os.O_WRONLY)
    assert run(*arguments, stdout=full) == (1, "manyview: [Errno 28] No space left on device\n")
    os.close(full)


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
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err
    assert shown.err.endswith("\n")
    assert shown.err[:-1].isprintable()


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
def test_a_place_that_no_plot_can_be_written_to_is_refused(
    out: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    Path("folder").mkdir()
    Path("folder.png").mkdir()
    Path("file").touch()
    Path("readonly").symlink_to("/proc")
    assert main(["plot", "a", "--out", out]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1


@FILES
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    ("set_", "reason"),
    [
        ("agent.lr=" + "9" * 400, "agent.lr must be float"),
        ("replay.batch_size=" + "[" * 100_000, "replay.batch_size must be int"),
        ("replay.batch_size=\x1b[2J\nfinished", "replay.batch_size must be int"),
    ],
    ids=["400 digits", "deep", "escapes"],
)
def test_a_setting_that_is_nonsense_is_refused_in_a_line(
    set_: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", TASK, "--preset", "minute", "--set", set_]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said[:-1].isprintable()


@FILES
@pytest.mark.quality("X5")
def test_a_lock_that_cannot_be_taken_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / "folder" / "lock").mkdir(parents=True)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "lock")
    for name, reason in (("folder", "Is a directory"), ("pipe", "No such device or address")):
        with pytest.raises(OSError, match=rf"{name}/lock cannot be locked: {reason}\. Use a writable file"):
            RunDir(tmp_path / name).lock()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match=r"nolocks/lock cannot be locked: No locks available"):
        RunDir(tmp_path / "nolocks").lock()
