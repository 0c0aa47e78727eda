"""Whole runs: their files and records, resume, and errors."""

import contextlib
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyview.config.presets import make_config
from manyview.data import InsufficientSpaceError
from manyview.envs import make
from manyview.envs.contract import EnvError
from manyview.report.metrics_file import read_records
from manyview.report.runs import summarize_run
from manyview.training import RunConfig, RunDir, factory, run
from manyview.training import evaluation as evaluation_module
from manyview.training.evaluation import Evaluation, Evaluator
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.resume import RunFinishedError
from manyview.training.run_dir import default_run_path
from manyview.training.runner import DivergedError, Runner
from manyview.training.signals import StopRequest
from manyview.training.trainer import AdvanceResult
from tests.support.runs import make_short_config


class MemoryLogger:
    """Logger that keeps the records in memory."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.closed = False

    def record(self, record: Any) -> None:
        self.records.append(dict(record))

    def close(self) -> None:
        self.closed = True


def list_records(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind from the metrics file."""
    return [record for record in read_records(run_dir.metrics_file) if record["kind"] == kind]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Run directory that does not exist yet."""
    return RunDir(tmp_path / "run")


def test_a_run_directory_has_config_manifest_and_checkpoints(run_dir: RunDir) -> None:
    config = make_short_config()
    run(config, run_dir)
    assert run_dir.read_config() == OffPolicyTrainer(config).config
    manifest = run_dir.read_manifest()
    assert manifest["seed"] == 1
    assert manifest["views"] == ["column", "row"]
    assert {"started", "versions", "commit", "threads", "dtype", "settings", "device"} <= manifest.keys()
    assert manifest["settings"]["render_quality"] is None  # toy tasks are not rendered
    assert sorted(path.name for path in run_dir.checkpoints_dir.iterdir()) == ["000000000", "000000030", "000000060"]


def test_every_record_carries_frames_steps_and_updates(run_dir: RunDir) -> None:
    logger = MemoryLogger()
    run(make_short_config(), run_dir, logger)
    records = list(read_records(run_dir.metrics_file))
    assert all({"kind", "frames", "steps", "updates", "seconds"} <= record.keys() for record in records)
    assert [record["frames"] for record in records] == sorted(record["frames"] for record in records)
    assert [record["kind"] for record in logger.records] == [record["kind"] for record in records]
    assert logger.closed


def test_evaluations_are_at_the_start_at_intervals_and_at_the_end(run_dir: RunDir) -> None:
    run(make_short_config(schedule={"frames": 75}), run_dir)
    records = list_records(run_dir, "evaluation")
    assert [record["frames"] for record in records] == [0, 30, 60, 75]
    assert all(len(record["returns"]) == 2 for record in records)


def test_the_return_of_an_evaluation_is_the_mean_of_its_episodes(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluations = iter([Evaluation([1.0, 2.0, 6.0], [3, 4, 5], None), Evaluation([0.0, 0.0, 1.5], [6, 7, 8], None)])
    monkeypatch.setattr(evaluation_module, "evaluate_policy", lambda *_, **__: next(evaluations))
    runner = Runner(make_short_config(), run_dir)
    (env,) = runner.evaluator.envs.values()
    runner.evaluator.envs = {"train": env, "test": env}
    runner.evaluator.evaluate(StopRequest())
    runner.close()
    (record,) = list_records(run_dir, "evaluation")
    assert (record["return"], record["test_return"], record["gap"]) == (3.0, 0.5, 2.5)
    assert (record["returns"], record["lengths"]) == ([1.0, 2.0, 6.0], [3, 4, 5])
    assert (record["test_returns"], record["test_lengths"]) == ([0.0, 0.0, 1.5], [6, 7, 8])


def test_evaluating_does_not_change_the_run(tmp_path: Path) -> None:
    rare_dir, frequent_dir = RunDir(tmp_path / "rarely"), RunDir(tmp_path / "often")
    run(make_short_config(evaluation={"every_frames": 60}), rare_dir)
    run(make_short_config(evaluation={"every_frames": 7}), frequent_dir)
    losses = [
        [record["critic_loss"] for record in list_records(run_dir, "train")] for run_dir in (rare_dir, frequent_dir)
    ]
    assert losses[0] == losses[1] != []


def test_training_records_have_bonus_losses_and_diagnostics_of_every_view(run_dir: RunDir) -> None:
    run(make_short_config(), run_dir)
    record = list_records(run_dir, "train")[-1]
    names = {"beta", "reward_int", "critic_loss", "actor_loss", "mem_loss", "share/row", "share/shared mean", "health"}
    assert names <= record.keys()
    assert 0 < record["beta"] < 0.05


def test_a_video_shows_the_first_episode_of_each_evaluation(run_dir: RunDir) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    run(make_short_config(evaluation={"video": True, "every_frames": 60}), run_dir)
    videos = sorted(run_dir.videos_dir.iterdir())
    assert [path.name for path in videos] == ["000000000.mp4", "000000060.mp4"]
    frames, _ = ffmpeg.count_frames_and_secs(str(videos[-1]))
    # The first observation, and one per step.
    assert frames == list_records(run_dir, "evaluation")[-1]["lengths"][0] + 1


def test_tensorboard_has_the_returns_of_evaluations(run_dir: RunDir) -> None:
    pytest.importorskip("tensorboard")
    run(make_short_config(logging={"tensorboard": True}), run_dir)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir.tensorboard_dir))
    events.Reload()
    returns = [(event.step, pytest.approx(event.value)) for event in events.Scalars("evaluation/return")]
    assert returns == [(record["frames"], record["return"]) for record in list_records(run_dir, "evaluation")]


def test_without_evaluations_there_is_one_environment(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A robot has only one environment."""
    envs, make_env = [], make

    def make_and_record(task: str, **options: Any) -> Any:
        envs.append(make_env(task, **options))
        return envs[-1]

    monkeypatch.setattr(factory, "make", make_and_record)
    assert run(make_short_config(evaluation={"episodes": 0}), run_dir)
    assert len(envs) == 1
    assert list_records(run_dir, "evaluation") == []
    assert run_dir.is_finished
    assert summarize_run(run_dir.path).last_return is None


def test_a_run_without_evaluations_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, reference_dir, stopped_dir = (
        make_short_config(evaluation={"episodes": 0}),
        RunDir(tmp_path / "a"),
        RunDir(tmp_path / "b"),
    )
    run(config, reference_dir)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 40)
        run(config, stopped_dir)
    run(config, stopped_dir)
    weight_files = [
        run_dir.checkpoints_dir / "000000060" / "state.safetensors" for run_dir in (reference_dir, stopped_dir)
    ]
    assert weight_files[0].read_bytes() == weight_files[1].read_bytes()


def test_weights_and_biases_writes_an_offline_run(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(make_short_config(logging={"wandb": True}), run_dir)
    assert list(run_dir.path.glob("wandb/offline-run-*/*.wandb"))


def test_a_finished_run_is_not_overwritten(run_dir: RunDir) -> None:
    run(make_short_config(), run_dir)
    before = run_dir.metrics_file.read_text()
    with pytest.raises(RunFinishedError, match="has finished"):
        run(make_short_config(), run_dir)
    assert run_dir.metrics_file.read_text() == before


def test_a_finished_run_with_other_settings_is_refused(run_dir: RunDir) -> None:
    run(make_short_config(), run_dir)
    with pytest.raises(ValueError, match=r"a run with other settings: logging\.keep_replay was True, now False"):
        run(make_short_config(logging={"keep_replay": False}), run_dir)
    assert list(run_dir.replay_dir.iterdir())


def test_a_finished_run_keeps_its_replay_log_if_its_settings_say_so(run_dir: RunDir) -> None:
    config = make_short_config()
    run(config, run_dir)
    before = {path: path.read_bytes() for path in run_dir.replay_dir.iterdir()}
    assert before
    with pytest.raises(RunFinishedError, match="has finished"):
        run(config, run_dir)
    assert {path: path.read_bytes() for path in run_dir.replay_dir.iterdir()} == before


def test_a_fresh_run_renames_the_old_run_directory(run_dir: RunDir) -> None:
    run(make_short_config(), run_dir)
    before = run_dir.metrics_file.read_text()
    with Runner(make_short_config(seed=2), run_dir, fresh=True) as runner:
        assert runner.run()
    assert run_dir.read_config().seed == 2
    assert (run_dir.path.with_name("run.old1") / "metrics.jsonl").read_text() == before


def test_a_run_does_not_resume_with_other_settings(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 40)
    assert not run(make_short_config(), run_dir)
    with pytest.raises(ValueError, match=r"replay\.batch_size was 8, now 9\. Resume with the same settings"):
        run(make_short_config(replay={"batch_size": 9}), run_dir)
    with pytest.raises(ValueError, match=r"settings: agent\.name was 'drqv2', now 'sac'; seed was 1, now 2\. Resume"):
        run(make_short_config("sac+mem", seed=2), run_dir)


@pytest.mark.attack("A second process in a run's folder is refused while the first trains")
def test_two_processes_cannot_train_in_one_run_directory(run_dir: RunDir) -> None:
    lock = run_dir.lock()
    with pytest.raises(FileExistsError, match="another process is training"):
        run(make_short_config(), run_dir)
    lock.close()
    assert run(make_short_config(), run_dir)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int, error: Exception | None = None) -> None:
    """Raise an error, or send SIGINT, once before the advance that follows `step`."""
    advance, pending_errors = OffPolicyTrainer.advance, [error]

    def advance_or_interrupt(self: OffPolicyTrainer) -> AdvanceResult:
        if self.counters.steps == step and pending_errors:
            if (pending_error := pending_errors.pop()) is not None:
                raise pending_error
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(OffPolicyTrainer, "advance", advance_or_interrupt)


def test_a_failed_run_records_the_traceback(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 40, RuntimeError("the arm fell off"))
    with pytest.raises(RuntimeError):
        run(make_short_config(), run_dir)
    (end,) = list_records(run_dir, "end")
    assert (end["state"], end["frames"]) == ("failed", 40)
    assert "test_runner.py" in end["traceback"]


def test_a_stopped_run_records_its_state_and_can_resume(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 40)
    assert not run(make_short_config(), run_dir)
    assert (run_dir.checkpoints_dir / "000000041.stop").is_dir()
    end = list(read_records(run_dir.metrics_file))[-1]
    assert (end["kind"], end["state"], end["frames"]) == ("end", "stopped", 41)
    assert run(make_short_config(), run_dir)
    assert [(record["frames"], record["resume_mode"]) for record in list_records(run_dir, "resume")] == [(41, "strict")]
    assert [record["frames"] for record in list_records(run_dir, "evaluation")] == [0, 30, 60]
    assert [record["state"] for record in list_records(run_dir, "end")] == ["finished"]


def test_seconds_continue_after_a_resume(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 40)
    assert not run(make_short_config(), run_dir)
    before = list(read_records(run_dir.metrics_file))[-2]["seconds"]
    assert run(make_short_config(), run_dir)
    assert list_records(run_dir, "resume")[0]["seconds"] >= before > 0
    seconds = [record["seconds"] for record in read_records(run_dir.metrics_file)]
    assert seconds == sorted(seconds)


@pytest.mark.attack("a listener of a run that fails is left out with a warning, and the run goes on")
def test_a_failing_logger_is_disabled_with_a_warning(run_dir: RunDir) -> None:
    class FailingLogger(MemoryLogger):
        def record(self, record: Any) -> None:
            super().record(record)
            if record["kind"] == "train":
                raise BrokenPipeError

    failing_logger, logger = FailingLogger(), MemoryLogger()
    run(make_short_config(), run_dir, failing_logger, logger)
    assert list_records(run_dir, "end")[0]["state"] == "finished"
    assert [record["text"] for record in list_records(run_dir, "warning")] == [
        "FailingLogger is disabled after an error: BrokenPipeError()"
    ]
    assert failing_logger.closed
    assert logger.records[-1]["kind"] == "end"


def test_a_run_without_an_update_gives_a_warning(run_dir: RunDir) -> None:
    run(make_short_config(schedule={"frames": 20, "random_steps": 10, "seed_frames": 30}), run_dir)
    (warning,) = list_records(run_dir, "warning")
    assert warning["text"].startswith("the run ends without an update: expected schedule.frames of at least")


def test_two_loggers_may_fail_at_the_same_record(run_dir: RunDir) -> None:
    class FailingLogger(MemoryLogger):
        def record(self, record: Any) -> None:  # noqa: ARG002
            raise BrokenPipeError

    run(make_short_config(), run_dir, FailingLogger(), FailingLogger())
    assert list_records(run_dir, "end")[0]["state"] == "finished"
    assert len(list_records(run_dir, "warning")) == 2


def test_a_partial_line_at_the_end_of_a_killed_run_is_no_record(run_dir: RunDir) -> None:
    run(make_short_config(), run_dir)
    records = list(read_records(run_dir.metrics_file))
    with run_dir.metrics_file.open("a") as file:
        file.write('{"kind": "train", "fra')
    assert list(read_records(run_dir.metrics_file)) == records


def inject_nan_rewards(monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
    """Set all rewards of the replay buffer to NaN in the updates at these steps."""
    update = OffPolicyTrainer.update

    def update_with_nan(self: OffPolicyTrainer) -> Any:
        rewards = self.replay.steps["reward"].copy()
        if self.counters.steps in steps:
            self.replay.steps["reward"] = float("nan")
        try:
            return update(self)
        finally:
            self.replay.steps["reward"] = rewards

    monkeypatch.setattr(OffPolicyTrainer, "update", update_with_nan)


@pytest.mark.quality("S3")
def test_two_non_finite_updates_are_skipped_with_warnings(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_nan_rewards(monkeypatch, range(40, 42))
    run(make_short_config(), run_dir)
    assert ["skipped" in record["text"] for record in list_records(run_dir, "warning")] == [True, True]
    assert list_records(run_dir, "end")[0]["updates"] == 29


@pytest.mark.quality("S3")
def test_three_non_finite_updates_in_a_row_restore_the_last_good_agent(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject_nan_rewards(monkeypatch, range(40, 43))
    run(make_short_config(), run_dir)
    assert [
        record["text"].endswith("back to the agent of 000000030") for record in list_records(run_dir, "warning")
    ] == [
        False,
        False,
        True,
    ]
    assert list_records(run_dir, "end")[0]["state"] == "finished"


@pytest.mark.quality("S3")
def test_a_diverged_run_fails_and_records_it(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_nan_rewards(monkeypatch, range(40, 60))
    with pytest.raises(DivergedError, match="updates in a row were not finite"):
        run(make_short_config(), run_dir)
    assert list_records(run_dir, "end")[0]["state"] == "failed"


@pytest.mark.quality("E4")
def test_a_replay_that_does_not_fit_is_refused_before_anything_is_written(run_dir: RunDir) -> None:
    with pytest.raises(InsufficientSpaceError, match="a replay buffer of 1,000,000,000 steps needs"):
        run(make_short_config(replay={"capacity": 10**9}), run_dir)
    assert not run_dir.path.exists()


def test_the_default_run_directory_is_named_by_task_method_and_seed() -> None:
    config = make_config("dmc/hopper_hop", method="sac+re3", seed=4)
    assert default_run_path(config) == Path("runs/dmc-hopper_hop/sac+re3/seed4")


def test_records_with_non_finite_metrics_are_valid_json(run_dir: RunDir) -> None:
    from manyview.training.loggers import JsonLinesLogger

    run_dir.path.mkdir()
    logger = JsonLinesLogger(run_dir.metrics_file)
    logger.record({"kind": "train", "loss": float("nan"), "returns": [1.0, float("inf")], "β": 1})
    logger.close()
    expected = {"kind": "train", "loss": None, "returns": [1.0, None], "β": 1}
    assert json.loads(run_dir.metrics_file.read_text()) == expected


def test_an_environment_is_closed_if_that_of_other_levels_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_levels: list[str | None] = []

    def make_env(_: RunConfig, *, levels: str | None) -> Any:
        if levels == "test":
            raise EnvError("no such levels")
        return SimpleNamespace(close=lambda: closed_levels.append(levels))

    monkeypatch.setattr(factory, "list_evaluation_levels", lambda _: ("train", "test"))
    monkeypatch.setattr(factory, "make_env", make_env)
    trainer: Any = SimpleNamespace(
        config=make_short_config(), env=SimpleNamespace(metadata={}), env_calls=lambda _: contextlib.nullcontext()
    )
    with pytest.raises(EnvError):
        Evaluator(trainer, tmp_path, log=lambda *_, **__: None)
    assert closed_levels == ["train"]
