"""Checkpoints: saving, loading, pruning and size limits."""

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
def test_an_agent_is_restored_from_a_checkpoint(tmp_path: Path, method: str, channels_last: bool) -> None:
    compute = {"channels_last": channels_last}
    trainer, restored = (
        OffPolicyTrainer(make_short_config(method, compute=compute)),
        OffPolicyTrainer(make_short_config(method, seed=2, compute=compute)),
    )
    for _ in range(40):
        trainer.advance()
    checkpoint.save_checkpoint(
        tmp_path / "1", {"agent": trainer.agent.get_state(), "counters": trainer.counters.get_state()}, {}
    )
    tree = checkpoint.load_checkpoint(tmp_path / "1").state
    restored.agent.load_state(tree["agent"])
    assert tree["counters"] == trainer.counters.get_state()
    batch = trainer.sampler.sample()
    for agent in (trainer.agent, restored.agent):
        agent.update(batch, 40)
    for name, tensor in trainer.agent.get_state()["tensors"].items():
        assert torch.equal(tensor, restored.agent.get_state()["tensors"][name]), name


def test_every_kind_of_value_is_restored(tmp_path: Path) -> None:
    tree = {
        "a": {"b/c": torch.arange(3), "d": [1, 2.5, None, "é", {"e": torch.tensor(True)}]},
        "empty": {},
        "transposed": torch.arange(6).view(2, 3).t(),
        "array": np.arange(3, dtype=np.uint32),
        "number": np.float64(0.1),
        "large": 2**128 - 1,
    }
    checkpoint.save_checkpoint(tmp_path / "x", tree, {"threads": 1})
    loaded = checkpoint.load_checkpoint(tmp_path / "x")
    state = loaded.state
    assert loaded.manifest == {"threads": 1}
    assert isinstance(state["array"], np.ndarray)
    assert (state["array"].dtype, state["array"].tolist()) == (np.uint32, [0, 1, 2])
    assert (state["number"], state["large"]) == (0.1, 2**128 - 1)
    assert torch.equal(state["a"]["b/c"], torch.arange(3))
    assert state["a"]["d"][:4] == [1, 2.5, None, "é"]
    assert state["a"]["d"][4]["e"].item() is True
    assert state["empty"] == {}
    assert torch.equal(state["transposed"], torch.arange(6).view(2, 3).t())


@pytest.mark.quality("E2")
def test_a_new_array_size_leaves_no_type_in_memory() -> None:
    """Arrays of the episode and unlogged steps change their size in each checkpoint."""

    def count_types() -> int:
        gc.collect()
        return sum(issubclass(type(item), type) for item in gc.get_objects())

    checkpoint.serialize_checkpoint({"episode": np.zeros(1), "tail": torch.zeros(1)}, {})
    before = count_types()
    for length in range(1_000, 1_100):
        checkpoint.serialize_checkpoint({"episode": np.zeros(length), "tail": torch.zeros(length)}, {})
    assert count_types() == before


def test_an_existing_checkpoint_is_replaced_only_if_it_is_damaged(tmp_path: Path) -> None:
    directory = tmp_path / "7"
    for value in (1, 2):
        checkpoint.save_checkpoint(directory, {"value": value}, {})
    assert checkpoint.load_checkpoint(directory).state == {"value": 1}
    (directory / "state.json").write_text("{}")
    checkpoint.save_checkpoint(directory, {"value": 3}, {})
    assert checkpoint.load_checkpoint(directory).state == {"value": 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "7.unreadable"]
    assert (tmp_path / "7.unreadable" / "state.json").read_text() == "{}", "the damaged one as it was"


def test_the_newest_checkpoint_has_most_frames_and_is_finished(tmp_path: Path) -> None:
    for name in ("000000900", "000001000.stop", "000001000"):
        checkpoint.save_checkpoint(tmp_path / name, {"name": name}, {})
    (tmp_path / "000002000.unfinished").mkdir()
    assert [directory.name for directory in checkpoint.list_checkpoints(tmp_path)] == [
        "000001000",
        "000001000.stop",
        "000000900",
    ]
    directory, loaded = checkpoint.load_newest_checkpoint(tmp_path)
    assert loaded.state["name"] == directory.name == "000001000"


def test_pruning_keeps_the_newest_and_the_requested_checkpoint(tmp_path: Path) -> None:
    for frames in range(6):
        (tmp_path / checkpoint.format_checkpoint_name(frames)).mkdir()
    (tmp_path / "000000009.unfinished").mkdir()
    checkpoint.prune_checkpoints(tmp_path, 2, keep="000000001")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000001", "000000004", "000000005"]


@pytest.mark.parametrize(
    ("tree", "limit"),
    [
        ({str(number): torch.zeros(1) for number in range(20_000)}, "bytes of the header of state.safetensors"),
        ({"long": "x" * 5_000_000}, "bytes of state.json"),
        ({"many": [0] * 300_000}, "values of state.json"),
    ],
)
def test_a_state_too_large_to_be_loaded_is_not_saved(tmp_path: Path, tree: dict[str, object], limit: str) -> None:
    with pytest.raises(OSError, match=f"expected at most [0-9,]+ {limit}, got .* rollout.envs"):
        checkpoint.save_checkpoint(tmp_path / "1", tree, {})
    assert list(tmp_path.iterdir()) == []
