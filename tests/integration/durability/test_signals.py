"""SIGTERM and Ctrl-C: saved, gone within seconds, and the same command goes on."""

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


def started(folder: RunDir, launcher: Launcher, *settings: str, patches: str | None = None) -> ChildProcess:
    command = [*CASE.command(folder.path), *settings]
    return launcher.start(Request(command, output=f"{folder.path}.said", watched_dirs=[], patches=patches))


def ended_by(running: ChildProcess, number: signal.Signals) -> tuple[ExitResult, float]:
    asked_s = perf_counter()
    running.send(number)
    return running.wait(), perf_counter() - asked_s


def ended_by_its_own(patch: str, folder: RunDir, launcher: Launcher, figure: Figure) -> ExitResult:
    """A run that sends itself SIGTERM where the patch says."""
    began_s = perf_counter()
    ended = started(folder, launcher, patches=f"tests.support.patches:{patch}").wait()
    figure(perf_counter() - began_s, "s")
    return ended


def frames_of(folder: RunDir) -> int:
    there = folder.metrics_file.exists()
    return max((record["frames"] for record in read_records(folder.metrics_file)), default=0) if there else 0


def ended_in_training(folder: RunDir, launcher: Launcher, number: signal.Signals) -> tuple[ExitResult, float]:
    running = started(folder, launcher, patches="tests.support.patches:hold_until_stop")
    running.wait_for(lambda: frames_of(folder) > 40)
    return ended_by(running, number)


@pytest.mark.slow
@pytest.mark.attack("SIGTERM at any moment of a run saves it within 10 s, and the same command goes on bit for bit")
@pytest.mark.quality("D6")
def test_sigterm_in_training_saves_and_the_same_command_goes_on(
    tmp_path: Path, launcher: Launcher, figure: Figure
) -> None:
    whole = run_reference(CASE, tmp_path / "whole", launcher).run_dir
    folder = RunDir(tmp_path / "run")
    ended, seconds = ended_in_training(folder, launcher, signal.SIGTERM)
    figure(seconds, "s")
    assert ended.status == 0, ended.output
    assert "stopped" in ended.output
    (stop,) = folder.checkpoints_dir.glob("*.stop")
    ended = started(folder, launcher).wait()
    assert ended.status == 0, ended.output
    assert f"{int(stop.name[:9]):>9,} frames  resumed as if it had never stopped, bit for bit" in ended.output
    ends = [(run, checkpoint.list_checkpoints(run.checkpoints_dir)[0]) for run in (whole, folder)]
    assert compare_trees(*(load_comparable_state(newest)["tree"] for _, newest in ends)) == []
    assert compare_trees(read_replay(*ends[0]), read_replay(*ends[1])) == []


@pytest.mark.attack("SIGTERM at any moment of a run saves it within 10 s, and the same command goes on bit for bit")
@pytest.mark.quality("D6")
def test_sigterm_in_an_evaluation_does_not_wait_for_its_end(tmp_path: Path, launcher: Launcher, figure: Figure) -> None:
    folder = RunDir(tmp_path / "run")
    long_evaluation = ("--set", "evaluation.episodes=100000")
    for said in ("preset minute", "resumed as if it had never stopped"):
        running = started(folder, launcher, *long_evaluation)
        running.wait_for_output(said)
        ended, seconds = ended_by(running, signal.SIGTERM)
        figure(seconds, "s")
        assert ended.status == 0, ended.output
        assert [path.name for path in folder.checkpoints_dir.iterdir()] == ["000000000.stop"]
    assert [record["kind"] for record in read_records(folder.metrics_file)][-2:] == ["resume", "end"]


@pytest.mark.quality("D6")
def test_sigterm_before_the_first_step_is_an_end_like_any_other(
    tmp_path: Path, launcher: Launcher, figure: Figure
) -> None:
    folder = RunDir(tmp_path / "run")
    ended = ended_by_its_own("send_sigterm_before_first_step", folder, launcher, figure)
    assert (ended.status, ended.output) == (0, "")
    assert started(folder, launcher).wait().status == 0
    assert folder.is_finished


@pytest.mark.quality("D6")
def test_sigterm_at_the_first_record_is_a_stop_that_is_recorded(
    tmp_path: Path, launcher: Launcher, figure: Figure
) -> None:
    folder = RunDir(tmp_path / "run")
    ended = ended_by_its_own("send_sigterm_after_first_record", folder, launcher, figure)
    assert ended.status == 0, ended.output
    assert [record["kind"] for record in read_records(folder.metrics_file)] == ["start", "end"]
    assert [path.name for path in folder.checkpoints_dir.iterdir()] == ["000000000.stop"]


def test_control_c_saves_too_and_says_that_it_was_interrupted(tmp_path: Path, launcher: Launcher) -> None:
    folder = RunDir(tmp_path / "run")
    ended, _ = ended_in_training(folder, launcher, signal.SIGINT)
    assert ended.status == 130, ended.output
    assert "Traceback" not in ended.output
    assert list(folder.checkpoints_dir.glob("*.stop"))


def test_control_c_after_the_last_step_lets_it_finish(tmp_path: Path, launcher: Launcher) -> None:
    folder = RunDir(tmp_path / "run")
    ended = started(folder, launcher, patches="tests.support.patches:send_sigint_after_last_step").wait()
    assert ended.status == 0, ended.output
    assert list(read_records(folder.metrics_file))[-1]["state"] == "finished"
    assert folder.is_finished
