"""Checkpoints: a tree goes into a folder and comes back."""

from pathlib import Path

import pytest
import torch

from manyview.train import checkpoint
from manyview.train.trainer import Trainer
from tests.train.runs import short_run


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("method", ["drqv2+mem", "sac+curl+re3"])
def test_an_agent_comes_back_from_a_folder(tmp_path: Path, method: str, channels_last: bool) -> None:
    machine = {"channels_last": channels_last}
    trainer, other = Trainer(short_run(method, machine=machine)), Trainer(short_run(method, seed=2, machine=machine))
    for _ in range(40):
        trainer.advance()
    checkpoint.save(tmp_path / "1", {"agent": trainer.agent.state(), "clock": trainer.clock.state()})
    tree = checkpoint.load(tmp_path / "1")
    other.agent.load_state(tree["agent"])
    assert tree["clock"] == trainer.clock.state()
    batch = trainer.sampler.next()
    for agent in (trainer.agent, other.agent):
        agent.update(batch, 40)
    for name, tensor in trainer.agent.state()["tensors"].items():
        assert torch.equal(tensor, other.agent.state()["tensors"][name]), name


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    tree = {
        "a": {"b/c": torch.arange(3), "d": [1, 2.5, None, "é", {"e": torch.tensor(True)}]},
        "empty": {},
        "transposed": torch.arange(6).view(2, 3).t(),
    }
    checkpoint.save(tmp_path / "x", tree)
    back = checkpoint.load(tmp_path / "x")
    assert torch.equal(back["a"]["b/c"], torch.arange(3))
    assert back["a"]["d"][:4] == [1, 2.5, None, "é"]
    assert back["a"]["d"][4]["e"].item() is True
    assert back["empty"] == {}
    assert torch.equal(back["transposed"], torch.arange(6).view(2, 3).t())


def test_one_written_over_another_leaves_the_new_one_alone(tmp_path: Path) -> None:
    for value in (1, 2):
        checkpoint.save(tmp_path / "7", {"value": value})
    assert checkpoint.load(tmp_path / "7") == {"value": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_the_newest_is_the_one_with_most_frames_and_nothing_unfinished(tmp_path: Path) -> None:
    for name in ("000000900", "000001000", "000002000.unfinished"):
        (tmp_path / name).mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "000001000"
    assert checkpoint.newest(tmp_path / "nowhere") is None


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    for name in ("1", "20", "3"):
        (tmp_path / name).mkdir()
    checkpoint.keep_newest(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["20", "3"]
