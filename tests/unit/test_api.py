"""Training in Python: `manyview.train`, `manyview.resume` and `manyview.Run`."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyview
from benchmarks.run_comparison import compare_runs
from manyview.cli.main import main
from manyview.training import RunConfig, RunDir
from tests.support.runs import make_short_config

SETTINGS: dict[str, Any] = {
    "schedule.random_steps": 20,
    "schedule.seed_frames": 30,
    "replay.batch_size": 8,
    "agent.hidden": 16,
    "evaluation.every_frames": 20,
    "evaluation.episodes": 1,
    "evaluation.video": False,
    "logging.every_steps": 10,
}


def train_short(path: Path, **options: Any) -> manyview.Run:
    return manyview.train(config=make_short_config(), out=path, progress=False, **options)


def test_dir_shows_the_public_names() -> None:
    assert {"train", "resume", "load", "Run", "make", "__version__"} <= set(dir(manyview))


def test_five_lines_train_evaluate_and_act(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = manyview.train(
        "toy/hidden_goal_continuous",
        method="sac+mem",
        preset="minute",
        frames=60,
        seed=3,
        views=["row", "column"],
        settings=SETTINGS,
        out=tmp_path / "run",
    )
    assert "60 frames  finished" in capsys.readouterr().out
    assert run.is_finished
    assert (run.config.method, run.config.seed, run.config.env.views) == ("sac+mem", 3, ("row", "column"))
    assert repr(run).startswith(f"Run({str(run.path)!r}: finished at 60 of 60 frames, return ")
    assert len(run.evaluate(episodes=2).returns) == 2
    assert len(run.evaluate(episodes=1, cameras=["row"]).returns) == 1
    curve = run.read_curve()
    assert curve.x.tolist() == [0, 20, 40, 60]
    policy, env = run.policy(), manyview.make("toy/hidden_goal_continuous", views=("row", "column"))
    observation, _ = env.reset(seed=0)
    policy.reset()
    action = policy.act({name: observation[name][..., :3] for name in ("row", "column")})
    assert env.action_space.contains(np.asarray(action, dtype=np.float32))


def test_the_command_and_the_call_train_the_same_run(tmp_path: Path) -> None:
    call_dir, command_dir = tmp_path / "called", tmp_path / "typed"
    task, method = "toy/hidden_goal_continuous", "sac+mem"
    manyview.train(
        task, method=method, preset="minute", frames=40, device="cpu", settings=SETTINGS, out=call_dir, progress=False
    )
    assignments = [f"{name}={str(value).lower()}" for name, value in SETTINGS.items()]
    options = ["--method", method, "--preset", "minute", "--frames", "40", "--device", "cpu", "--out", str(command_dir)]
    assert main(["train", task, *options, "--set", *assignments]) == 0
    assert compare_runs(RunDir(call_dir), RunDir(command_dir)) == []


class TestCallbacks:
    def test_on_record_sees_every_record_and_on_evaluation_the_evaluations(self, tmp_path: Path) -> None:
        records: list[Mapping[str, Any]] = []
        evaluations: list[Mapping[str, Any]] = []
        run = train_short(tmp_path / "run", on_record=records.append, on_evaluation=evaluations.append)
        kinds = [record["kind"] for record in records]
        assert (kinds[0], kinds[-1]) == ("start", "end")
        assert len(kinds) == len((run.path / "metrics.jsonl").read_text().splitlines())
        assert evaluations == [record for record in records if record["kind"] == "evaluation"] != []

    def test_true_stops_the_run_and_resume_finishes_it_bit_for_bit(self, tmp_path: Path) -> None:
        uninterrupted = train_short(tmp_path / "whole")
        run = train_short(tmp_path / "run", on_evaluation=lambda record: np.int64(record["frames"]) >= 20)
        assert run.summary.state == "stopped"
        assert 20 <= (run.summary.frames or 0) < run.config.schedule.frames
        resumed = manyview.resume(run.path, progress=False)
        assert resumed.is_finished
        differences = compare_runs(RunDir(uninterrupted.path), RunDir(run.path))
        assert [text for text in differences if not text.startswith("checkpoints")] == []  # the stop saved one more

    def test_other_values_do_not_stop_the_run(self, tmp_path: Path) -> None:
        assert train_short(tmp_path / "run", on_record=lambda record: record).is_finished

    def test_an_error_of_a_callback_is_raised_once_the_run_is_saved(self, tmp_path: Path) -> None:
        calls = 0

        def fail(record: Mapping[str, Any]) -> None:
            nonlocal calls
            calls += 1
            raise ZeroDivisionError(record["frames"])

        with pytest.raises(ZeroDivisionError, match="0"):
            train_short(tmp_path / "run", on_evaluation=fail)
        assert calls == 1
        assert manyview.Run(tmp_path / "run").summary.state == "stopped"
        assert manyview.resume(tmp_path / "run", progress=False).is_finished

    def test_callbacks_are_refused_with_several_learners(self, tmp_path: Path) -> None:
        config = replace(
            make_short_config(), scale=replace(make_short_config().scale, actors=1, learners=2, chunk_steps=20)
        )
        with pytest.raises(ValueError, match=r"expected scale\.learners=1, got 2"):
            manyview.train(config=config, out=tmp_path / "run", on_record=print)


class TestStops:
    @pytest.mark.parametrize(
        ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=str
    )
    def test_a_signal_saves_the_run_and_ends_the_script(
        self, tmp_path: Path, number: signal.Signals, error: type[BaseException]
    ) -> None:
        def send_signal(record: Mapping[str, Any]) -> None:
            if record["frames"] >= 20:
                os.kill(os.getpid(), number)

        # A background job ignores SIGINT, and the handler of the test runner must not see these signals.
        previous = signal.signal(number, signal.default_int_handler)
        try:
            with pytest.raises(error):
                train_short(tmp_path / "run", on_evaluation=send_signal)
        finally:
            signal.signal(number, previous)
        assert manyview.Run(tmp_path / "run").summary.state == "stopped"
        assert manyview.resume(tmp_path / "run", progress=False).is_finished

    def test_a_finished_run_is_returned_with_a_note(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        train_short(tmp_path / "run")
        before = (tmp_path / "run/metrics.jsonl").read_bytes()
        run = manyview.resume(tmp_path / "run")
        assert "has finished" in capsys.readouterr().out
        assert run.is_finished
        assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


def test_resume_with_more_frames_extends_the_run(tmp_path: Path) -> None:
    config: RunConfig = make_short_config()
    frames = 2 * config.schedule.frames
    long_run = manyview.train(
        config=replace(config, schedule=replace(config.schedule, frames=frames)), out=tmp_path / "whole", progress=False
    )
    run = train_short(tmp_path / "run")
    assert manyview.resume(run.path, frames=frames, progress=False).config.schedule.frames == frames
    assert compare_runs(RunDir(long_run.path), RunDir(run.path)) == []
    with pytest.raises(ValueError, match="expected a new total above that"):
        manyview.resume(run.path, frames=frames - 1)


def test_a_run_config_excludes_other_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected no other arguments, got method, frames, views, device"):
        train_short(tmp_path / "run", method="sac+mem", frames=10, views=["row"], device="cpu")


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    for call in (manyview.Run, manyview.resume):
        with pytest.raises(FileNotFoundError):
            call(tmp_path)
