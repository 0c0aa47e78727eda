"""`manyview export-dataset` and `manyview import-dataset`, typed as a user would, and a run that uses the result."""

from pathlib import Path

import pytest

from manyview.cli.main import main
from manyview.training import RunDir, run
from tests.support.lerobot import edit_info, make_dataset
from tests.support.runs import make_short_config

TOY = "toy/hidden_goal_continuous"


def test_from_a_run_to_a_run_with_demonstrations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(make_short_config(), RunDir(tmp_path / "first"))
    assert main(["export-dataset", "first", "--out", "dataset", "--episodes", "2"]) == 0
    said = capsys.readouterr()
    assert "episode 2 of 2: 10 frames" in said.err
    assert "frames       20 of 2 episodes" in said.out
    assert "written to dataset" in said.out
    assert main(["import-dataset", "dataset", TOY, "--out", "demonstrations"]) == 0
    said = capsys.readouterr()
    assert "dataset      dataset, 2 episodes, 20 frames at 15 per second" in said.out
    assert "views        column from observation.images.column, row from observation.images.row" in said.out
    assert "left out     the last action of 2 episodes: what followed is unknown" in said.out
    assert "--set replay.demonstrations=demonstrations" in said.out
    config = make_short_config(replay={"demonstrations": "demonstrations"})
    assert run(config, RunDir(tmp_path / "second"))


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset(tmp_path / "dataset", cameras=("front",))
    arguments = ["import-dataset", str(tmp_path / "dataset"), TOY, "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "no view for the cameras observation.images.front" in capsys.readouterr().err
    assert main([*arguments, "--cameras", "nonsense"]) == 2
    assert "invalid --cameras: expected NAME=VALUE" in capsys.readouterr().err
    edit_info(tmp_path / "dataset", codebase_version="\x1b[2J\x1b[31m")
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "unsupported codebase_version" in said
    assert "\x1b" not in said
    assert len(said.splitlines()) == 1
    assert main(["import-dataset", str(tmp_path), "toy/hidden_goal", "--out", str(tmp_path / "out")]) == 2
    assert main(["export-dataset", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_a_camera_of_another_name_is_given_with_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset(tmp_path / "dataset", cameras=("top", "side"), shape=(20, 20))
    arguments = ["import-dataset", str(tmp_path / "dataset"), TOY, "--out", str(tmp_path / "out")]
    options = ["--cameras", "row=top", "--skip-cameras", "side", "--mask-missing", "--env.frame-stack", "2"]
    assert main([*arguments, *options]) == 0
    assert "views        column masked, row from observation.images.top" in capsys.readouterr().out
