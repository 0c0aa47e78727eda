"""`manyview run` with a policy that needs no training."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyview
from manyview.cli.main import main
from manyview.cli.run import _raise_signals
from manyview.runtime import read_trace
from manyview.training import RunDir
from tests.support.runs import make_short_config
from tests.support.virtual_clock import FakePolicy, FakeSpec, FakeView

TASK = "toy/hidden_goal_continuous"
VIEW_NAMES = ("column", "row")
ROBOT_CODE = """
import numpy as np
from pathlib import Path

class Robot:
    safe_action = np.full(3, 9.0, np.float32)

    def __init__(self, log):
        self.log = Path(log)
        self.count = 0
        self.cameras = {"column": self.read, "row": lambda: self.read()}

    def read(self):
        self.count = (self.count + 1) % 256
        return np.full((20, 20, 1), self.count, np.uint8)

    def send_action(self, action):
        with self.log.open("a") as file:
            file.write(f"{action.tolist()}\\n")

    def close(self):
        with self.log.open("a") as file:
            file.write("closed\\n")

def make_robot(log: str):
    return Robot(log)

def make_nothing():
    return 3
"""


def make_spec() -> FakeSpec:
    """Return the spec of a policy with two gray views."""
    return FakeSpec(views=tuple(FakeView(name, 20, 20, 1) for name in VIEW_NAMES), resize=None)


class ToyPolicy(FakePolicy):
    """Fake policy with two actions, as the toy task expects."""

    def act(self, observation: Any) -> Any:
        return super().act(observation)[:2].clip(-1, 1)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> ToyPolicy:
    """Make `manyview.load` return a toy policy, and return it."""
    policy = ToyPolicy(make_spec())
    monkeypatch.setattr(manyview, "load", lambda _: policy, raising=False)
    return policy


def run_command(tmp_path: Path, *arguments: str) -> int:
    """Run `manyview run` for 1.2 seconds and return its exit status."""
    return main(["run", str(tmp_path), "--seconds", "1.2", *arguments])


@pytest.mark.usefixtures("policy")
def test_the_simulated_robot_runs_and_the_result_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Old images are not the point here, and a busy machine may make some.
    assert run_command(tmp_path, "--task", TASK, "--max-frame-age-s", "10") == 0
    output = capsys.readouterr().out
    assert "finished" in output
    assert "safe action sent" in output
    assert "row: masked in 0 ticks" in output


@pytest.mark.usefixtures("policy")
@pytest.mark.parametrize("kind", ["freeze", "lag", "die", "hang"])
def test_a_faulty_simulated_camera_is_masked_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    trace = tmp_path / "run.jsonl"
    fault = f"{VIEW_NAMES[0]}:{kind}@0.4s"
    assert run_command(tmp_path, "--task", TASK, "--fault", fault, "--trace", str(trace), "--json") == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["masked_ticks"].keys() == {VIEW_NAMES[0]}
    assert f"{VIEW_NAMES[0]} masked: {'frozen' if kind == 'freeze' else 'stale'}" in captured.err
    ticks = [record for record in read_trace(trace) if record["kind"] == "tick"]
    assert all(0 <= tick["ages_s"][name] <= 0.2 for tick in ticks for name in tick["frames"])
    first_s = next(tick["time_s"] for tick in ticks if tick["masked"])
    assert first_s - ticks[0]["time_s"] < 0.4 + 1 / 30 + 0.2 + 0.02 + 0.1  # 0.1 s for other processes on the machine


@pytest.mark.usefixtures("policy")
def test_a_stop_by_a_rule_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--task", TASK, "--fault", f"{VIEW_NAMES[1]}:die@0.2s", "--on-stale", "stop"]
    assert run_command(tmp_path, *arguments) == 1
    output = capsys.readouterr().out
    assert "stale  row (stale" in output
    assert "is dead" in output
    assert "safe action sent" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no task of the simulated robot: expected --task TASK"),
        (["--task", "toy/nothing"], "unknown task 'toy/nothing'"),
        (["--task", TASK, "--rate-hz", "0"], "invalid rate_hz: expected a number above 0, got 0.0"),
        (["--task", TASK, "--fault", "column:explode@3s"], "invalid fault: expected CAMERA:freeze"),
        (["--task", TASK, "--fault", "column@3s"], "invalid fault"),
        (["--task", TASK, "--fault", "side:die@3s"], "unknown camera in a fault"),
        (["--task", "toy/deep_sea"], "unknown camera: expected one of 0 depth, 1 column"),
        (["--task", "toy/hidden_goal"], "invalid action of the policy"),
        (["--store-frames"], "--store-frames needs --trace"),
        (["--robot", "a:b", "--task", TASK], "--task and --fault are for the simulated robot"),
        (
            ["--rate-hz", "50", "--robot", "robot_of_test"],
            "invalid function: expected module:function, got 'robot_of_test'",
        ),
        (["--rate-hz", "50", "--robot", "robot_of_test:nothing"], "has no function 'nothing'"),
        (["--rate-hz", "50", "--robot", "robot_of_test:make_robot"], "wrong arguments of robot_of_test:make_robot"),
        (["--robot", "robot_of_test:make_nothing"], "the policy does not know its control rate: expected --rate-hz HZ"),
        (
            ["--rate-hz", "50", "--robot", "robot_of_test:make_nothing"],
            "returned no robot: expected an object with cameras",
        ),
        (["--task", TASK, "--trace", "/no/such/place"], "/no/such/place"),
    ],
)
@pytest.mark.usefixtures("policy")
def test_invalid_arguments_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "robot_of_test.py").write_text(ROBOT_CODE)
    monkeypatch.chdir(tmp_path)
    assert run_command(tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("policy")
def test_the_own_task_of_a_run_is_named_in_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(make_short_config(), task="my_robot:make_env")
    RunDir(tmp_path).initialize(config, {})
    assert run_command(tmp_path) == 2
    assert "expected --task my_robot:make_env, got none" in capsys.readouterr().err


class ThreeActionPolicy(FakePolicy):
    """Fake policy with three actions, as the robot in `ROBOT_CODE` expects."""


def test_a_robot_of_a_module_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "robot_of_module.py").write_text(ROBOT_CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(manyview, "load", lambda _: ThreeActionPolicy(make_spec()), raising=False)
    assert (
        main(["run", ".", "--robot", "robot_of_module:make_robot?log=log.txt", "--rate-hz", "50", "--seconds", "0.5"])
        == 0
    )
    capsys.readouterr()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert len(lines) > 15
    assert lines[-2:] == ["[9.0, 9.0, 9.0]", "closed"]
    assert all(len(json.loads(line)) == 3 for line in lines[:-1])


RUN_SCRIPT = """
import signal
import sys
import manyview
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
from manyview.cli.main import main
from tests.unit.cli.test_run import ThreeActionPolicy, make_spec
manyview.load = lambda _: ThreeActionPolicy(make_spec())
sys.exit(main(["run", ".", "--robot", "robot_of_script:make_robot?log=log.txt", "--rate-hz", "50"]))
"""


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130)])
def test_signals_stop_the_robot(tmp_path: Path, signum: signal.Signals, status: int) -> None:
    (tmp_path / "robot_of_script.py").write_text(ROBOT_CODE)
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_SCRIPT], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    end_s = time.monotonic() + 60
    log = tmp_path / "log.txt"
    while not (log.exists() and len(log.read_text().splitlines()) > 10):
        assert process.poll() is None
        assert time.monotonic() < end_s
        time.sleep(0.05)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == status
    assert log.read_text().splitlines()[-2:] == ["[9.0, 9.0, 9.0]", "closed"]
    assert "interrupted" in output
    assert "safe action sent" in output


def test_an_ignored_hangup_stays_ignored() -> None:
    """`nohup` ignores it."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _raise_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_policy_that_raises_stops_the_robot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(count: int) -> None:
        if count == 10:
            raise RuntimeError("the network is broken")

    monkeypatch.setattr(manyview, "load", lambda _: ToyPolicy(make_spec(), on_act=fail), raising=False)
    assert run_command(tmp_path, "--task", TASK) == 2
    captured = capsys.readouterr()
    assert "safe action sent" in captured.out
    assert "the network is broken" in captured.err


def test_the_rate_is_that_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = ToyPolicy(make_spec())
    monkeypatch.setattr(manyview, "load", lambda _: policy, raising=False)
    object.__setattr__(policy.spec, "control_hz", 10.0)
    assert run_command(tmp_path, "--task", TASK, "--json") == 0
    assert json.loads(capsys.readouterr().out)["ticks"] == 12


def test_discrete_tasks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = FakePolicy(make_spec())
    monkeypatch.setattr(policy, "act", lambda _: np.array(1))
    monkeypatch.setattr(manyview, "load", lambda _: policy, raising=False)
    assert run_command(tmp_path, "--task", "toy/hidden_goal") == 0
    capsys.readouterr()
