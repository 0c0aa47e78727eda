"""Which frames the intrinsic reward sees, and what that costs."""

from typing import Any

import pytest
import torch

from manyview.agents import DrQv2Config, SACConfig
from manyview.agents.base import RewardFrames
from tests.support.batches import agent, batch

KINDS = ("drqv2", "sac")
every_paid = pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind in KINDS for method in ("mem", "re3")]
)


def paid(kind: str, method: str, frames: RewardFrames, *, shifts: int) -> float:
    """The mean r̂ of one batch in an agent's first update, for a seed of the shifts alone."""
    learner = agent(kind, method, reward_frames=frames)
    learner.generator.manual_seed(shifts)
    return float(learner.update(batch(), 0)["reward_int"])


@every_paid
def test_clean_frames_pay_the_same_whatever_the_shift(kind: str, method: str) -> None:
    assert paid(kind, method, "clean", shifts=1) == paid(kind, method, "clean", shifts=2)


@pytest.mark.parametrize("kind", KINDS)
def test_shifted_frames_pay_what_the_critic_sees(kind: str) -> None:
    assert paid(kind, "mem", "shifted", shifts=1) != paid(kind, "mem", "shifted", shifts=2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_of_its_own_sees_clean_frames_anyway(kind: str) -> None:
    assert paid(kind, "re3", "shifted", shifts=1) == paid(kind, "re3", "clean", shifts=2)


def encodings(learner: Any) -> int:
    """How often the representation encodes a batch in one update."""
    calls = []
    encode = learner.representation.encode

    def counted(*views_and_mask: torch.Tensor) -> Any:
        calls.append(1)
        return encode(*views_and_mask)

    learner.representation.encode = counted
    learner.update(batch(), 0)
    return len(calls)


@pytest.mark.parametrize("kind", KINDS)
def test_clean_frames_cost_an_encoding_and_shifted_ones_none(kind: str) -> None:
    without = encodings(agent(kind, "none"))
    assert encodings(agent(kind, "mem", reward_frames="shifted")) == without
    assert encodings(agent(kind, "mem", reward_frames="clean")) == without + 1


@pytest.mark.parametrize("kind", KINDS)
def test_clean_frames_cost_nothing_where_nothing_is_shifted(kind: str) -> None:
    assert encodings(agent(kind, "mem", shift_pixels=0)) == encodings(agent(kind, "none"))


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_common_shift_equal_states_stay_equal(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one observation: nothing in it is rare, unless each copy is moved by itself."""
    data = batch()
    data.views[:] = data.views[0].clone()
    learner = agent(kind, "mem", reward_frames="shifted")
    assert learner.shift_mode == "common"
    assert learner.update(data, 0)["reward_int"] < 1e-3
    monkeypatch.setattr(type(learner), "shift_mode", "each")
    assert learner.update(data, 0)["reward_int"] > 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "frames"), [("mem", "clean"), ("none", "shifted"), ("re3", "shifted")])
def test_images_are_shifted_one_by_one_where_no_reward_sees_it(kind: str, method: str, frames: RewardFrames) -> None:
    assert agent(kind, method, reward_frames=frames).shift_mode == "each"


@pytest.mark.parametrize("config", [DrQv2Config, SACConfig])
def test_a_misspelt_choice_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match=r"expected reward_frames to be one of .*got 'cleen'"):
        config(reward_frames="cleen")
