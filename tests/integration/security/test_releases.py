"""A run of every release goes on with this version."""

import shutil
from pathlib import Path

import pytest

from benchmarks.keep_release import NEUTRAL, RELEASES
from manyview.report.policy_rollout import play_episodes
from manyview.train import RunDir, checkpoint
from manyview.train.runner import Runner

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
    assert play_episodes(RELEASES / release, episodes=1).frames > 0


@pytest.mark.parametrize("release", KEPT)
def test_a_kept_run_is_small_and_says_nothing_of_where_it_was_made(release: str) -> None:
    folder = RunDir(RELEASES / release)
    manifests = [
        folder.read_manifest(),
        *map(checkpoint.read_checkpoint_manifest, checkpoint.list_checkpoints(folder.checkpoints_dir)),
    ]
    assert all({name: manifest[name] for name in NEUTRAL} == NEUTRAL for manifest in manifests)
    assert sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file()) < 300_000
