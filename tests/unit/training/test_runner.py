"""A whole run: what it leaves behind, and what it does when something goes wrong."""

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


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.closed = False

    def record(self, record: Any) -> None:
        self.records.append(dict(record))

    def close(self) -> None:
        self.closed = True


def kinds(folder: RunDir, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(folder.metrics_file) if record["kind"] == kind]


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def test_a_run_leaves_everything_that_is_needed_to_understand_it(folder: RunDir) -> None:
    config = make_short_config()
    run(config, folder)
    assert folder.read_config() == OffPolicyTrainer(config).config
    manifest = folder.read_manifest()
    assert manifest["seed"] == 1
    assert manifest["views"] == ["column", "row"]
    assert {"started", "versions", "commit", "threads", "dtype", "settings", "device"} <= manifest.keys()
    assert manifest["settings"]["render_quality"] is None  # a toy is not rendered
    assert sorted(path.name for path in folder.checkpoints_dir.iterdir()) == ["000000000", "000000030", "000000060"]


def test_every_record_carries_frames_steps_and_updates(folder: RunDir) -> None:
    heard = Heard()
    run(make_short_config(), folder, heard)
    found = list(read_records(folder.metrics_file))
    assert all({"kind", "frames", "steps", "updates", "seconds"} <= record.keys() for record in found)
    assert [record["frames"] for record in found] == sorted(record["frames"] for record in found)
    assert [record["kind"] for record in heard.records] == [record["kind"] for record in found]
    assert heard.closed


def test_evaluations_come_at_the_begin_on_time_and_at_the_end(folder: RunDir) -> None:
    run(make_short_config(schedule={"frames": 75}), folder)
    found = kinds(folder, "evaluation")
    assert [record["frames"] for record in found] == [0, 30, 60, 75]
    assert all(len(record["returns"]) == 2 for record in found)


def test_the_return_of_an_evaluation_is_the_mean_of_its_episodes(
    folder: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = iter([Evaluation([1.0, 2.0, 6.0], [3, 4, 5], None), Evaluation([0.0, 0.0, 1.5], [6, 7, 8], None)])
    monkeypatch.setattr(evaluation_module, "evaluate_policy", lambda *_, **__: next(played))
    session = Runner(make_short_config(), folder)
    (env,) = session.evaluator.envs.values()
    session.evaluator.envs = {"train": env, "test": env}
    session.evaluator.evaluate(StopRequest())
    session.close()
    (found,) = kinds(folder, "evaluation")
    assert (found["return"], found["test_return"], found["gap"]) == (3.0, 0.5, 2.5)
    assert (found["returns"], found["lengths"]) == ([1.0, 2.0, 6.0], [3, 4, 5])
    assert (found["test_returns"], found["test_lengths"]) == ([0.0, 0.0, 1.5], [6, 7, 8])


def test_evaluating_does_not_change_the_run(tmp_path: Path) -> None:
    rarely, often = RunDir(tmp_path / "rarely"), RunDir(tmp_path / "often")
    run(make_short_config(evaluation={"every_frames": 60}), rarely)
    run(make_short_config(evaluation={"every_frames": 7}), often)
    figures = [[record["critic_loss"] for record in kinds(one, "train")] for one in (rarely, often)]
    assert figures[0] == figures[1] != []


def test_training_records_have_bonus_losses_and_the_meters_of_every_view(folder: RunDir) -> None:
    run(make_short_config(), folder)
    record = kinds(folder, "train")[-1]
    names = {"beta", "reward_int", "critic_loss", "actor_loss", "mem_loss", "share/row", "share/shared mean", "health"}
    assert names <= record.keys()
    assert 0 < record["beta"] < 0.05


def test_a_video_shows_the_first_episode_of_each_evaluation(folder: RunDir) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    run(make_short_config(evaluation={"video": True, "every_frames": 60}), folder)
    videos = sorted(folder.videos_dir.iterdir())
    assert [path.name for path in videos] == ["000000000.mp4", "000000060.mp4"]
    frames, _ = ffmpeg.count_frames_and_secs(str(videos[-1]))
    assert frames == kinds(folder, "evaluation")[-1]["lengths"][0] + 1  # the begin, and what each step led to


def test_tensorboard_has_the_figures_too(folder: RunDir) -> None:
    pytest.importorskip("tensorboard")
    run(make_short_config(logging={"tensorboard": True}), folder)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.tensorboard_dir))
    events.Reload()
    found = [(event.step, pytest.approx(event.value)) for event in events.Scalars("evaluation/return")]
    assert found == [(record["frames"], record["return"]) for record in kinds(folder, "evaluation")]


def test_without_evaluations_there_is_one_environment(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a robot there cannot be two."""
    made, environment = [], make

    def counted(task: str, **options: Any) -> Any:
        made.append(environment(task, **options))
        return made[-1]

    monkeypatch.setattr(factory, "make", counted)
    assert run(make_short_config(evaluation={"episodes": 0}), folder)
    assert len(made) == 1
    assert kinds(folder, "evaluation") == []
    assert folder.is_finished
    assert summarize_run(folder.path).last_return is None


def test_a_run_without_evaluations_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, whole, stopped = (
        make_short_config(evaluation={"episodes": 0}),
        RunDir(tmp_path / "a"),
        RunDir(tmp_path / "b"),
    )
    run(config, whole)
    with monkeypatch.context() as patched:
        stopping_at(patched, 40)
        run(config, stopped)
    run(config, stopped)
    ends = [folder.checkpoints_dir / "000000060" / "state.safetensors" for folder in (whole, stopped)]
    assert ends[0].read_bytes() == ends[1].read_bytes()


def test_weights_and_biases_can_listen_too(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(make_short_config(logging={"wandb": True}), folder)
    assert list(folder.path.glob("wandb/offline-run-*/*.wandb"))


def test_a_run_that_has_finished_is_not_written_over(folder: RunDir) -> None:
    run(make_short_config(), folder)
    before = folder.metrics_file.read_text()
    with pytest.raises(RunFinishedError, match="has finished"):
        run(make_short_config(), folder)
    assert folder.metrics_file.read_text() == before


def test_a_run_that_has_finished_with_other_settings_does_not_pass_for_this_one(folder: RunDir) -> None:
    run(make_short_config(), folder)
    with pytest.raises(ValueError, match=r"a run with other settings: logging\.keep_replay was True, now False"):
        run(make_short_config(logging={"keep_replay": False}), folder)
    assert list(folder.replay_dir.iterdir())


def test_the_replay_log_of_a_finished_run_stays_if_its_settings_keep_it(folder: RunDir) -> None:
    config = make_short_config()
    run(config, folder)
    before = {path: path.read_bytes() for path in folder.replay_dir.iterdir()}
    assert before
    with pytest.raises(RunFinishedError, match="has finished"):
        run(config, folder)
    assert {path: path.read_bytes() for path in folder.replay_dir.iterdir()} == before


def test_a_fresh_run_leaves_the_old_one_under_another_name(folder: RunDir) -> None:
    run(make_short_config(), folder)
    before = folder.metrics_file.read_text()
    with Runner(make_short_config(seed=2), folder, fresh=True) as fresh:
        assert fresh.run()
    assert folder.read_config().seed == 2
    assert (folder.path.with_name("run.old1") / "metrics.jsonl").read_text() == before


def test_a_run_does_not_go_on_with_other_settings(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping_at(monkeypatch, 40)
    assert not run(make_short_config(), folder)
    with pytest.raises(ValueError, match=r"replay\.batch_size was 8, now 9\. Resume with the same settings"):
        run(make_short_config(replay={"batch_size": 9}), folder)
    with pytest.raises(ValueError, match=r"settings: agent\.name was 'drqv2', now 'sac'; seed was 1, now 2\. Resume"):
        run(make_short_config("sac+mem", seed=2), folder)


@pytest.mark.attack("A second process in a run's folder is refused while the first trains")
def test_two_processes_cannot_train_in_one_folder(folder: RunDir) -> None:
    lock = folder.lock()
    with pytest.raises(FileExistsError, match="another process is training"):
        run(make_short_config(), folder)
    lock.close()
    assert run(make_short_config(), folder)


def stopping_at(monkeypatch: pytest.MonkeyPatch, step: int, error: Exception | None = None) -> None:
    """Once: an error, or else Ctrl-C, before the step after this one."""
    advance, once = OffPolicyTrainer.advance, [error]

    def stops(self: OffPolicyTrainer) -> AdvanceResult:
        if self.counters.steps == step and once:
            if (raised := once.pop()) is not None:
                raise raised
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(OffPolicyTrainer, "advance", stops)


def test_a_failed_run_keeps_the_place_of_its_error(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping_at(monkeypatch, 40, RuntimeError("the arm fell off"))
    with pytest.raises(RuntimeError):
        run(make_short_config(), folder)
    (last,) = kinds(folder, "end")
    assert (last["state"], last["frames"]) == ("failed", 40)
    assert "test_runner.py" in last["traceback"]


def test_a_run_that_is_stopped_says_so_and_can_go_on(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping_at(monkeypatch, 40)
    assert not run(make_short_config(), folder)
    assert (folder.checkpoints_dir / "000000041.stop").is_dir()
    last = list(read_records(folder.metrics_file))[-1]
    assert (last["kind"], last["state"], last["frames"]) == ("end", "stopped", 41)
    assert run(make_short_config(), folder)
    assert [(record["frames"], record["resume_mode"]) for record in kinds(folder, "resume")] == [(41, "strict")]
    assert [record["frames"] for record in kinds(folder, "evaluation")] == [0, 30, 60]
    assert [record["state"] for record in kinds(folder, "end")] == ["finished"]


def test_seconds_go_on_where_they_stopped(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping_at(monkeypatch, 40)
    assert not run(make_short_config(), folder)
    before = list(read_records(folder.metrics_file))[-2]["seconds"]
    assert run(make_short_config(), folder)
    assert kinds(folder, "resume")[0]["seconds"] >= before > 0
    seconds = [record["seconds"] for record in read_records(folder.metrics_file)]
    assert seconds == sorted(seconds)


@pytest.mark.attack("a listener of a run that fails is left out with a warning, and the run goes on")
def test_whoever_watches_may_fail_without_harm(folder: RunDir) -> None:
    class Breaks(Heard):
        def record(self, record: Any) -> None:
            super().record(record)
            if record["kind"] == "train":
                raise BrokenPipeError

    breaks, heard = Breaks(), Heard()
    run(make_short_config(), folder, breaks, heard)
    assert kinds(folder, "end")[0]["state"] == "finished"
    assert [record["text"] for record in kinds(folder, "warning")] == [
        "Breaks is disabled after an error: BrokenPipeError()"
    ]
    assert breaks.closed
    assert heard.records[-1]["kind"] == "end"


def test_a_run_without_an_update_says_so(folder: RunDir) -> None:
    run(make_short_config(schedule={"frames": 20, "random_steps": 10, "seed_frames": 30}), folder)
    (warning,) = kinds(folder, "warning")
    assert warning["text"].startswith("the run ends without an update: expected schedule.frames of at least")


def test_two_loggers_may_fail_at_the_same_record(folder: RunDir) -> None:
    class Breaks(Heard):
        def record(self, record: Any) -> None:  # noqa: ARG002
            raise BrokenPipeError

    run(make_short_config(), folder, Breaks(), Breaks())
    assert kinds(folder, "end")[0]["state"] == "finished"
    assert len(kinds(folder, "warning")) == 2


def test_half_a_line_at_the_end_of_a_killed_run_is_no_record(folder: RunDir) -> None:
    run(make_short_config(), folder)
    whole = list(read_records(folder.metrics_file))
    with folder.metrics_file.open("a") as file:
        file.write('{"kind": "train", "fra')
    assert list(read_records(folder.metrics_file)) == whole


def poisoning(monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
    """Rewards that are not numbers, in all of the replay, while the run is at these steps."""
    update = OffPolicyTrainer.update

    def poisoned(self: OffPolicyTrainer) -> Any:
        kept = self.replay.steps["reward"].copy()
        if self.counters.steps in steps:
            self.replay.steps["reward"] = float("nan")
        try:
            return update(self)
        finally:
            self.replay.steps["reward"] = kept

    monkeypatch.setattr(OffPolicyTrainer, "update", poisoned)


@pytest.mark.quality("S3")
def test_two_bad_updates_are_left_out_and_told(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoning(monkeypatch, range(40, 42))
    run(make_short_config(), folder)
    assert ["skipped" in record["text"] for record in kinds(folder, "warning")] == [True, True]
    assert kinds(folder, "end")[0]["updates"] == 29


@pytest.mark.quality("S3")
def test_three_bad_updates_in_a_row_bring_back_the_last_good_agent(
    folder: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoning(monkeypatch, range(40, 43))
    run(make_short_config(), folder)
    assert [record["text"].endswith("back to the agent of 000000030") for record in kinds(folder, "warning")] == [
        False,
        False,
        True,
    ]
    assert kinds(folder, "end")[0]["state"] == "finished"


@pytest.mark.quality("S3")
def test_a_run_that_cannot_go_on_says_so(folder: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoning(monkeypatch, range(40, 60))
    with pytest.raises(DivergedError, match="updates in a row were not finite"):
        run(make_short_config(), folder)
    assert kinds(folder, "end")[0]["state"] == "failed"


@pytest.mark.quality("E4")
def test_a_replay_that_does_not_fit_is_refused_before_anything_is_written(folder: RunDir) -> None:
    with pytest.raises(InsufficientSpaceError, match="a replay buffer of 1,000,000,000 steps needs"):
        run(make_short_config(replay={"capacity": 10**9}), folder)
    assert not folder.path.exists()


def test_runs_have_a_folder_by_what_they_are() -> None:
    config = make_config("dmc/hopper_hop", method="sac+re3", seed=4)
    assert default_run_path(config) == Path("runs/dmc-hopper_hop/sac+re3/seed4")


def test_records_are_json_even_if_a_figure_is_not_a_number(folder: RunDir) -> None:
    from manyview.training.loggers import JsonLinesLogger

    folder.path.mkdir()
    lines = JsonLinesLogger(folder.metrics_file)
    lines.record({"kind": "train", "loss": float("nan"), "returns": [1.0, float("inf")], "β": 1})
    lines.close()
    expected = {"kind": "train", "loss": None, "returns": [1.0, None], "β": 1}
    assert json.loads(folder.metrics_file.read_text()) == expected


def test_an_environment_is_closed_if_that_of_other_levels_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str | None] = []

    def make_env(_: RunConfig, *, levels: str | None) -> Any:
        if levels == "test":
            raise EnvError("no such levels")
        return SimpleNamespace(close=lambda: closed.append(levels))

    monkeypatch.setattr(factory, "list_evaluation_levels", lambda _: ("train", "test"))
    monkeypatch.setattr(factory, "make_env", make_env)
    trainer: Any = SimpleNamespace(
        config=make_short_config(), env=SimpleNamespace(metadata={}), env_calls=lambda _: contextlib.nullcontext()
    )
    with pytest.raises(EnvError):
        Evaluator(trainer, tmp_path, log=lambda *_, **__: None)
    assert closed == ["train"]
