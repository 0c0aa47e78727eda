"""SIGTERM and Ctrl-C save the run within seconds, and the same command resumes it."""

import signal
from pathlib import Path
from time import perf_counter

import pytest

from benchmarks.kills import CASES, run_reference
from benchmarks.launcher import ChildProcess, ExitResult, Launcher, Request
from benchmarks.run_comparison import compare_trees, load_comparable_state, read_replay
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, checkpoint
from quality.plugin import Figure

CASE = CASES[0]

pytestmark = pytest.mark.xdist_group("processes")


def start_run(run_dir: RunDir, launcher: Launcher, *settings: str, patches: str | None = None) -> ChildProcess:
    command = [*CASE.command(run_dir.path), *settings]
    return launcher.start(Request(command, output=f"{run_dir.path}.said", watched_dirs=[], patches=patches))


def stop_by_signal(child: ChildProcess, number: signal.Signals) -> tuple[ExitResult, float]:
    """Send a signal; return the result and the seconds to the exit."""
    signal_s = perf_counter()
    child.send(number)
    return child.wait(), perf_counter() - signal_s


def run_with_patch(patch: str, run_dir: RunDir, launcher: Launcher, figure: Figure) -> ExitResult:
    """Run with a patch that sends SIGTERM to its own process."""
    start_s = perf_counter()
    result = start_run(run_dir, launcher, patches=f"tests.support.patches:{patch}").wait()
    figure(perf_counter() - start_s, "s")
    return result


def read_frames(run_dir: RunDir) -> int:
    """Return the frames of the newest record, 0 without records."""
    exists = run_dir.metrics_file.exists()
    return max((record["frames"] for record in read_records(run_dir.metrics_file)), default=0) if exists else 0


def stop_in_training(run_dir: RunDir, launcher: Launcher, number: signal.Signals) -> tuple[ExitResult, float]:
    """Start a run and send a signal during training; see `stop_by_signal`."""
    child = start_run(run_dir, launcher, patches="tests.support.patches:hold_until_stop")
    child.wait_for(lambda: read_frames(run_dir) > 40)
    return stop_by_signal(child, number)


@pytest.mark.slow
@pytest.mark.attack("SIGTERM at any moment of a run saves it within 10 s, and the same command goes on bit for bit")
@pytest.mark.quality("D6")
def test_sigterm_in_training_saves_and_the_same_command_goes_on(
    tmp_path: Path, launcher: Launcher, figure: Figure
) -> None:
    reference = run_reference(CASE, tmp_path / "whole", launcher).run_dir
    run_dir = RunDir(tmp_path / "run")
    result, seconds = stop_in_training(run_dir, launcher, signal.SIGTERM)
    figure(seconds, "s")
    assert result.status == 0, result.output
    assert "stopped" in result.output
    (stop,) = run_dir.checkpoints_dir.glob("*.stop")
    result = start_run(run_dir, launcher).wait()
    assert result.status == 0, result.output
    assert f"{int(stop.name[:9]):>9,} frames  resumed as if it had never stopped, bit for bit" in result.output
    checkpoints = [(run, checkpoint.list_checkpoints(run.checkpoints_dir)[0]) for run in (reference, run_dir)]
    assert compare_trees(*(load_comparable_state(newest)["tree"] for _, newest in checkpoints)) == []
    assert compare_trees(read_replay(*checkpoints[0]), read_replay(*checkpoints[1])) == []


@pytest.mark.attack("SIGTERM at any moment of a run saves it within 10 s, and the same command goes on bit for bit")
@pytest.mark.quality("D6")
def test_sigterm_in_an_evaluation_does_not_wait_for_its_end(tmp_path: Path, launcher: Launcher, figure: Figure) -> None:
    run_dir = RunDir(tmp_path / "run")
    long_evaluation = ("--set", "evaluation.episodes=100000")
    for text in ("preset minute", "resumed as if it had never stopped"):
        child = start_run(run_dir, launcher, *long_evaluation)
        child.wait_for_output(text)
        result, seconds = stop_by_signal(child, signal.SIGTERM)
        figure(seconds, "s")
        assert result.status == 0, result.output
        assert [path.name for path in run_dir.checkpoints_dir.iterdir()] == ["000000000.stop"]
    assert [record["kind"] for record in read_records(run_dir.metrics_file)][-2:] == ["resume", "end"]


@pytest.mark.quality("D6")
def test_sigterm_before_the_first_step_exits_with_status_0(tmp_path: Path, launcher: Launcher, figure: Figure) -> None:
    run_dir = RunDir(tmp_path / "run")
    result = run_with_patch("send_sigterm_before_first_step", run_dir, launcher, figure)
    assert (result.status, result.output) == (0, "")
    assert start_run(run_dir, launcher).wait().status == 0
    assert run_dir.is_finished


@pytest.mark.quality("D6")
def test_sigterm_at_the_first_record_is_recorded(tmp_path: Path, launcher: Launcher, figure: Figure) -> None:
    run_dir = RunDir(tmp_path / "run")
    result = run_with_patch("send_sigterm_after_first_record", run_dir, launcher, figure)
    assert result.status == 0, result.output
    assert [record["kind"] for record in read_records(run_dir.metrics_file)] == ["start", "end"]
    assert [path.name for path in run_dir.checkpoints_dir.iterdir()] == ["000000000.stop"]


def test_control_c_saves_and_exits_with_status_130(tmp_path: Path, launcher: Launcher) -> None:
    run_dir = RunDir(tmp_path / "run")
    result, _ = stop_in_training(run_dir, launcher, signal.SIGINT)
    assert result.status == 130, result.output
    assert "Traceback" not in result.output
    assert list(run_dir.checkpoints_dir.glob("*.stop"))


def test_control_c_after_the_last_step_lets_the_run_finish(tmp_path: Path, launcher: Launcher) -> None:
    run_dir = RunDir(tmp_path / "run")
    result = start_run(run_dir, launcher, patches="tests.support.patches:send_sigint_after_last_step").wait()
    assert result.status == 0, result.output
    assert list(read_records(run_dir.metrics_file))[-1]["state"] == "finished"
    assert run_dir.is_finished
