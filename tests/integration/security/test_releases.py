"""A run of every release goes on with this version."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.keep_release import NEUTRAL, RELEASES
from manyview.cli.main import main
from manyview.report.policy_rollout import RunPlayer
from manyview.training import RunDir, checkpoint
from manyview.training.runner import Runner

KEPT = sorted(path.name for path in RELEASES.iterdir())


def test_a_release_is_kept() -> None:
    assert KEPT


@pytest.mark.quality("D9")
@pytest.mark.parametrize("release", KEPT)
def test_a_run_of_an_earlier_release_goes_on_to_its_end(tmp_path: Path, release: str) -> None:
    folder = RunDir(shutil.copytree(RELEASES / release, tmp_path / "run"))
    session = Runner(folder.read_config(), folder, accept_changes=True)
    try:
        before = session.trainer.counters.get_state()
        assert session.run()
    finally:
        session.close()
    after = session.trainer.counters.get_state()
    assert before["frames"] > 0
    assert after["frames"] == folder.read_config().schedule.frames
    assert after["updates"] - before["updates"] == after["frames"] - before["frames"] > 0
    assert folder.is_finished


@pytest.mark.quality("D9")
@pytest.mark.parametrize("release", KEPT)
def test_the_agent_of_an_earlier_release_plays(release: str) -> None:
    with RunPlayer(RELEASES / release) as player:
        assert player.play(episodes=1).frames > 0


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_run_of_an_earlier_format_is_refused_and_stays_as_it_is(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunDir(shutil.copytree(RELEASES / KEPT[-1], tmp_path / "run"))
    task = folder.read_config().task
    earlier = {"task": task, "method": "drqv2+mem", "seed": 1, "drqv2": {"hidden": 16}, "mem": {"latent_dim": 4}}
    folder.config_file.write_text(json.dumps(earlier))
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    arguments = ["train", task, "--out", str(folder.path)] if command == "train" else ["evaluate", str(folder.path)]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert (
        f"config.json: written by an earlier version of manyview: expected a run of format {checkpoint.FORMAT}" in said
    )
    assert "got format 2 or 1" in said
    after = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before


@pytest.mark.parametrize("release", KEPT)
def test_a_kept_run_is_small_and_says_nothing_of_where_it_was_made(release: str) -> None:
    folder = RunDir(RELEASES / release)
    manifests = [
        folder.read_manifest(),
        *map(checkpoint.read_checkpoint_manifest, checkpoint.list_checkpoints(folder.checkpoints_dir)),
    ]
    assert all({name: manifest[name] for name in NEUTRAL} == NEUTRAL for manifest in manifests)
    assert sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file()) < 300_000
