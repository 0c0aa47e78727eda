"""Checkpoints: a tree goes into a folder and comes back."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from manyview.training import checkpoint
from manyview.training.off_policy import OffPolicyTrainer
from tests.support.runs import make_short_config


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("method", ["drqv2+mem", "sac+curl+re3", "sac+pixel+mem"])
def test_an_agent_comes_back_from_a_folder(tmp_path: Path, method: str, channels_last: bool) -> None:
    compute = {"channels_last": channels_last}
    trainer, other = (
        OffPolicyTrainer(make_short_config(method, compute=compute)),
        OffPolicyTrainer(make_short_config(method, seed=2, compute=compute)),
    )
    for _ in range(40):
        trainer.advance()
    checkpoint.save_checkpoint(
        tmp_path / "1", {"agent": trainer.agent.get_state(), "counters": trainer.counters.get_state()}, {}
    )
    tree = checkpoint.load_checkpoint(tmp_path / "1").state
    other.agent.load_state(tree["agent"])
    assert tree["counters"] == trainer.counters.get_state()
    batch = trainer.sampler.sample()
    for agent in (trainer.agent, other.agent):
        agent.update(batch, 40)
    for name, tensor in trainer.agent.get_state()["tensors"].items():
        assert torch.equal(tensor, other.agent.get_state()["tensors"][name]), name


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    tree = {
        "a": {"b/c": torch.arange(3), "d": [1, 2.5, None, "é", {"e": torch.tensor(True)}]},
        "empty": {},
        "transposed": torch.arange(6).view(2, 3).t(),
        "array": np.arange(3, dtype=np.uint32),
        "number": np.float64(0.1),
        "large": 2**128 - 1,
    }
    checkpoint.save_checkpoint(tmp_path / "x", tree, {"threads": 1})
    found = checkpoint.load_checkpoint(tmp_path / "x")
    back = found.state
    assert found.manifest == {"threads": 1}
    assert isinstance(back["array"], np.ndarray)
    assert (back["array"].dtype, back["array"].tolist()) == (np.uint32, [0, 1, 2])
    assert (back["number"], back["large"]) == (0.1, 2**128 - 1)
    assert torch.equal(back["a"]["b/c"], torch.arange(3))
    assert back["a"]["d"][:4] == [1, 2.5, None, "é"]
    assert back["a"]["d"][4]["e"].item() is True
    assert back["empty"] == {}
    assert torch.equal(back["transposed"], torch.arange(6).view(2, 3).t())


@pytest.mark.quality("E2")
def test_a_new_size_leaves_nothing_behind() -> None:
    """Episodes and what is not yet in the log have another length in each checkpoint."""

    def kept_types() -> int:
        gc.collect()
        return sum(issubclass(type(kept), type) for kept in gc.get_objects())

    checkpoint.serialize_checkpoint({"episode": np.zeros(1), "tail": torch.zeros(1)}, {})
    before = kept_types()
    for length in range(1_000, 1_100):
        checkpoint.serialize_checkpoint({"episode": np.zeros(length), "tail": torch.zeros(length)}, {})
    assert kept_types() == before


def test_one_of_the_same_moment_stays_unless_it_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    for value in (1, 2):
        checkpoint.save_checkpoint(folder, {"value": value}, {})
    assert checkpoint.load_checkpoint(folder).state == {"value": 1}
    (folder / "state.json").write_text("{}")
    checkpoint.save_checkpoint(folder, {"value": 3}, {})
    assert checkpoint.load_checkpoint(folder).state == {"value": 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "7.unreadable"]
    assert (tmp_path / "7.unreadable" / "state.json").read_text() == "{}", "the damaged one as it was"


def test_the_newest_is_the_one_with_most_frames_and_nothing_unfinished(tmp_path: Path) -> None:
    for name in ("000000900", "000001000.stop", "000001000"):
        checkpoint.save_checkpoint(tmp_path / name, {"name": name}, {})
    (tmp_path / "000002000.unfinished").mkdir()
    assert [folder.name for folder in checkpoint.list_checkpoints(tmp_path)] == [
        "000001000",
        "000001000.stop",
        "000000900",
    ]
    folder, found = checkpoint.load_newest_checkpoint(tmp_path)
    assert found.state["name"] == folder.name == "000001000"


def test_only_so_many_are_kept_and_the_one_that_is_asked_for(tmp_path: Path) -> None:
    for frames in range(6):
        (tmp_path / checkpoint.format_checkpoint_name(frames)).mkdir()
    (tmp_path / "000000009.unfinished").mkdir()
    checkpoint.prune_checkpoints(tmp_path, 2, keep="000000001")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000001", "000000004", "000000005"]


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({str(number): torch.zeros(1) for number in range(20_000)}, "bytes of the header of state.safetensors"),
        ({"long": "x" * 5_000_000}, "bytes of state.json"),
        ({"many": [0] * 300_000}, "values of state.json"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, tree: dict[str, object], named: str) -> None:
    with pytest.raises(OSError, match=f"expected at most [0-9,]+ {named}, got .* rollout.envs"):
        checkpoint.save_checkpoint(tmp_path / "1", tree, {})
    assert list(tmp_path.iterdir()) == []
