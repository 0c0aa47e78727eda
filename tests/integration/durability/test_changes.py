"""Resuming with other versions, threads or number types needs `--accept-changes`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyview.cli.main import main
from manyview.report.metrics_file import read_records
from manyview.training import RunDir, manifest
from manyview.training.runner import Runner
from tests.support.runners import abandon_runner, advance_to, make_quick_config

CONFIG = make_quick_config()


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Return the run directory of a killed run."""
    killed_run = RunDir(tmp_path / "run")
    runner = Runner(CONFIG, killed_run)
    advance_to(runner, 45)
    abandon_runner(runner)
    return killed_run


def train(run_dir: RunDir, *options: str) -> int:
    """Repeat the command of the run and return its exit status."""
    return main(["train", CONFIG.task, "--config", str(run_dir.config_file), "--out", str(run_dir.path), *options])


CHANGES: dict[str, tuple[list[str], str]] = {
    "version": ([], "versions.torch was 2.0.0-other, is"),
    "threads": (["--set", "compute.threads=2"], "threads was 1, is 2"),
    "dtype": (["--set", "compute.precision=bfloat16"], "dtype was float32, is bfloat16"),
}


@pytest.mark.quality("D8")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_rejected_unless_it_is_accepted(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if change == "version":
        find_version = manifest._find_version
        monkeypatch.setattr(
            manifest, "_find_version", lambda name: "2.0.0-other" if name == "torch" else find_version(name)
        )
    run_dir = RunDir(tmp_path / "run")
    runner = Runner(CONFIG, run_dir)
    advance_to(runner, 45)
    abandon_runner(runner)
    monkeypatch.undo()

    options, message = CHANGES[change]
    before = read_files(run_dir)
    assert train(run_dir, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "--accept-changes" in error
    assert read_files(run_dir) == before, "nothing is touched"

    assert train(run_dir, *options, "--accept-changes") == 0
    assert "resumed on other versions or another machine than before, so not bit for bit" in capsys.readouterr().out
    assert run_dir.is_finished
    assert run_dir.read_manifest()["resumed_at"] == {"frames": 40, "resume_mode": "changed"}
    resume_modes = [
        record["resume_mode"] for record in read_records(run_dir.metrics_file) if record["kind"] == "resume"
    ]
    assert resume_modes == ["changed"]


def read_files(run_dir: RunDir) -> dict[str, Any]:
    """Return the contents of all files of a run."""
    return {str(path): path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file()}


@pytest.mark.quality("D8")
def test_a_change_that_was_accepted_stays_in_the_manifest(run_dir: RunDir) -> None:
    changed_config = replace(CONFIG, compute=replace(CONFIG.compute, precision="bfloat16"))
    runner = Runner(changed_config, run_dir, accept_changes=True)
    advance_to(runner, 60)
    abandon_runner(runner)
    runner = Runner(changed_config, run_dir)
    runner.run()
    runner.close()
    manifest = run_dir.read_manifest()
    assert manifest["resumed_at"]["resume_mode"] == "strict"
    assert [process.get("resumed_at", {}).get("resume_mode") for process in manifest["earlier"]] == [None, "changed"]
