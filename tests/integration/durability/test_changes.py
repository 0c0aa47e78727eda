"""Other versions, threads or number types than those a run began with: never silently."""

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
def folder(tmp_path: Path) -> RunDir:
    """Of a run that was killed."""
    found = RunDir(tmp_path / "run")
    session = Runner(CONFIG, found)
    advance_to(session, 45)
    abandon_runner(session)
    return found


def train(folder: RunDir, *options: str) -> int:
    """The same command again."""
    return main(["train", CONFIG.task, "--config", str(folder.config_file), "--out", str(folder.path), *options])


CHANGES: dict[str, tuple[list[str], str]] = {
    "version": ([], "versions.torch was 2.0.0-other, is"),
    "threads": (["--set", "compute.threads=2"], "threads was 1, is 2"),
    "dtype": (["--set", "compute.precision=bfloat16"], "dtype was float32, is bfloat16"),
}


@pytest.mark.quality("D8")
@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_said_refused_and_accepted_only_aloud(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if change == "version":
        real = manifest._find_version
        monkeypatch.setattr(manifest, "_find_version", lambda name: "2.0.0-other" if name == "torch" else real(name))
    folder = RunDir(tmp_path / "run")
    session = Runner(CONFIG, folder)
    advance_to(session, 45)
    abandon_runner(session)
    monkeypatch.undo()

    options, says = CHANGES[change]
    before = contents(folder)
    assert train(folder, *options) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "--accept-changes" in said
    assert contents(folder) == before, "nothing is touched"

    assert train(folder, *options, "--accept-changes") == 0
    assert "resumed on other versions or another machine than before, so not bit for bit" in capsys.readouterr().out
    assert folder.is_finished
    assert folder.read_manifest()["resumed_at"] == {"frames": 40, "resume_mode": "changed"}
    told = [record["resume_mode"] for record in read_records(folder.metrics_file) if record["kind"] == "resume"]
    assert told == ["changed"]


def contents(folder: RunDir) -> dict[str, Any]:
    return {str(path): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


@pytest.mark.quality("D8")
def test_a_change_that_was_accepted_stays_in_the_manifest(folder: RunDir) -> None:
    other = replace(CONFIG, compute=replace(CONFIG.compute, precision="bfloat16"))
    session = Runner(other, folder, accept_changes=True)
    advance_to(session, 60)
    abandon_runner(session)
    session = Runner(other, folder)
    session.run()
    session.close()
    manifest = folder.read_manifest()
    assert manifest["resumed_at"]["resume_mode"] == "strict"
    assert [process.get("resumed_at", {}).get("resume_mode") for process in manifest["earlier"]] == [None, "changed"]
