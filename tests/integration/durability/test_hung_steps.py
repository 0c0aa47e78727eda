"""Calls of an environment that do not return: SIGTERM ends the run all the same, and the same command goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import perf_counter, sleep

import pytest

from benchmarks.kills import Case
from benchmarks.launcher import ChildProcess, ExitResult, Launcher, Request
from benchmarks.run_comparison import compare_runs
from manyview.report.metrics_file import read_records
from manyview.training import RunDir
from quality.plugin import Figure

pytestmark = pytest.mark.xdist_group("processes")

HUNG = "SIGTERM ends a run whose environment hangs within 10 s; its records are kept and it goes on bit for bit"
DEADLINE = "a step that takes longer than env.step_deadline_s ends the run with a line that names it"
IMPATIENT = "tests.support.patches:shorten_stop_timeouts"
TOY = "toy/hidden_goal_continuous"


def started(
    folder: RunDir, launcher: Launcher, case: Case, *settings: str, patches: str | None = IMPATIENT, toy: str = TOY
) -> ChildProcess:
    variables = {"HANG": str(folder.path.parent / "hang"), "TOY": toy}
    command, said = [*case.command(folder.path), *settings], f"{folder.path}.said"
    return launcher.start(Request(command, output=said, watched_dirs=[], patches=patches, environment=variables))


def of(task: str, method: str = "drqv2+mem") -> Case:
    return Case(f"tests.support.misbehaving_envs:{task}", method)


def ended_by_sigterm(running: ChildProcess, seen: Path) -> tuple[ExitResult, float]:
    """SIGTERM, once this file is there."""
    running.wait_for(seen.exists)
    sleep(0.5)  # from the file to the call that hangs
    asked_s = perf_counter()
    running.send(signal.SIGTERM)
    return running.wait(at_most_s=30), perf_counter() - asked_s


@pytest.fixture
def hang(tmp_path: Path) -> Path:
    (tmp_path / "hang").touch()
    return tmp_path / "hang"


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
def test_sigterm_ends_a_run_that_hangs_in_c_code_and_it_goes_on_bit_for_bit(
    folder: RunDir, hang: Path, launcher: Launcher, figure: Figure
) -> None:
    running = started(folder, launcher, of("make_env_hanging_in_c"), patches=None)  # with the patience that users have
    ended, seconds = ended_by_sigterm(running, hang.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert ended.status == 1, ended.output
    line = ended.output.splitlines()[-1]
    assert line.startswith("tests.support.misbehaving_envs:make_env_hanging_in_c: env.step has not returned for ")
    assert line.endswith("the same command resumes from checkpoint 000000045")
    assert "Traceback" not in ended.output
    last = list(read_records(folder.metrics_file))[-1]
    assert (last["kind"], last["state"], last["frames"]) == ("end", "stopped", 50)
    assert "in _hang_in_c" in last["traceback"]

    hang.unlink()
    ended = started(folder, launcher, of("make_env_hanging_in_c")).wait()
    assert "45 frames  resumed as if it had never stopped, bit for bit" in ended.output
    whole = RunDir(folder.path.with_name("whole"))
    assert started(whole, launcher, of("make_env_hanging_in_c")).wait().status == 0
    assert compare_runs(whole, folder) == []


@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
@pytest.mark.parametrize(
    ("method", "toy"), [("drqv2+mem", TOY), pytest.param("ppo+mem", "toy/hidden_goal", marks=pytest.mark.slow)]
)
def test_sigterm_ends_a_run_that_hangs_in_python_code(
    method: str, toy: str, folder: RunDir, hang: Path, launcher: Launcher, figure: Figure
) -> None:
    assert hang.exists()
    running = started(folder, launcher, of("make_env_hanging_in_sleep", method), "rollout.envs=2", toy=toy)
    ended, seconds = ended_by_sigterm(running, hang.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert (ended.status, "env.step has not returned for" in ended.output) == (1, True), ended.output


@pytest.mark.slow
@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
def test_sigterm_ends_an_evaluation_that_hangs(folder: RunDir, hang: Path, launcher: Launcher, figure: Figure) -> None:
    running = started(folder, launcher, of("make_env_hanging_from_start"))
    ended, seconds = ended_by_sigterm(running, hang.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert ended.status == 1
    assert ended.output.splitlines()[-1].endswith("the same command resumes from the start")


@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
def test_sigterm_ends_a_step_that_lets_no_other_thread_run(
    folder: RunDir, hang: Path, launcher: Launcher, figure: Figure
) -> None:
    assert hang.exists()
    running = started(folder, launcher, of("make_env_holding_gil"))
    ended, seconds = ended_by_sigterm(running, hang.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert ended.status == 1
    assert "in _hold_gil" in ended.output  # where it hung


@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
def test_sigterm_ends_a_run_that_hangs_before_it_has_begun(
    folder: RunDir, hang: Path, launcher: Launcher, figure: Figure
) -> None:
    assert hang.exists()
    running = started(folder, launcher, of("HangingResetEnv"), patches=IMPATIENT)
    ended, seconds = ended_by_sigterm(running, hang.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert ended.status == 1
    assert not folder.has_run


@pytest.mark.slow
@pytest.mark.attack(HUNG)
@pytest.mark.quality("L8")
def test_a_run_that_is_saved_and_whose_environment_does_not_close_has_stopped_well(
    folder: RunDir, hang: Path, launcher: Launcher, figure: Figure
) -> None:
    assert hang.exists()
    running = started(
        folder, launcher, of("HangingCloseEnv"), patches="tests.support.patches:shorten_timeouts_and_hold"
    )
    ended, seconds = ended_by_sigterm(running, folder.checkpoints_dir / "000000060")
    figure(seconds, "s from SIGTERM")
    assert ended.status == 0, ended.output
    assert list(folder.checkpoints_dir.glob("*.stop"))


@pytest.mark.attack(DEADLINE)
@pytest.mark.quality("L8")
@pytest.mark.parametrize(
    "task", ["make_env_hanging_in_c", pytest.param("make_env_holding_gil_without_signals", marks=pytest.mark.slow)]
)
def test_a_deadline_for_steps_ends_a_run_that_hangs(task: str, folder: RunDir, hang: Path, launcher: Launcher) -> None:
    assert hang.exists()
    ended = started(folder, launcher, of(task), "env.step_deadline_s=1").wait(at_most_s=30)
    assert ended.status == 1
    if task == "make_env_hanging_in_c":
        assert "env.step has not returned for 1 s" in ended.output.splitlines()[-1]
        assert list(read_records(folder.metrics_file))[-1]["state"] == "failed"
    else:  # only a timer in C still runs
        assert "in _hold_gil_without_signals" in ended.output


@pytest.mark.quality("D6")
def test_a_hangup_saves_and_leaves(folder: RunDir, launcher: Launcher, figure: Figure) -> None:
    running = started(
        folder, launcher, of("make_env_hanging_in_sleep"), patches="tests.support.patches:shorten_timeouts_and_hold"
    )
    running.wait_for((folder.checkpoints_dir / "000000060").exists)
    asked_s = perf_counter()
    running.send(signal.SIGHUP)
    ended = running.wait(at_most_s=30)
    figure(perf_counter() - asked_s, "s")
    assert ended.status == 0, ended.output
    assert list(folder.checkpoints_dir.glob("*.stop"))


@pytest.mark.attack("a run that is started by nohup goes on through SIGHUP, and SIGTERM saves it")
@pytest.mark.quality("D6")
def test_a_hangup_that_was_ignored_at_the_start_stays_ignored(
    folder: RunDir, launcher: Launcher, figure: Figure
) -> None:
    running = started(folder, launcher, of("make_env_hanging_in_sleep"), patches="tests.support.patches:ignore_sighup")
    running.wait_for((folder.checkpoints_dir / "000000060").exists)
    running.send(signal.SIGHUP)
    running.wait_for((folder.checkpoints_dir / "000000090").exists)
    ended, seconds = ended_by_sigterm(running, folder.checkpoints_dir)
    figure(seconds, "s")
    assert ended.status == 0, ended.output
    (stop,) = folder.checkpoints_dir.glob("*.stop")
    assert stop.name > "000000090"


@pytest.mark.long
@pytest.mark.attack("a run that is started by nohup goes on through SIGHUP, and SIGTERM saves it")
@pytest.mark.quality("D6")
def test_the_real_nohup_is_heeded(folder: RunDir, figure: Figure, tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    command = ["nohup", sys.executable, "held.py", *of("make_env_hanging_in_sleep").command(folder.path)]
    variables = {**os.environ, "HANG": str(tmp_path / "hang"), "PYTHONPATH": str(Path(__file__).parents[3])}
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said, env=variables)
    try:
        running = ChildProcess(process.pid, tmp_path / "said", lambda at_most_s: process.wait(timeout=at_most_s))
        running.wait_for((folder.checkpoints_dir / "000000060").exists, at_most_s=120)
        running.send(signal.SIGHUP)
        running.wait_for((folder.checkpoints_dir / "000000090").exists)
        ended, seconds = ended_by_sigterm(running, folder.checkpoints_dir)
    finally:
        process.kill()
        process.wait(timeout=30)
    figure(seconds, "s")
    assert ended.status == 0, ended.output
    (stop,) = folder.checkpoints_dir.glob("*.stop")
    assert stop.name > "000000090"


HELD = """
import sys
from manyview.cli.main import main
from tests.support.patches import hold_until_stop
hold_until_stop()
sys.exit(main())
"""
