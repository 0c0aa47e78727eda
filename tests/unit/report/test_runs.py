"""Summaries of runs from their files and their process."""

import fcntl
import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread, Timer
from time import time
from typing import Any

import pytest

from benchmarks.launcher import read_line
from manyview.config.overrides import apply_overrides
from manyview.report.runs import (
    CONFIG_FILE,
    LOCK_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    RunSummary,
    find_runs,
    is_training,
    summarize_run,
    summarize_runs,
)
from manyview.training import RunDir, load_preset, run
from tests.support.run_dirs import TASK, TINY_RUN, format_record, write_run_dir

START_AND_WAIT = """
import sys, time
from pathlib import Path
from manyview.training import RunDir
from tests.support.run_dirs import write_run_dir
lock = RunDir(write_run_dir(Path(sys.argv[1]), [3.0, 4.0], end=None)).lock()
print("begun", flush=True)
time.sleep(600)
"""


def make_manifest(**changes: Any) -> dict[str, Any]:
    """Return the manifest of a run of this process, with changes."""
    return {"started": datetime.now(UTC).isoformat(), "host": socket.gethostname(), "pid": os.getpid(), **changes}


def test_file_names_are_those_of_the_run_directory() -> None:
    run_dir = RunDir(Path("run"))
    assert (run_dir.config_file.name, run_dir.manifest_file.name) == (CONFIG_FILE, MANIFEST_FILE)
    assert run_dir.metrics_file.name == METRICS_FILE


def test_the_name_of_the_lock_is_that_of_the_run_directory(tmp_path: Path) -> None:
    with RunDir(tmp_path).lock():
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a finished tiny run."""
    path = tmp_path_factory.mktemp("ended")
    config = apply_overrides(load_preset("minute", task=TASK, method="drqv2+none", seed=5), TINY_RUN)
    run(config, RunDir(path))
    return path


def test_the_summary_of_a_finished_run_has_its_last_evaluation(run_path: Path) -> None:
    summary = summarize_run(run_path)
    evaluations = [
        line
        for line in map(json.loads, (run_path / METRICS_FILE).read_text().splitlines())
        if line["kind"] == "evaluation"
    ]
    assert (summary.state, summary.task, summary.method, summary.seed) == ("finished", TASK, "drqv2+none", 5)
    assert (summary.frames, summary.total_frames) == (120, 120)
    assert summary.last_return == evaluations[-1]["return"]


def test_a_run_is_running_until_its_process_dies_and_then_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START_AND_WAIT, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert read_line(process, at_most_s=120) == "begun"
        running_summary = summarize_run(tmp_path / "run")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
        zombie_summary = summarize_run(tmp_path / "run")
    assert [summary.state for summary in (running_summary, zombie_summary, summarize_run(tmp_path / "run"))] == [
        "running",
        "killed",
        "killed",
    ]
    assert running_summary.last_return == 4.0


HELD_LOCK = pytest.mark.attack("a run whose lock is held is running, whatever its clock, process number and host say")


@HELD_LOCK
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    "changes",
    [{"started": "2001-01-01T00:00:00+00:00"}, {"started": "2999-01-01"}, {"pid": -1}, {"host": "another"}],
    ids=str,
)
def test_a_run_that_is_being_trained_is_running(changes: dict[str, Any], tmp_path: Path) -> None:
    """With a clock set forward, a run seems to have started before its process."""
    path = write_run_dir(tmp_path / "run", [1.0], end=None, manifest=make_manifest(**changes))
    with RunDir(path).lock():
        assert summarize_run(path).state == "running"
    assert summarize_run(path).state == ("unknown" if "host" in changes else "killed")


@HELD_LOCK
@pytest.mark.quality("X5")
def test_probing_the_lock_of_a_run_does_not_prevent_its_start(tmp_path: Path) -> None:
    stop_event = Event()

    def probe_lock() -> None:
        while not stop_event.is_set():
            is_training(tmp_path)

    thread = Thread(target=probe_lock)
    thread.start()
    try:
        for _ in range(50):
            RunDir(tmp_path).lock().close()
        with (tmp_path / LOCK_FILE).open() as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_SH)
            Timer(0.05, lock_file.close).start()
            RunDir(tmp_path).lock().close()
    finally:
        stop_event.set()
        thread.join()


def test_a_lock_that_cannot_be_probed_leaves_the_state_unknown(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0], end=None)
    (path / LOCK_FILE).mkdir()
    summary = summarize_run(path)
    assert (summary.state, summary.reason) == ("unknown", "the file lock cannot be read")


def test_a_later_process_with_the_same_number_is_not_the_run(tmp_path: Path) -> None:
    manifest = make_manifest(began="2001-01-01T00:00:00+00:00")
    assert summarize_run(write_run_dir(tmp_path / "run", [1.0], end=None, manifest=manifest)).state == "killed"


def test_a_run_of_another_machine_that_wrote_no_end_is_unknown(tmp_path: Path) -> None:
    summary = summarize_run(write_run_dir(tmp_path / "run", [1.0], end=None, manifest=make_manifest(host="another")))
    assert (summary.state, summary.reason) == ("unknown", "the run was on another")


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_a_run_that_wrote_its_end_has_that_state_wherever_it_ran(state: str, tmp_path: Path) -> None:
    assert (
        summarize_run(write_run_dir(tmp_path / "run", [1.0], end=state, manifest=make_manifest(host="another"))).state
        == state
    )


def test_a_failed_run_has_its_reason(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0], end=None)
    with (path / METRICS_FILE).open("a") as file:
        file.write(format_record("end", 1000, state="failed", reason="DivergedError('3 updates')"))
    summary = summarize_run(path)
    assert (summary.state, summary.reason) == ("failed", "DivergedError('3 updates')")


def test_a_run_that_has_written_nothing_yet_is_running_from_frame_0(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", end=None)
    (path / METRICS_FILE).unlink()
    with RunDir(path).lock():
        summary = summarize_run(path)
    assert (summary.state, summary.frames, summary.last_return, summary.age_s) == ("running", 0, None, None)


def test_the_age_is_that_of_the_last_record(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0])
    os.utime(path / METRICS_FILE, (time() - 500, time() - 500))
    age_s = summarize_run(path).age_s
    assert age_s == pytest.approx(500, abs=60)


def test_a_return_that_is_not_a_number_is_none(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", end=None)
    with (path / METRICS_FILE).open("a") as file:
        file.write(format_record("evaluation", 0, **{"return": None}))
    assert summarize_run(path).last_return is None


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (CONFIG_FILE, None, "config.json does not exist"),
        (CONFIG_FILE, '{"task": ', "config.json is not valid JSON"),
        (CONFIG_FILE, "[1]", "config.json: invalid JSON: expected an object, got list"),
        (CONFIG_FILE, '{"task": "toy/identity"}', "config.json has no valid method: expected a string, got NoneType"),
        (MANIFEST_FILE, None, "manifest.json does not exist"),
        (METRICS_FILE, "\0\0\0\n", "metrics.jsonl contains no valid record"),
        (
            METRICS_FILE,
            '{"kind": "end", "state": "lost"}\n',
            "metrics.jsonl has an invalid end state: expected finished, stopped or failed, got 'lost'",
        ),
    ],
)
def test_a_broken_run_has_its_reason(name: str, content: str | None, reason: str, tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0])
    (path / name).unlink()
    if content is not None:
        (path / name).write_text(content)
    assert summarize_run(path) == RunSummary(path=path, state="broken", reason=reason)


@pytest.mark.attack(
    "a run folder of deep, huge or infinite JSON, links, pipes, gigabytes or loops is a row that says why; the other "
    "runs are listed and drawn"
)
@pytest.mark.quality("X5")
def test_one_broken_run_does_not_hide_the_others(tmp_path: Path) -> None:
    write_run_dir(tmp_path / "a", [1.0])
    (write_run_dir(tmp_path / "b", [1.0]) / CONFIG_FILE).write_bytes(b"\xff\xfe")
    write_run_dir(tmp_path / "c", [1.0])
    assert [summary.state for summary in summarize_runs(tmp_path)] == ["finished", "broken", "finished"]


def test_runs_are_found_at_any_depth_and_sorted_by_number(tmp_path: Path) -> None:
    for name in ("task/method/seed10", "task/method/seed2", "other"):
        write_run_dir(tmp_path / name)
    (tmp_path / "task" / "notes").mkdir()
    (tmp_path / "other" / "checkpoints" / "000000100").mkdir(parents=True)
    (tmp_path / "other" / "checkpoints" / "000000100" / CONFIG_FILE).write_text("{}")
    assert find_runs(tmp_path) == [tmp_path / name for name in ("other", "task/method/seed2", "task/method/seed10")]
    assert find_runs(tmp_path / "other") == [tmp_path / "other"]
