"""Weights & Biases or TensorBoard that fail or hang: the run warns and continues."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Timer
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.launcher import ChildProcess
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, run
from manyview.training import trackers as trackers_module
from manyview.training.trackers import RunLabels, WandbLogger
from quality.plugin import Figure
from tests.support.runners import make_quick_config, read_warnings

TRACKER = "a tracker without a key, or whose server never answers: a warning, the run goes on and SIGTERM ends it"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def patch_wandb(monkeypatch: pytest.MonkeyPatch, *, has_key: bool, init: Callable[..., Any]) -> None:
    """Replace the package wandb and shorten the timeouts for it."""
    settings = SimpleNamespace(settings=SimpleNamespace(mode="online"))
    fake = SimpleNamespace(setup=lambda: settings, login=lambda **_: has_key, init=init)
    monkeypatch.setattr(trackers_module, "import_optional", lambda *_, **__: fake)
    for name in ("START_S", "STOP_S"):
        monkeypatch.setattr(trackers_module, name, 0.1, raising=False)


@pytest.fixture
def hanging_wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Replace wandb by one whose `init` hangs until the yielded event is set."""
    event = Event()
    patch_wandb(monkeypatch, has_key=True, init=lambda **_: event.wait(20))
    yield event
    event.set()


@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
@pytest.mark.usefixtures("hanging_wandb")
def test_a_service_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    start_s = perf_counter()
    logger = WandbLogger(RunDir(tmp_path), RunLabels("a", "b"), {})
    logger.record({"kind": "start", "frames": 0})
    for frames in range(20_000):  # more than the queue holds
        logger.record({"kind": "train", "frames": frames})
    logger.record({"kind": "end", "frames": 0, "state": "stopped"})
    logger.close()
    assert perf_counter() - start_s < 5


@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
def test_a_service_with_a_full_queue_is_waited_for_only_until_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_event, records, finish_event = Event(), list[Any](), Event()

    def init(**_: Any) -> Any:
        answer_event.wait(20)
        return SimpleNamespace(log=records.append, finish=finish_event.set, define_metric=lambda *_, **__: None)

    patch_wandb(monkeypatch, has_key=True, init=init)
    monkeypatch.setattr(trackers_module, "FINISH_S", 10.0)
    logger = WandbLogger(RunDir(tmp_path), RunLabels("a", "b"), {})
    for frames in range(trackers_module.MAX_PENDING_RECORDS + 10):
        logger.record({"kind": "train", "frames": frames, "state": "finished"})
    Timer(0.2, answer_event.set).start()  # when `close` is already waiting
    start_s = perf_counter()
    logger.close()
    assert perf_counter() - start_s < 5
    assert finish_event.is_set()
    assert len(records) == trackers_module.MAX_PENDING_RECORDS


@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
def test_without_a_key_a_run_warns_and_goes_on(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_wandb(monkeypatch, has_key=False, init=raise_no_key)
    assert run(make_quick_config(logging={"wandb": True}), run_dir)
    (warning,) = read_warnings(run_dir)
    assert warning.startswith("WandbLogger is disabled after an error: ValueError('no API key. Run `wandb login`")


def raise_no_key(**_: Any) -> None:
    raise RuntimeError("No API key configured")


@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
def test_tensorboard_that_cannot_write_is_a_warning(run_dir: RunDir) -> None:
    pytest.importorskip("tensorboard")
    run_dir.path.mkdir()
    run_dir.tensorboard_dir.touch()  # a file in place of its directory
    assert run(make_quick_config(logging={"tensorboard": True}), run_dir)
    (warning,) = read_warnings(run_dir)
    assert warning.startswith("TensorBoardLogger is disabled after an error: FileExistsError(")


TRAIN_ARGUMENTS = [
    *(
        "train",
        "toy/hidden_goal_continuous",
        "--preset",
        "minute",
        "--set",
        "logging.wandb=true",
        "evaluation.video=false",
    ),
    *("logging.tensorboard=false", "schedule.frames=100000", "logging.every_steps=50"),
]


def start_run(directory: Path, key: str, port: int) -> tuple[ChildProcess, Any]:
    """Start the real command with the real wandb."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    variables = {
        **inherited,
        "WANDB_BASE_URL": f"http://127.0.0.1:{port}",
        "HOME": str(directory),
        "OMP_NUM_THREADS": "1",
    }
    variables |= {"WANDB_API_KEY": key} if key else {}
    command = [sys.executable, "-m", "manyview", *TRAIN_ARGUMENTS, "--out", "run"]
    with (directory / "said").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=variables
        )
    return ChildProcess(process.pid, directory / "said", lambda at_most_s: process.wait(timeout=at_most_s)), process


@pytest.mark.long
@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
@pytest.mark.parametrize("key", ["", "a" * 40], ids=["without a key", "no answer"])
def test_the_real_wandb_with_a_server_that_never_answers_delays_nothing(
    key: str, tmp_path: Path, figure: Figure
) -> None:
    pytest.importorskip("wandb")
    metrics = tmp_path / "run" / "metrics.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as server:
        child, process = start_run(tmp_path, key, server.getsockname()[1])
        try:
            child.wait_for(lambda: metrics.exists() and '"train"' in metrics.read_text(), at_most_s=120)
            signal_s = perf_counter()
            child.send(signal.SIGTERM)
            result = child.wait(at_most_s=30)
        finally:
            process.kill()
            process.wait(timeout=30)
    figure(perf_counter() - signal_s, "s from SIGTERM")
    assert result.status == 0, result.output
    assert "Traceback" not in result.output
    warnings = [record["text"] for record in read_records(metrics) if record["kind"] == "warning"]
    assert ["no API key" in text for text in warnings] == ([] if key else [True])
