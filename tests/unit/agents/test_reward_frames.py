"""Which frames the intrinsic reward sees, and what that costs."""

from typing import Any

import pytest
import torch

from manyview.methods import MEMBonusConfig
from manyview.methods.bonuses.mem import RewardFrames
from tests.support.batches import make_agent, make_batch

KINDS = ("drqv2", "sac")
every_paid = pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind in KINDS for method in ("mem", "re3", "pixel+mem")]
)


def paid(kind: str, method: str, frames: RewardFrames, *, shifts: int) -> float:
    """The mean r̂ of one batch in an agent's first update, for a seed of the shifts alone."""
    learner = make_agent(kind, method, reward_frames=frames)
    learner.generator.manual_seed(shifts)
    return float(learner.update(make_batch(), 0)["reward_int"])


@every_paid
def test_clean_frames_pay_the_same_whatever_the_shift(kind: str, method: str) -> None:
    assert paid(kind, method, "clean", shifts=1) == paid(kind, method, "clean", shifts=2)


@pytest.mark.parametrize("kind", KINDS)
def test_augmented_frames_pay_what_the_critic_sees(kind: str) -> None:
    assert paid(kind, "mem", "augmented", shifts=1) != paid(kind, "mem", "augmented", shifts=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["re3", "pixel+mem"])
def test_an_encoder_of_its_own_sees_clean_frames_anyway(kind: str, method: str) -> None:
    assert paid(kind, method, "augmented", shifts=1) == paid(kind, method, "clean", shifts=2)


def encodings(learner: Any, *, target: bool = False) -> int:
    """How often the representation, or its target network, encodes a batch in one update."""
    calls = []
    encoder = learner.target_representation if target else learner.representation
    encode = encoder.encode

    def counted(*views_and_mask: torch.Tensor) -> Any:
        calls.append(1)
        return encode(*views_and_mask)

    encoder.encode = counted
    learner.update(make_batch()._replace(neighbor_distances=torch.rand(16, 3, 3)), 0)
    return len(calls)


@pytest.mark.parametrize("kind", KINDS)
def test_clean_frames_cost_an_encoding_and_augmented_ones_none(kind: str) -> None:
    without = encodings(make_agent(kind, "none"))
    assert encodings(make_agent(kind, "mem", reward_frames="augmented")) == without
    assert encodings(make_agent(kind, "mem", reward_frames="clean")) == without + 1
    assert encodings(make_agent(kind, "pixel+mem")) == without, "the policy's encoder is not the bonus's"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [False, True])
def test_features_of_the_whole_buffer_cost_no_encoding_and_no_common_shift(kind: str, target: bool) -> None:
    changes: Any = {"search": "buffer", "target_encoder": target}
    learner = make_agent(kind, "mem", reward_frames="augmented", bonus_changes=changes, encoder_tau=0.5)
    assert learner.shift_mode == "each"
    without = make_agent(kind, "none", encoder_tau=0.5)
    assert encodings(learner, target=target) == encodings(without, target=target)


@pytest.mark.parametrize("kind", KINDS)
def test_clean_and_augmented_frames_pay_the_same_where_nothing_is_shifted(kind: str) -> None:
    learners = [make_agent(kind, "mem", reward_frames=frames, shift_pixels=0) for frames in ("clean", "augmented")]
    clean, augmented = (learner.update(make_batch(), 0)["reward_int"] for learner in learners)
    assert clean == augmented > 0


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_common_shift_equal_states_stay_equal(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one observation: nothing in it is rare, unless each copy is moved by itself."""
    data = make_batch()
    data.views[:] = data.views[0].clone()
    learner = make_agent(kind, "mem", reward_frames="augmented")
    assert learner.shift_mode == "common"
    assert learner.update(data, 0)["reward_int"] < 1e-3
    monkeypatch.setattr(type(learner), "shift_mode", "each")
    assert learner.update(data, 0)["reward_int"] > 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "frames"),
    [("mem", "clean"), ("none", "augmented"), ("re3", "augmented"), ("pixel+mem", "augmented")],
)
def test_images_are_shifted_one_by_one_where_no_reward_sees_it(kind: str, method: str, frames: RewardFrames) -> None:
    assert make_agent(kind, method, reward_frames=frames).shift_mode == "each"


def test_a_misspelt_choice_is_refused() -> None:
    misspelt: Any = "cleen"
    with pytest.raises(ValueError, match=r"reward_frames: expected one of .*got 'cleen'"):
        MEMBonusConfig(reward_frames=misspelt)
