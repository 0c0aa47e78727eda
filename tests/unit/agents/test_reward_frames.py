"""Frames of the intrinsic reward, clean or augmented, and their cost in encodings."""

from typing import Any

import pytest
import torch

from manyview.methods import MEMBonusConfig
from manyview.methods.bonuses.mem import RewardFrames
from tests.support.batches import make_agent, make_batch

KINDS = ("drqv2", "sac")
ALL_BONUSES = pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind in KINDS for method in ("mem", "re3", "pixel+mem")]
)


def compute_mean_bonus(kind: str, method: str, frames: RewardFrames, *, shift_seed: int) -> float:
    """Return the mean r̂ of an agent's first update; the seed changes only the shifts."""
    agent = make_agent(kind, method, reward_frames=frames)
    agent.generator.manual_seed(shift_seed)
    return float(agent.update(make_batch(), 0)["reward_int"])


@ALL_BONUSES
def test_the_bonus_of_clean_frames_does_not_depend_on_the_shift(kind: str, method: str) -> None:
    assert compute_mean_bonus(kind, method, "clean", shift_seed=1) == compute_mean_bonus(
        kind, method, "clean", shift_seed=2
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_bonus_of_augmented_frames_depends_on_the_shift(kind: str) -> None:
    assert compute_mean_bonus(kind, "mem", "augmented", shift_seed=1) != compute_mean_bonus(
        kind, "mem", "augmented", shift_seed=2
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["re3", "pixel+mem"])
def test_a_separate_encoder_always_gets_clean_frames(kind: str, method: str) -> None:
    assert compute_mean_bonus(kind, method, "augmented", shift_seed=1) == compute_mean_bonus(
        kind, method, "clean", shift_seed=2
    )


def count_encodings(agent: Any, *, target: bool = False) -> int:
    """Return how often the representation, or its target, encodes in one update."""
    calls = []
    encoder = agent.target_representation if target else agent.representation
    encode = encoder.encode

    def encode_and_count(*views_and_mask: torch.Tensor) -> Any:
        calls.append(1)
        return encode(*views_and_mask)

    encoder.encode = encode_and_count
    agent.update(make_batch()._replace(neighbor_distances=torch.rand(16, 3, 3)), 0)
    return len(calls)


@pytest.mark.parametrize("kind", KINDS)
def test_clean_frames_need_one_more_encoding_and_augmented_ones_none(kind: str) -> None:
    num_without_bonus = count_encodings(make_agent(kind, "none"))
    assert count_encodings(make_agent(kind, "mem", reward_frames="augmented")) == num_without_bonus
    assert count_encodings(make_agent(kind, "mem", reward_frames="clean")) == num_without_bonus + 1
    assert count_encodings(make_agent(kind, "pixel+mem")) == num_without_bonus, (
        "the policy's encoder is not the bonus's"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [False, True])
def test_a_search_in_the_buffer_needs_no_encoding_and_no_common_shift(kind: str, target: bool) -> None:
    changes: Any = {"search": "buffer", "target_encoder": target}
    agent = make_agent(kind, "mem", reward_frames="augmented", bonus_changes=changes, encoder_tau=0.5)
    assert agent.shift_mode == "each"
    agent_without_bonus = make_agent(kind, "none", encoder_tau=0.5)
    assert count_encodings(agent, target=target) == count_encodings(agent_without_bonus, target=target)


@pytest.mark.parametrize("kind", KINDS)
def test_clean_and_augmented_frames_give_the_same_bonus_without_shifts(kind: str) -> None:
    agents = [make_agent(kind, "mem", reward_frames=frames, shift_pixels=0) for frames in ("clean", "augmented")]
    clean, augmented = (agent.update(make_batch(), 0)["reward_int"] for agent in agents)
    assert clean == augmented > 0


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_common_shift_equal_states_stay_equal(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch of one observation nothing is rare, unless each copy is shifted differently."""
    data = make_batch()
    data.views[:] = data.views[0].clone()
    agent = make_agent(kind, "mem", reward_frames="augmented")
    assert agent.shift_mode == "common"
    assert agent.update(data, 0)["reward_int"] < 1e-3
    monkeypatch.setattr(type(agent), "shift_mode", "each")
    assert agent.update(data, 0)["reward_int"] > 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("method", "frames"),
    [("mem", "clean"), ("none", "augmented"), ("re3", "augmented"), ("pixel+mem", "augmented")],
)
def test_images_are_shifted_independently_if_no_bonus_uses_them(kind: str, method: str, frames: RewardFrames) -> None:
    assert make_agent(kind, method, reward_frames=frames).shift_mode == "each"


def test_a_misspelled_choice_is_refused() -> None:
    misspelled: Any = "cleen"
    with pytest.raises(ValueError, match=r"reward_frames: expected one of .*got 'cleen'"):
        MEMBonusConfig(reward_frames=misspelled)
