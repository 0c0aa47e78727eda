"""PPO with MEM on Procgen by the commands: train, resume, evaluate and plot."""

import json
from pathlib import Path

import pytest

from manyview.cli.main import main
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, checkpoint

pytestmark = pytest.mark.simulator

TINY_SETTINGS = [
    "rollout.envs=4",
    "rollout.steps=16",
    "agent.batch_size=32",
    "schedule.frames=192",
    "evaluation.every_frames=96",
    "evaluation.episodes=1",
    "logging.checkpoint_every_frames=64",
    "logging.tensorboard=false",
    "representation.latent_dim=8",
]


def make_train_arguments(out: Path, *options: str, method: str = "ppo+mem") -> list[str]:
    """Return the arguments of `manyview train` for a tiny run."""
    common_options = ["--method", method, "--preset", "cpu", "--out", str(out)]
    return ["train", "procgen/bigfish", *common_options, *options, "--set", *TINY_SETTINGS]


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a finished tiny run."""
    out = tmp_path_factory.mktemp("runs") / "fish"
    assert main(make_train_arguments(out)) == 0
    return out


def test_metrics_cover_both_views_and_both_kinds_of_levels(run_path: Path) -> None:
    run_dir = RunDir(run_path)
    records = list(read_records(run_dir.metrics_file))
    (*_, evaluation) = [record for record in records if record["kind"] == "evaluation"]
    assert evaluation["gap"] == pytest.approx(evaluation["return"] - evaluation["test_return"])
    (*_, train_record) = [record for record in records if record["kind"] == "train"]
    assert {"share/screen", "share/screen_crop", "policy_loss", "reward_int"} <= train_record.keys()
    assert run_dir.read_manifest()["views"] == ["screen", "screen_crop"]
    assert list(run_dir.videos_dir.glob("*.mp4"))
    _, newest_checkpoint = checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)
    assert newest_checkpoint.manifest["resume_mode"] == "fresh episode"


def test_ppo_without_mem_has_the_screen_as_its_only_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(make_train_arguments(tmp_path / "run", "--dry-run", method="ppo+none")) == 0
    output = capsys.readouterr().out
    assert "views         screen\n" in output
    assert "for 16 steps of 4 environments" in output


def test_a_run_resumes_after_a_rollout_with_fresh_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(make_train_arguments(out)) == 0
    run_dir = RunDir(out)
    manifest = run_dir.read_manifest()
    run_dir.write_manifest({name: value for name, value in manifest.items() if name != "finished"})
    for path in checkpoint.list_checkpoints(run_dir.checkpoints_dir)[:1]:
        (path / "state.json").write_text("damaged")
    capsys.readouterr()
    assert main(make_train_arguments(out)) == 0
    output = capsys.readouterr().out
    assert "128 frames  resumed with a fresh episode" in output
    assert "192 frames  finished" in output


def test_a_run_is_evaluated_on_train_or_test_levels(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for levels in ("train", "test"):
        assert main(["evaluate", str(run_path), "--levels", levels, "--episodes", "2", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["levels"], len(result["returns"])) == (levels, 2)


def test_returns_on_test_levels_are_plotted(run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(run_path), "--of", "test_levels", "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 5_000
    assert "after 192 frames" in capsys.readouterr().out


def test_levels_are_refused_for_a_task_without_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "toy"
    assert (
        main(["train", "toy/identity", "--method", "ppo+none", "--out", str(out), "--set", "schedule.frames=600"]) == 0
    )
    assert main(["evaluate", str(out), "--levels", "test"]) != 0
    assert "got levels" in capsys.readouterr().err
