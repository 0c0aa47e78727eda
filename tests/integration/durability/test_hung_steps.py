"""SIGTERM ends a run whose environment hangs, and the same command resumes it."""

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

HANGING_ENV = "SIGTERM ends a run whose environment hangs within 10 s; its records are kept and it goes on bit for bit"
STEP_DEADLINE = "a step that takes longer than env.step_deadline_s ends the run with a line that names it"
SHORT_TIMEOUTS = "tests.support.patches:shorten_stop_timeouts"
TOY_TASK = "toy/hidden_goal_continuous"


def start_run(
    run_dir: RunDir,
    launcher: Launcher,
    case: Case,
    *settings: str,
    patches: str | None = SHORT_TIMEOUTS,
    toy: str = TOY_TASK,
) -> ChildProcess:
    variables = {"HANG": str(run_dir.path.parent / "hang"), "TOY": toy}
    command, output = [*case.command(run_dir.path), *settings], f"{run_dir.path}.said"
    return launcher.start(Request(command, output=output, watched_dirs=[], patches=patches, environment=variables))


def make_case(task: str, method: str = "drqv2+mem") -> Case:
    """Return the case of a task in `misbehaving_envs`."""
    return Case(f"tests.support.misbehaving_envs:{task}", method)


def stop_by_sigterm(child: ChildProcess, ready_file: Path) -> tuple[ExitResult, float]:
    """Send SIGTERM once a file exists; return the result and the seconds to the exit."""
    child.wait_for(ready_file.exists)
    sleep(0.5)  # the call hangs shortly after the file appears
    signal_s = perf_counter()
    child.send(signal.SIGTERM)
    return child.wait(at_most_s=30), perf_counter() - signal_s


@pytest.fixture
def hang_file(tmp_path: Path) -> Path:
    """Return the file whose existence makes environments hang."""
    (tmp_path / "hang").touch()
    return tmp_path / "hang"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.attack(HANGING_ENV)
@pytest.mark.quality("L8")
def test_sigterm_ends_a_run_that_hangs_in_c_code_and_it_goes_on_bit_for_bit(
    run_dir: RunDir, hang_file: Path, launcher: Launcher, figure: Figure
) -> None:
    child = start_run(run_dir, launcher, make_case("make_env_hanging_in_c"), patches=None)  # with the default timeouts
    result, seconds = stop_by_sigterm(child, hang_file.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert result.status == 1, result.output
    line = result.output.splitlines()[-1]
    assert line.startswith("tests.support.misbehaving_envs:make_env_hanging_in_c: env.step has not returned for ")
    assert line.endswith("the same command resumes from checkpoint 000000045")
    assert "Traceback" not in result.output
    end_record = list(read_records(run_dir.metrics_file))[-1]
    assert (end_record["kind"], end_record["state"], end_record["frames"]) == ("end", "stopped", 50)
    assert "in _hang_in_c" in end_record["traceback"]

    hang_file.unlink()
    result = start_run(run_dir, launcher, make_case("make_env_hanging_in_c")).wait()
    assert "45 frames  resumed as if it had never stopped, bit for bit" in result.output
    reference = RunDir(run_dir.path.with_name("whole"))
    assert start_run(reference, launcher, make_case("make_env_hanging_in_c")).wait().status == 0
    assert compare_runs(reference, run_dir) == []


@pytest.mark.attack(HANGING_ENV)
@pytest.mark.quality("L8")
@pytest.mark.parametrize(
    ("method", "toy"), [("drqv2+mem", TOY_TASK), pytest.param("ppo+mem", "toy/hidden_goal", marks=pytest.mark.slow)]
)
def test_sigterm_ends_a_run_that_hangs_in_python_code(
    method: str, toy: str, run_dir: RunDir, hang_file: Path, launcher: Launcher, figure: Figure
) -> None:
    assert hang_file.exists()
    child = start_run(run_dir, launcher, make_case("make_env_hanging_in_sleep", method), "rollout.envs=2", toy=toy)
    result, seconds = stop_by_sigterm(child, hang_file.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert (result.status, "env.step has not returned for" in result.output) == (1, True), result.output


@pytest.mark.slow
@pytest.mark.attack(HANGING_ENV)
@pytest.mark.quality("L8")
def test_sigterm_ends_an_evaluation_that_hangs(
    run_dir: RunDir, hang_file: Path, launcher: Launcher, figure: Figure
) -> None:
    child = start_run(run_dir, launcher, make_case("make_env_hanging_from_start"))
    result, seconds = stop_by_sigterm(child, hang_file.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert result.status == 1
    assert result.output.splitlines()[-1].endswith("the same command resumes from the start")


@pytest.mark.attack(HANGING_ENV)
@pytest.mark.quality("L8")
def test_sigterm_ends_a_step_that_lets_no_other_thread_run(
    run_dir: RunDir, hang_file: Path, launcher: Launcher, figure: Figure
) -> None:
    assert hang_file.exists()
    child = start_run(run_dir, launcher, make_case("make_env_holding_gil"))
    result, seconds = stop_by_sigterm(child, hang_file.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert result.status == 1
    assert "in _hold_gil" in result.output  # the traceback names the hanging call


@pytest.mark.attack(HANGING_ENV)
@pytest.mark.quality("L8")
def test_sigterm_ends_a_run_that_hangs_before_it_has_begun(
    run_dir: RunDir, hang_file: Path, launcher: Launcher, figure: Figure
) -> None:
    assert hang_file.exists()
    child = start_run(run_dir, launcher, make_case("HangingResetEnv"), patches=SHORT_TIMEOUTS)
    result, seconds = stop_by_sigterm(child, hang_file.with_name("begun"))
    figure(seconds, "s from SIGTERM")
    assert result.status == 1
    assert not run_dir.has_run


@pytest.mark.slow
@pytest.mark.attack(HANGING_ENV)
@pytest.mark.quality("L8")
def test_a_saved_run_whose_environment_hangs_in_close_exits_with_status_0(
    run_dir: RunDir, hang_file: Path, launcher: Launcher, figure: Figure
) -> None:
    assert hang_file.exists()
    child = start_run(
        run_dir, launcher, make_case("HangingCloseEnv"), patches="tests.support.patches:shorten_timeouts_and_hold"
    )
    result, seconds = stop_by_sigterm(child, run_dir.checkpoints_dir / "000000060")
    figure(seconds, "s from SIGTERM")
    assert result.status == 0, result.output
    assert list(run_dir.checkpoints_dir.glob("*.stop"))


@pytest.mark.attack(STEP_DEADLINE)
@pytest.mark.quality("L8")
@pytest.mark.parametrize(
    "task", ["make_env_hanging_in_c", pytest.param("make_env_holding_gil_without_signals", marks=pytest.mark.slow)]
)
def test_a_deadline_for_steps_ends_a_run_that_hangs(
    task: str, run_dir: RunDir, hang_file: Path, launcher: Launcher
) -> None:
    assert hang_file.exists()
    result = start_run(run_dir, launcher, make_case(task), "env.step_deadline_s=1").wait(at_most_s=30)
    assert result.status == 1
    if task == "make_env_hanging_in_c":
        assert "env.step has not returned for 1 s" in result.output.splitlines()[-1]
        assert list(read_records(run_dir.metrics_file))[-1]["state"] == "failed"
    else:  # only a timer in C still runs
        assert "in _hold_gil_without_signals" in result.output


@pytest.mark.quality("D6")
def test_sighup_saves_and_exits(run_dir: RunDir, launcher: Launcher, figure: Figure) -> None:
    child = start_run(
        run_dir,
        launcher,
        make_case("make_env_hanging_in_sleep"),
        patches="tests.support.patches:shorten_timeouts_and_hold",
    )
    child.wait_for((run_dir.checkpoints_dir / "000000060").exists)
    signal_s = perf_counter()
    child.send(signal.SIGHUP)
    result = child.wait(at_most_s=30)
    figure(perf_counter() - signal_s, "s")
    assert result.status == 0, result.output
    assert list(run_dir.checkpoints_dir.glob("*.stop"))


@pytest.mark.attack("a run that is started by nohup goes on through SIGHUP, and SIGTERM saves it")
@pytest.mark.quality("D6")
def test_sighup_that_was_ignored_at_the_start_stays_ignored(
    run_dir: RunDir, launcher: Launcher, figure: Figure
) -> None:
    child = start_run(
        run_dir, launcher, make_case("make_env_hanging_in_sleep"), patches="tests.support.patches:ignore_sighup"
    )
    child.wait_for((run_dir.checkpoints_dir / "000000060").exists)
    child.send(signal.SIGHUP)
    child.wait_for((run_dir.checkpoints_dir / "000000090").exists)
    result, seconds = stop_by_sigterm(child, run_dir.checkpoints_dir)
    figure(seconds, "s")
    assert result.status == 0, result.output
    (stop,) = run_dir.checkpoints_dir.glob("*.stop")
    assert stop.name > "000000090"


@pytest.mark.long
@pytest.mark.attack("a run that is started by nohup goes on through SIGHUP, and SIGTERM saves it")
@pytest.mark.quality("D6")
def test_a_run_under_the_real_nohup_ignores_sighup(run_dir: RunDir, figure: Figure, tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HOLD_CODE)
    command = ["nohup", sys.executable, "held.py", *make_case("make_env_hanging_in_sleep").command(run_dir.path)]
    variables = {**os.environ, "HANG": str(tmp_path / "hang"), "PYTHONPATH": str(Path(__file__).parents[3])}
    with (tmp_path / "said").open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, env=variables)
    try:
        child = ChildProcess(process.pid, tmp_path / "said", lambda at_most_s: process.wait(timeout=at_most_s))
        child.wait_for((run_dir.checkpoints_dir / "000000060").exists, at_most_s=120)
        child.send(signal.SIGHUP)
        child.wait_for((run_dir.checkpoints_dir / "000000090").exists)
        result, seconds = stop_by_sigterm(child, run_dir.checkpoints_dir)
    finally:
        process.kill()
        process.wait(timeout=30)
    figure(seconds, "s")
    assert result.status == 0, result.output
    (stop,) = run_dir.checkpoints_dir.glob("*.stop")
    assert stop.name > "000000090"


HOLD_CODE = """
import sys
from manyview.cli.main import main
from tests.support.patches import hold_until_stop
hold_until_stop()
sys.exit(main())
"""
