"""Weights & Biases and TensorBoard that fail or hang: a warning, and the run goes on."""

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
from manyview.training import trackers as records_module
from manyview.training.trackers import RunLabels, WandbLogger
from quality.plugin import Figure
from tests.support.runners import make_quick_config, read_warnings

TRACKER = "a tracker without a key, or whose server never answers: a warning, the run goes on and SIGTERM ends it"


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def put_in_place_of_wandb(monkeypatch: pytest.MonkeyPatch, *, has_key: bool, init: Callable[..., Any]) -> None:
    settings = SimpleNamespace(settings=SimpleNamespace(mode="online"))
    fake = SimpleNamespace(setup=lambda: settings, login=lambda **_: has_key, init=init)
    monkeypatch.setattr(records_module, "import_optional", lambda *_, **__: fake)
    for name in ("START_S", "STOP_S"):
        monkeypatch.setattr(records_module, name, 0.1, raising=False)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """A wandb whose `init` does not return before this event."""
    until = Event()
    put_in_place_of_wandb(monkeypatch, has_key=True, init=lambda **_: until.wait(20))
    yield until
    until.set()


@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
@pytest.mark.usefixtures("never")
def test_a_service_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    began_s = perf_counter()
    service = WandbLogger(RunDir(tmp_path), RunLabels("a", "b"), {})
    service.record({"kind": "start", "frames": 0})
    for frames in range(20_000):  # more than wait for it
        service.record({"kind": "train", "frames": frames})
    service.record({"kind": "end", "frames": 0, "state": "stopped"})
    service.close()
    assert perf_counter() - began_s < 5


@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
def test_a_service_with_a_full_queue_is_waited_for_only_until_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, sent, finished = Event(), list[Any](), Event()

    def init(**_: Any) -> Any:
        answers.wait(20)
        return SimpleNamespace(log=sent.append, finish=finished.set, define_metric=lambda *_, **__: None)

    put_in_place_of_wandb(monkeypatch, has_key=True, init=init)
    monkeypatch.setattr(records_module, "FINISH_S", 10.0)
    service = WandbLogger(RunDir(tmp_path), RunLabels("a", "b"), {})
    for frames in range(records_module.MAX_PENDING_RECORDS + 10):
        service.record({"kind": "train", "frames": frames, "state": "finished"})
    Timer(0.2, answers.set).start()  # when `close` is already waiting
    began_s = perf_counter()
    service.close()
    assert perf_counter() - began_s < 5
    assert finished.is_set()
    assert len(sent) == records_module.MAX_PENDING_RECORDS


@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
def test_without_a_key_a_run_warns_and_goes_on(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place_of_wandb(monkeypatch, has_key=False, init=refuse)
    assert run(make_quick_config(logging={"wandb": True}), folder)
    (warning,) = read_warnings(folder)
    assert warning.startswith("WandbLogger is disabled after an error: ValueError('no API key. Run `wandb login`")


def refuse(**_: Any) -> None:
    raise RuntimeError("No API key configured")


@pytest.mark.attack(TRACKER)
@pytest.mark.quality("L8")
def test_tensorboard_that_cannot_write_is_a_warning(folder: RunDir) -> None:
    pytest.importorskip("tensorboard")
    folder.path.mkdir()
    folder.tensorboard_dir.touch()  # a file where its folder should be
    assert run(make_quick_config(logging={"tensorboard": True}), folder)
    (warning,) = read_warnings(folder)
    assert warning.startswith("TensorBoardLogger is disabled after an error: FileExistsError(")


COMMAND = [
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


def started(folder: Path, key: str, port: int) -> tuple[ChildProcess, Any]:
    """The real command with the real wandb."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    variables = {**kept, "WANDB_BASE_URL": f"http://127.0.0.1:{port}", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    variables |= {"WANDB_API_KEY": key} if key else {}
    command = [sys.executable, "-m", "manyview", *COMMAND, "--out", "run"]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=variables
        )
    return ChildProcess(process.pid, folder / "said", lambda at_most_s: process.wait(timeout=at_most_s)), process


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
        running, process = started(tmp_path, key, server.getsockname()[1])
        try:
            running.wait_for(lambda: metrics.exists() and '"train"' in metrics.read_text(), at_most_s=120)
            asked_s = perf_counter()
            running.send(signal.SIGTERM)
            ended = running.wait(at_most_s=30)
        finally:
            process.kill()
            process.wait(timeout=30)
    figure(perf_counter() - asked_s, "s from SIGTERM")
    assert ended.status == 0, ended.output
    assert "Traceback" not in ended.output
    warned = [record["text"] for record in read_records(metrics) if record["kind"] == "warning"]
    assert ["no API key" in text for text in warned] == ([] if key else [True])
