"""Rows with different absent views, and reward scales, against their definitions."""

import pytest
import torch

from manyview.mem.losses import adv_loss
from manyview.mem.reward import compute_distances, intrinsic_reward
from manyview.nn.normalization import RunningMoments
from tests.support.mem import make_images, make_mem, make_random_features, make_random_mask


def test_every_row_is_averaged_over_its_present_views() -> None:
    mask = make_random_mask(12)
    features, distances = make_mem().encode(make_images(12), mask), torch.rand(12, 4)
    reward, logits = intrinsic_reward(distances, mask), torch.randn(12, 4, 4)
    losses = []
    for row, present in enumerate(mask):
        torch.testing.assert_close(features.shared_mean[row], features.shared[row, present].mean(0))
        torch.testing.assert_close(reward[row], distances[row, present].log1p().mean())
        log_probs = logits[row][present][:, present].log_softmax(-1)
        losses.append(-log_probs.mean(-1))
    torch.testing.assert_close(adv_loss(logits, mask), torch.cat(losses).mean())


def test_the_temporal_loss_covers_only_views_present_in_both_steps() -> None:
    mem, mask = make_mem(), make_random_mask(12)
    features, next_features = mem.encode(make_images(12)), mem.encode(make_images(12, seed=1), mask)
    _, metrics = mem.compute_loss(features, next_features)
    squared = (features.terms - next_features.terms).pow(2).mean(-1)[next_features.terms_mask]
    torch.testing.assert_close(metrics["temporal_loss"], squared.mean().detach())


def test_relative_distances_are_in_units_of_their_mean() -> None:
    features = make_random_features(64, 4, 16)
    distances, mask = compute_distances(features)
    expected = intrinsic_reward(distances / distances.mean(0), mask)
    torch.testing.assert_close(make_mem(distance_scale="relative").compute_reward(features), expected)


def test_the_running_std_includes_earlier_batches() -> None:
    mem = make_mem(reward_scale="std")
    raw_rewards = [make_mem().compute_reward(make_random_features(64, 4, 16, seed=seed)) for seed in range(2)]
    scaled_rewards = [mem.compute_reward(make_random_features(64, 4, 16, seed=seed)) for seed in range(2)]
    variance = (0.99 * raw_rewards[0].var(correction=0) + raw_rewards[1].var(correction=0)) / 1.99
    torch.testing.assert_close(scaled_rewards[1], raw_rewards[1] / variance.sqrt())


def test_an_absent_column_keeps_its_moments() -> None:
    moments = RunningMoments(2)
    moments.update(torch.tensor([[1.0, 5.0], [3.0, 7.0]]))
    moments.update(torch.ones(4, 2), torch.tensor([[True, False]]).expand(4, 2))
    assert moments.mean[1].item() == pytest.approx(6.0)


def test_the_discriminators_gradient_is_cleared_after_its_step() -> None:
    mem = make_mem()
    mem.update_discriminator(mem.encode(make_images(8)))
    assert all(parameter.grad is None for parameter in mem.discriminator.parameters())
