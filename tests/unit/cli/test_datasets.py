"""`manyview export-dataset` and `manyview import-dataset`, and a run with the demonstrations."""

from pathlib import Path

import pytest

from manyview.cli.main import main
from manyview.training import RunDir, run
from tests.support.lerobot import edit_info, make_dataset
from tests.support.runs import make_short_config

TASK = "toy/hidden_goal_continuous"


def test_an_exported_run_is_imported_as_demonstrations_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(make_short_config(), RunDir(tmp_path / "first"))
    assert main(["export-dataset", "first", "--out", "dataset", "--episodes", "2"]) == 0
    captured = capsys.readouterr()
    assert "episode 2 of 2: 10 frames" in captured.err
    assert "frames       20 of 2 episodes" in captured.out
    assert "written to dataset" in captured.out
    assert main(["import-dataset", "dataset", TASK, "--out", "demonstrations"]) == 0
    captured = capsys.readouterr()
    assert "dataset      dataset, 2 episodes, 20 frames at 15 per second" in captured.out
    assert "views        column from observation.images.column, row from observation.images.row" in captured.out
    assert "left out     the last action of 2 episodes: what followed is unknown" in captured.out
    assert "--set replay.demonstrations=demonstrations" in captured.out
    config = make_short_config(replay={"demonstrations": "demonstrations"})
    assert run(config, RunDir(tmp_path / "second"))


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset(tmp_path / "dataset", cameras=("front",))
    arguments = ["import-dataset", str(tmp_path / "dataset"), TASK, "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "no view for the cameras observation.images.front" in capsys.readouterr().err
    assert main([*arguments, "--cameras", "nonsense"]) == 2
    assert "invalid --cameras: expected NAME=VALUE" in capsys.readouterr().err
    edit_info(tmp_path / "dataset", codebase_version="\x1b[2J\x1b[31m")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "unsupported codebase_version" in error
    assert "\x1b" not in error
    assert len(error.splitlines()) == 1
    assert main(["import-dataset", str(tmp_path), "toy/hidden_goal", "--out", str(tmp_path / "out")]) == 2
    assert main(["export-dataset", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_cameras_are_mapped_skipped_and_masked_by_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset(tmp_path / "dataset", cameras=("top", "side"), shape=(20, 20))
    arguments = ["import-dataset", str(tmp_path / "dataset"), TASK, "--out", str(tmp_path / "out")]
    options = ["--cameras", "row=top", "--skip-cameras", "side", "--mask-missing", "--env.frame-stack", "2"]
    assert main([*arguments, *options]) == 0
    assert "views        column masked, row from observation.images.top" in capsys.readouterr().out
