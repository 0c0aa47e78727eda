"""The state of runs, by their files and their process."""

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

BEGIN_AND_WAIT = """
import sys, time
from pathlib import Path
from manyview.training import RunDir
from tests.support.run_dirs import write_run_dir
lock = RunDir(write_run_dir(Path(sys.argv[1]), [3.0, 4.0], end=None)).lock()
print("begun", flush=True)
time.sleep(600)
"""


def elsewhere(**changes: Any) -> dict[str, Any]:
    return {"started": datetime.now(UTC).isoformat(), "host": socket.gethostname(), "pid": os.getpid(), **changes}


def test_the_files_have_the_names_that_runs_give_them() -> None:
    folder = RunDir(Path("run"))
    assert (folder.config_file.name, folder.manifest_file.name) == (CONFIG_FILE, MANIFEST_FILE)
    assert folder.metrics_file.name == METRICS_FILE


def test_the_lock_has_the_name_that_runs_give_it(tmp_path: Path) -> None:
    with RunDir(tmp_path).lock():
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run."""
    path = tmp_path_factory.mktemp("ended")
    config = apply_overrides(load_preset("minute", task=TASK, method="drqv2+none", seed=5), TINY_RUN)
    run(config, RunDir(path))
    return path


def test_a_real_run_is_listed_as_it_ended(ended: Path) -> None:
    found = summarize_run(ended)
    evaluations = [
        line
        for line in map(json.loads, (ended / METRICS_FILE).read_text().splitlines())
        if line["kind"] == "evaluation"
    ]
    assert (found.state, found.task, found.method, found.seed) == ("finished", TASK, "drqv2+none", 5)
    assert (found.frames, found.total_frames) == (120, 120)
    assert found.last_return == evaluations[-1]["return"]


def test_a_run_is_running_while_its_process_is_there_and_killed_when_it_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGIN_AND_WAIT, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert read_line(process, at_most_s=120) == "begun"
        running = summarize_run(tmp_path / "run")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has taken notice of it
        unnoticed = summarize_run(tmp_path / "run")
    assert [found.state for found in (running, unnoticed, summarize_run(tmp_path / "run"))] == [
        "running",
        "killed",
        "killed",
    ]
    assert running.last_return == 4.0


CLOCK = pytest.mark.attack("a run whose lock is held is running, whatever its clock, process number and host say")


@CLOCK
@pytest.mark.quality("X5")
@pytest.mark.parametrize(
    "changes",
    [{"started": "2001-01-01T00:00:00+00:00"}, {"started": "2999-01-01"}, {"pid": -1}, {"host": "another"}],
    ids=str,
)
def test_a_run_that_is_being_trained_is_running(changes: dict[str, Any], tmp_path: Path) -> None:
    """After the clock of a machine was set forward, all that runs seems to have begun before its process."""
    path = write_run_dir(tmp_path / "run", [1.0], end=None, manifest=elsewhere(**changes))
    with RunDir(path).lock():
        assert summarize_run(path).state == "running"
    assert summarize_run(path).state == ("unknown" if "host" in changes else "killed")


@CLOCK
@pytest.mark.quality("X5")
def test_looking_at_a_run_does_not_keep_it_from_beginning(tmp_path: Path) -> None:
    over = Event()

    def look() -> None:
        while not over.is_set():
            is_training(tmp_path)

    looking = Thread(target=look)
    looking.start()
    try:
        for _ in range(50):
            RunDir(tmp_path).lock().close()
        with (tmp_path / LOCK_FILE).open() as looked_at:
            fcntl.flock(looked_at, fcntl.LOCK_SH)
            Timer(0.05, looked_at.close).start()
            RunDir(tmp_path).lock().close()
    finally:
        over.set()
        looking.join()


def test_a_lock_that_cannot_be_probed_leaves_the_state_unknown(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0], end=None)
    (path / LOCK_FILE).mkdir()
    found = summarize_run(path)
    assert (found.state, found.reason) == ("unknown", "the file lock cannot be read")


def test_a_later_process_with_the_same_number_is_not_the_run(tmp_path: Path) -> None:
    long_ago = elsewhere(began="2001-01-01T00:00:00+00:00")
    assert summarize_run(write_run_dir(tmp_path / "run", [1.0], end=None, manifest=long_ago)).state == "killed"


def test_a_run_of_another_machine_that_wrote_no_end_is_unknown(tmp_path: Path) -> None:
    found = summarize_run(write_run_dir(tmp_path / "run", [1.0], end=None, manifest=elsewhere(host="another")))
    assert (found.state, found.reason) == ("unknown", "the run was on another")


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_a_run_that_wrote_its_end_has_that_state_wherever_it_ran(state: str, tmp_path: Path) -> None:
    assert (
        summarize_run(write_run_dir(tmp_path / "run", [1.0], end=state, manifest=elsewhere(host="another"))).state
        == state
    )


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", [1.0], end=None)
    with (path / METRICS_FILE).open("a") as file:
        file.write(format_record("end", 1000, state="failed", reason="DivergedError('3 updates')"))
    found = summarize_run(path)
    assert (found.state, found.reason) == ("failed", "DivergedError('3 updates')")


def test_a_run_that_has_written_nothing_yet_is_running_from_frame_0(tmp_path: Path) -> None:
    path = write_run_dir(tmp_path / "run", end=None)
    (path / METRICS_FILE).unlink()
    with RunDir(path).lock():
        found = summarize_run(path)
    assert (found.state, found.frames, found.last_return, found.age_s) == ("running", 0, None, None)


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
def test_a_broken_run_says_what_is_broken(name: str, content: str | None, reason: str, tmp_path: Path) -> None:
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
    assert [found.state for found in summarize_runs(tmp_path)] == ["finished", "broken", "finished"]


def test_runs_are_found_at_any_depth_and_stand_by_their_numbers(tmp_path: Path) -> None:
    for name in ("task/method/seed10", "task/method/seed2", "other"):
        write_run_dir(tmp_path / name)
    (tmp_path / "task" / "notes").mkdir()
    (tmp_path / "other" / "checkpoints" / "000000100").mkdir(parents=True)
    (tmp_path / "other" / "checkpoints" / "000000100" / CONFIG_FILE).write_text("{}")
    assert find_runs(tmp_path) == [tmp_path / name for name in ("other", "task/method/seed2", "task/method/seed10")]
    assert find_runs(tmp_path / "other") == [tmp_path / "other"]
