"""Runs with demonstrations resume bit for bit, and only with the same demonstrations."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.run_comparison import compare_runs, compare_trees
from manyview.training import RunConfig, RunDir, run
from manyview.training.resume import MachineChangedError
from manyview.training.runner import Runner
from tests.integration.durability.test_checkpoint_completeness import find_differences, open_runner_pair
from tests.support.checkpoints import train_and_resume
from tests.support.demonstrations import write_demonstrations
from tests.support.object_graph import collect_values
from tests.support.runners import abandon_runner, advance_to
from tests.support.runs import make_short_config


@pytest.fixture
def demonstrations(tmp_path: Path) -> Path:
    """Return a directory with demonstrations."""
    write_demonstrations(tmp_path / "demonstrations", make_short_config())
    return tmp_path / "demonstrations"


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("method", ["drqv2+mem", "sac+none"])
def test_a_trainer_with_demonstrations_resumes_bit_for_bit(
    tmp_path: Path, demonstrations: Path, method: str, prefetch: bool
) -> None:
    replay = {"capacity": 40, "prefetch": prefetch, "demonstrations": str(demonstrations)}
    trainer, resumed = train_and_resume(make_short_config(method, replay=replay), tmp_path, steps=57)
    for _ in range(20):
        trainer.advance()
        resumed.advance()
    assert compare_trees(trainer.get_state(), resumed.get_state()) == []
    batch, resumed_batch = trainer.last_batch, resumed.last_batch
    assert batch is not None
    assert resumed_batch is not None
    assert (batch.indices < 0).sum() == 4
    assert torch.equal(batch.views, resumed_batch.views)
    for open_trainer in (trainer, resumed):
        open_trainer.close()


@pytest.mark.quality("D1")
def test_every_value_of_a_runner_with_demonstrations_is_restored(
    tmp_path: Path, demonstrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "tests.integration.durability.test_checkpoint_completeness.ALLOWED_DIFFERENCES"
    from tests.integration.durability.test_checkpoint_completeness import ALLOWED_DIFFERENCES

    pattern = r"\.trainer\.sampler\._(own|demonstrations)\._(buffers|pending|prefetcher|next_views_executor)\b.*"
    monkeypatch.setattr(target, {**ALLOWED_DIFFERENCES, pattern: "buffers of a batch, and threads"})
    replay = {"capacity": 40, "demonstrations": str(demonstrations)}
    with open_runner_pair(RunDir(tmp_path / "run"), replay=replay) as runners:
        assert any("demonstrations" in path for path in collect_values(runners[0]))
        assert find_differences(*runners) == []
        for _ in range(5):
            for runner in runners:
                runner.trainer.advance()
        assert find_differences(*runners) == [], "and five steps later"


def test_a_killed_run_ends_like_an_uninterrupted_one(tmp_path: Path, demonstrations: Path) -> None:
    config, reference, killed_run = (
        make_config(demonstrations),
        RunDir(tmp_path / "whole"),
        RunDir(tmp_path / "stopped"),
    )
    assert run(config, reference)
    runner = Runner(config, killed_run)
    advance_to(runner, 45)  # halfway to the next checkpoint
    abandon_runner(runner)
    assert run(config, killed_run)
    assert compare_runs(reference, killed_run) == []


def make_config(demonstrations: Path, **changes: Any) -> RunConfig:
    return make_short_config(replay={"capacity": 40, "demonstrations": str(demonstrations)}, **changes)


def test_other_demonstrations_are_refused_on_resume(tmp_path: Path, demonstrations: Path) -> None:
    config, run_dir = make_config(demonstrations), RunDir(tmp_path / "run")
    runner = Runner(config, run_dir)
    advance_to(runner, 45)
    runner.close()
    assert run_dir.read_manifest()["demonstrations"] is not None
    demonstrations.rename(tmp_path / "before")
    with pytest.raises(FileNotFoundError, match="holds no demonstrations"):
        Runner(config, run_dir)
    write_demonstrations(demonstrations, config, seed=1)
    with pytest.raises(MachineChangedError, match=r"not be bit for bit: demonstrations was [0-9a-f]{64}, is"):
        Runner(config, run_dir)
    write_demonstrations(tmp_path / "as_before", config)
    (tmp_path / "as_before").rename(tmp_path / "unused")
    Runner(config, run_dir, accept_changes=True).close()


def test_equal_demonstrations_in_a_rewritten_folder_are_accepted(tmp_path: Path, demonstrations: Path) -> None:
    config, run_dir = make_config(demonstrations), RunDir(tmp_path / "run")
    runner = Runner(config, run_dir)
    advance_to(runner, 45)
    runner.close()
    demonstrations.rename(tmp_path / "before")
    write_demonstrations(demonstrations, config)
    Runner(config, run_dir).close()


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
def test_configs_that_cannot_use_demonstrations_are_rejected(
    tmp_path: Path, demonstrations: Path, changes: dict[str, Any], message: str
) -> None:
    replay = {"demonstrations": str(demonstrations), **changes.pop("replay", {})}
    with pytest.raises(ValueError, match=message):
        Runner(make_short_config(**changes, replay=replay), RunDir(tmp_path / "run"))


@pytest.mark.parametrize(("fraction", "rows"), [(0.25, 2), (0.5, 4), (0.9, 7)])
def test_every_batch_has_the_fraction_of_demonstrations(
    tmp_path: Path, demonstrations: Path, fraction: float, rows: int
) -> None:
    replay = {"demonstrations": str(demonstrations), "demonstration_fraction": fraction}
    runner = Runner(make_short_config(replay=replay), RunDir(tmp_path / "run"))
    advance_to(runner, 40)
    batch: Any = runner.trainer.get_last_batch()
    assert len(batch.indices) == 8
    assert int((batch.indices < 0).sum()) == rows
    runner.close()
