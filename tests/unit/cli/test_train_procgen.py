"""PPO and MEM on a real game, by the commands a user types: train, stop, go on, evaluate, plot."""

import json
from pathlib import Path

import pytest

from manyview.cli.main import main
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, checkpoint

pytestmark = pytest.mark.simulator

TINY = [
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


def command(out: Path, *more: str, method: str = "ppo+mem") -> list[str]:
    names = ["--method", method, "--preset", "cpu", "--out", str(out)]
    return ["train", "procgen/bigfish", *names, *more, "--set", *TINY]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "fish"
    assert main(command(out)) == 0
    return out


def test_a_run_tells_of_both_views_and_of_both_kinds_of_levels(trained: Path) -> None:
    folder = RunDir(trained)
    told = list(read_records(folder.metrics_file))
    (*_, evaluation) = [record for record in told if record["kind"] == "evaluation"]
    assert evaluation["gap"] == pytest.approx(evaluation["return"] - evaluation["test_return"])
    (*_, train) = [record for record in told if record["kind"] == "train"]
    assert {"share/screen", "share/screen_crop", "policy_loss", "reward_int"} <= train.keys()
    assert folder.read_manifest()["views"] == ["screen", "screen_crop"]
    assert list(folder.videos_dir.glob("*.mp4"))
    _, newest = checkpoint.load_newest_checkpoint(folder.checkpoints_dir)
    assert newest.manifest["resume_mode"] == "fresh episode"


def test_the_base_alone_sees_the_screen_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path / "run", "--dry-run", method="ppo+none")) == 0
    said = capsys.readouterr().out
    assert "views         screen\n" in said
    assert "for 16 steps of 4 environments" in said


def test_it_goes_on_at_an_edge_with_fresh_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(command(out)) == 0
    folder = RunDir(out)
    manifest = folder.read_manifest()
    folder.write_manifest({name: value for name, value in manifest.items() if name != "finished"})
    for path in checkpoint.list_checkpoints(folder.checkpoints_dir)[:1]:
        (path / "state.json").write_text("damaged")
    capsys.readouterr()
    assert main(command(out)) == 0
    said = capsys.readouterr().out
    assert "128 frames  resumed with a fresh episode" in said
    assert "192 frames  finished" in said


def test_it_is_evaluated_on_either_levels(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for levels in ("train", "test"):
        assert main(["evaluate", str(trained), "--levels", levels, "--episodes", "2", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["levels"], len(found["returns"])) == (levels, 2)


def test_test_levels_are_drawn_too(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(trained), "--of", "test_levels", "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").stat().st_size > 5_000
    assert "after 192 frames" in capsys.readouterr().out


def test_levels_are_for_tasks_that_have_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "toy"
    assert (
        main(["train", "toy/identity", "--method", "ppo+none", "--out", str(out), "--set", "schedule.frames=600"]) == 0
    )
    assert main(["evaluate", str(out), "--levels", "test"]) != 0
    assert "got levels" in capsys.readouterr().err
