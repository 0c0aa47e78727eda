"""Runs of every release resume and evaluate with this version."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.keep_release import NEUTRAL, RELEASES
from manyview.cli.main import main
from manyview.report.policy_rollout import RunPlayer
from manyview.training import RunDir, checkpoint
from manyview.training.runner import Runner

RELEASE_NAMES = sorted(path.name for path in RELEASES.iterdir())


def test_a_release_is_kept() -> None:
    assert RELEASE_NAMES


@pytest.mark.quality("D9")
@pytest.mark.parametrize("release", RELEASE_NAMES)
def test_a_run_of_an_earlier_release_goes_on_to_its_end(tmp_path: Path, release: str) -> None:
    run_dir = RunDir(shutil.copytree(RELEASES / release, tmp_path / "run"))
    runner = Runner(run_dir.read_config(), run_dir, accept_changes=True)
    try:
        before = runner.trainer.counters.get_state()
        assert runner.run()
    finally:
        runner.close()
    after = runner.trainer.counters.get_state()
    assert before["frames"] > 0
    assert after["frames"] == run_dir.read_config().schedule.frames
    assert after["updates"] - before["updates"] == after["frames"] - before["frames"] > 0
    assert run_dir.is_finished


@pytest.mark.quality("D9")
@pytest.mark.parametrize("release", RELEASE_NAMES)
def test_the_agent_of_an_earlier_release_plays(release: str) -> None:
    with RunPlayer(RELEASES / release) as player:
        assert player.play(episodes=1).frames > 0


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_run_of_an_earlier_format_is_refused_and_stays_as_it_is(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = RunDir(shutil.copytree(RELEASES / RELEASE_NAMES[-1], tmp_path / "run"))
    task = run_dir.read_config().task
    old_config = {"task": task, "method": "drqv2+mem", "seed": 1, "drqv2": {"hidden": 16}, "mem": {"latent_dim": 4}}
    run_dir.config_file.write_text(json.dumps(old_config))
    before = {path: path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file()}
    arguments = ["train", task, "--out", str(run_dir.path)] if command == "train" else ["evaluate", str(run_dir.path)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert (
        f"config.json: written by an earlier version of manyview: expected a run of format {checkpoint.FORMAT}" in error
    )
    assert "got format 2 or 1" in error
    after = {path: path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before


@pytest.mark.parametrize("release", RELEASE_NAMES)
def test_a_kept_run_is_small_and_names_no_machine(release: str) -> None:
    run_dir = RunDir(RELEASES / release)
    manifests = [
        run_dir.read_manifest(),
        *map(checkpoint.read_checkpoint_manifest, checkpoint.list_checkpoints(run_dir.checkpoints_dir)),
    ]
    assert all({name: manifest[name] for name in NEUTRAL} == NEUTRAL for manifest in manifests)
    assert sum(path.stat().st_size for path in run_dir.path.rglob("*") if path.is_file()) < 300_000
