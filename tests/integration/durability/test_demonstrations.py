"""A run with demonstrations resumes bit for bit, and not with others."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.run_comparison import compare_runs, compare_trees
from manyview.training import RunConfig, RunDir, run
from manyview.training.resume import MachineChangedError
from manyview.training.runner import Runner
from tests.integration.durability.test_checkpoint_completeness import forgotten, two_sessions
from tests.support.checkpoints import train_and_resume
from tests.support.demonstrations import write_demonstrations
from tests.support.object_graph import collect_values
from tests.support.runners import abandon_runner, advance_to
from tests.support.runs import make_short_config


@pytest.fixture
def demonstrations(tmp_path: Path) -> Path:
    write_demonstrations(tmp_path / "demonstrations", make_short_config())
    return tmp_path / "demonstrations"


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("method", ["drqv2+mem", "sac+none"])
def test_a_trainer_with_demonstrations_goes_on_to_the_bit(
    tmp_path: Path, demonstrations: Path, method: str, prefetch: bool
) -> None:
    replay = {"capacity": 40, "prefetch": prefetch, "demonstrations": str(demonstrations)}
    trainer, twin = train_and_resume(make_short_config(method, replay=replay), tmp_path, steps=57)
    for _ in range(20):
        trainer.advance()
        twin.advance()
    assert compare_trees(trainer.get_state(), twin.get_state()) == []
    batch, other = trainer.last_batch, twin.last_batch
    assert batch is not None
    assert other is not None
    assert (batch.indices < 0).sum() == 4
    assert torch.equal(batch.views, other.views)
    for each in (trainer, twin):
        each.close()


@pytest.mark.quality("D1")
def test_every_value_of_a_session_with_demonstrations_comes_back(
    tmp_path: Path, demonstrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "tests.integration.durability.test_checkpoint_completeness.MAY_DIFFER"
    from tests.integration.durability.test_checkpoint_completeness import MAY_DIFFER

    parts = r"\.trainer\.sampler\._(own|demonstrations)\._(buffers|pending|prefetcher|next_views_executor)\b.*"
    monkeypatch.setattr(module, {**MAY_DIFFER, parts: "buffers of a batch, and threads"})
    replay = {"capacity": 40, "demonstrations": str(demonstrations)}
    with two_sessions(RunDir(tmp_path / "run"), replay=replay) as sessions:
        assert any("demonstrations" in path for path in collect_values(sessions[0]))
        assert forgotten(*sessions) == []
        for _ in range(5):
            for session in sessions:
                session.trainer.advance()
        assert forgotten(*sessions) == [], "and five steps later"


def test_a_run_that_was_killed_ends_as_one_that_did_not(tmp_path: Path, demonstrations: Path) -> None:
    config, whole, stopped = make_config(demonstrations), RunDir(tmp_path / "whole"), RunDir(tmp_path / "stopped")
    assert run(config, whole)
    session = Runner(config, stopped)
    advance_to(session, 45)  # half of the way to the next checkpoint
    abandon_runner(session)
    assert run(config, stopped)
    assert compare_runs(whole, stopped) == []


def make_config(demonstrations: Path, **changes: Any) -> RunConfig:
    return make_short_config(replay={"capacity": 40, "demonstrations": str(demonstrations)}, **changes)


def test_other_demonstrations_are_refused_on_resume(tmp_path: Path, demonstrations: Path) -> None:
    config, folder = make_config(demonstrations), RunDir(tmp_path / "run")
    session = Runner(config, folder)
    advance_to(session, 45)
    session.close()
    assert folder.read_manifest()["demonstrations"] is not None
    demonstrations.rename(tmp_path / "before")
    with pytest.raises(FileNotFoundError, match="holds no demonstrations"):
        Runner(config, folder)
    write_demonstrations(demonstrations, config, seed=1)
    with pytest.raises(MachineChangedError, match=r"not be bit for bit: demonstrations was [0-9a-f]{64}, is"):
        Runner(config, folder)
    write_demonstrations(tmp_path / "as_before", config)
    (tmp_path / "as_before").rename(tmp_path / "unused")
    Runner(config, folder, accept_changes=True).close()


def test_equal_demonstrations_in_a_rewritten_folder_are_accepted(tmp_path: Path, demonstrations: Path) -> None:
    config, folder = make_config(demonstrations), RunDir(tmp_path / "run")
    session = Runner(config, folder)
    advance_to(session, 45)
    session.close()
    demonstrations.rename(tmp_path / "before")
    write_demonstrations(demonstrations, config)
    Runner(config, folder).close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "drqv2+curl+re3"}, "expected a bonus that searches the batch, got re3"),
        ({"replay": {"demonstration_fraction": 0.0}}, "at least one demonstrated and one own row"),
        ({"replay": {"demonstration_fraction": 0.99}}, "at least one demonstrated and one own row"),
        ({"replay": {"demonstration_fraction": 1.5}}, "demonstration_fraction"),
        ({"method": "ppo+mem", "task": "toy/hidden_goal"}, "expected an off-policy agent, got ppo"),
        ({"scale": {"actors": 1, "chunk_steps": 10}}, "expected scale.actors=0, got 1"),
        ({"task": "toy/cue_continuous"}, "other views than the run|other action size"),
    ],
)
def test_runs_that_cannot_use_them_say_why(
    tmp_path: Path, demonstrations: Path, changes: dict[str, Any], message: str
) -> None:
    replay = {"demonstrations": str(demonstrations), **changes.pop("replay", {})}
    with pytest.raises(ValueError, match=message):
        Runner(make_short_config(**changes, replay=replay), RunDir(tmp_path / "run"))


@pytest.mark.parametrize(("fraction", "rows"), [(0.25, 2), (0.5, 4), (0.9, 7)])
def test_the_fraction_is_that_of_every_batch(tmp_path: Path, demonstrations: Path, fraction: float, rows: int) -> None:
    replay = {"demonstrations": str(demonstrations), "demonstration_fraction": fraction}
    session = Runner(make_short_config(replay=replay), RunDir(tmp_path / "run"))
    advance_to(session, 40)
    batch: Any = session.trainer.get_last_batch()
    assert len(batch.indices) == 8
    assert int((batch.indices < 0).sum()) == rows
    session.close()
