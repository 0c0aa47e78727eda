"""APT against a reference implementation in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.methods import APT, APTConfig
from manyview.methods.representations.pixel import PixelFeatures
from manyview.training import make_trainer
from tests.support.batches import make_batch
from tests.support.dynamics import (
    MODEL_SIZES,
    build_bonus,
    compute_distance,
    copy_to_float64,
    embed_views,
    make_masked_batch,
)
from tests.support.runs import make_short_rollout_config


def make_apt(**changes: Any) -> APT:
    return build_bonus(APT, APTConfig(**MODEL_SIZES, **{"k": 4, **changes}))


def list_nearest(points: Tensor, mask: Tensor, k: int) -> list[list[float]]:
    """Return the k smallest distances of every row, to itself included, by loops."""
    rows = range(len(points))
    return [sorted(compute_distance(points, mask, row, other) for other in rows)[:k] for row in rows]


@pytest.mark.parametrize("state", ["current", "next"])
def test_the_bonus_is_the_log_of_the_mean_of_the_k_smallest_distances(state: str) -> None:
    apt, data = make_apt(rewarded_state=state), make_masked_batch()
    views, mask = (data.views, data.mask) if state == "current" else (data.next_views, data.next_mask)
    nearest = list_nearest(embed_views(copy_to_float64(apt), views, mask).detach(), mask, 4)
    assert all(row[0] == 0 for row in nearest), "the row itself is the first"
    expected = torch.tensor([math.log(1 + sum(row) / 4) for row in nearest])
    actual = apt.compute(data, None, data.reward_ext)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not actual.requires_grad


def test_relative_distances_are_divided_by_the_mean_of_all_so_far_and_clipped() -> None:
    """The particle-based entropy of URLB's `ind_apt`, with a larger clip."""
    apt, all_distances = make_apt(distance_scale="relative", clip=0.2), list[float]()
    for seed in range(3):
        data = make_batch(12, seed=seed)
        nearest = list_nearest(embed_views(copy_to_float64(apt), data.views, data.mask).detach(), data.mask, 4)
        all_distances += [distance for row in nearest for distance in row]
        mean = sum(all_distances) / len(all_distances)
        expected = [math.log(1 + sum(max(distance / mean - 0.2, 0) for distance in row) / 4) for row in nearest]
        torch.testing.assert_close(
            apt.compute(data, None, data.reward_ext), torch.tensor(expected), rtol=1e-4, atol=1e-5
        )
        apt.update(data)


def test_equal_states_have_no_bonus_and_a_distant_state_has_the_largest() -> None:
    apt, data = make_apt(), make_batch(16)
    views = data.views[:1].expand_as(data.views).clone()
    equal_bonuses = apt.compute(data._replace(views=views), None, data.reward_ext)
    assert equal_bonuses.abs().max() < 1e-5
    views[5] = data.views[5]
    bonuses = apt.compute(data._replace(views=views), None, data.reward_ext)
    assert bonuses.argmax() == 5
    assert bonuses[5] > 0.1 > 1e-4 > bonuses[torch.arange(16) != 5].max()


@pytest.mark.parametrize("pooled", [False, True])
def test_a_rollout_is_searched_by_environment_or_as_a_whole(pooled: bool) -> None:
    trainer: Any = make_trainer(make_short_rollout_config("ppo+apt", bonus={"k": 3, "reward_scale": "raw"}))
    while not trainer.num_pending_updates:
        trainer.advance()
    apt, rollout = trainer.agent.bonus, trainer.rollout
    trainer.close()
    steps, envs = rollout.num_steps, rollout.num_envs
    views, mask = rollout._get_views(torch.arange(steps * envs))
    points = embed_views(copy_to_float64(apt), views, mask).detach()
    bonuses = apt.compute_rollout(rollout, None, window=1_000 if pooled else None)
    assert bonuses.shape == (steps, envs)
    for env in range(envs):
        rows = range(steps * envs) if pooled else range(env, steps * envs, envs)
        for step in range(steps):
            nearest = sorted(compute_distance(points, mask, step * envs + env, other) for other in rows)[:3]
            assert bonuses[step, env].item() == pytest.approx(math.log1p(sum(nearest) / 3), abs=2e-4)


def test_rewarding_states_of_an_evaluation_changes_nothing() -> None:
    apt, data = make_apt(distance_scale="relative", reward_scale="std"), make_batch(8)
    apt.compute(data, None, data.reward_ext)
    apt.eval()
    before = {name: part.clone() for name, part in apt.state_dict().items()}
    assert apt.reward_states(data.views, data.mask).isfinite().all()
    assert all(torch.equal(part, before[name]) for name, part in apt.state_dict().items())


def test_a_state_without_a_view_has_no_bonus() -> None:
    apt, data = make_apt(), make_batch(8)
    data.mask[3] = False
    features = apt.encode(data.views, data.mask)
    assert isinstance(features, PixelFeatures)
    bonuses = apt.compute(data, None, data.reward_ext)
    assert bonuses[3] == 0
    assert bonuses.isfinite().all()


def test_a_rollout_with_too_few_steps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rollout\.steps must be more than bonus\.k, got 5 and 12"):
        make_short_rollout_config("ppo+apt", bonus={"k": 12})
