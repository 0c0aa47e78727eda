"""Edge cases (QUALITY S5): zero variance, duplicates, k >= B, B = 1, zero vectors.

Values are defined and gradients are finite.
"""

from typing import Any

import pytest
import torch

from manyview.mem import Features
from manyview.mem.losses import con_loss, diff_loss
from manyview.mem.regularizers import (
    compute_covariance,
    decorrelation_loss,
    temporal_contrast_loss,
    variance_floor_loss,
)
from tests.support.mem import make_images, make_mem, make_random_features

pytestmark = pytest.mark.quality("S5")


@pytest.mark.parametrize("options", [{}, {"entropy": "joint"}, {"reward_scale": "std", "distance_scale": "relative"}])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_k_at_least_the_batch_size_gives_finite_rewards_and_gradients(batch_size: int, options: dict[str, Any]) -> None:
    mem = make_mem(k=3, **options)
    features = mem.encode(make_images(batch_size))
    loss, _ = mem.compute_loss(features, mem.encode(make_images(batch_size, seed=1)))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in mem.encoder.trunk.parameters() if p.grad is not None)
    assert mem.compute_reward(features).isfinite().all()


def test_a_single_row_has_a_reward_of_exactly_zero() -> None:
    mem = make_mem()
    assert mem.compute_reward(mem.encode(make_images(1))).tolist() == [0.0]


def test_duplicates_have_rewards_of_exactly_zero_and_finite_gradients() -> None:
    mem = make_mem()
    row_features = make_random_features(1, 4, 16)
    features = Features(
        *(t.expand(64, *t.shape[1:]).clone().requires_grad_(t.is_floating_point()) for t in row_features)
    )
    assert mem.compute_reward(features).eq(0).all()
    loss, _ = mem.compute_loss(features, features)
    loss.backward()
    for tensor in features[:2]:
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


def test_frozen_features_of_a_view_have_a_reward_share_of_exactly_zero() -> None:
    mem = make_mem()
    features = make_random_features(64, 4, 16)
    features.specific[:, 2] = features.specific[0, 2]
    diagnostics = mem.diagnose(features, beta=1.0)
    assert diagnostics.share["top"] == 0.0
    assert diagnostics.share["front"] > 0.1


def test_a_frozen_camera_has_a_reward_share_of_exactly_zero() -> None:
    mem, views = make_mem(), make_images(96)
    views[:, 1] = views[0, 1]
    assert mem.diagnose(mem.encode(views), beta=1.0).share["side"] == 0.0


def test_the_cosine_of_zero_vectors_has_a_finite_value_and_gradient() -> None:
    shared, specific = torch.zeros(2, 4, 3, 5, requires_grad=True).unbind(0)
    mask = torch.ones(4, 3, dtype=torch.bool)
    loss = diff_loss(shared, specific, mask) + con_loss(specific, mask)
    (shared_gradient,) = torch.autograd.grad(loss, shared, retain_graph=True)
    (specific_gradient,) = torch.autograd.grad(loss, specific)
    assert loss.item() == pytest.approx(0.5)  # the margin, which identical views do not reach
    assert shared_gradient.isfinite().all()
    assert specific_gradient.isfinite().all()


def test_the_floor_loss_of_zero_variance_has_a_finite_gradient() -> None:
    features = torch.ones(8, 2, 4, requires_grad=True)
    loss = variance_floor_loss(compute_covariance(features, torch.ones(8, 2, dtype=torch.bool)), floor=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.5, abs=1e-3)
    assert features.grad is not None
    assert features.grad.isfinite().all()


def test_the_floor_loss_of_nearly_equal_rows_has_bounded_gradients() -> None:
    features = (torch.ones(8, 2, 4) + 1e-7 * torch.randn(8, 2, 4)).requires_grad_()
    variance_floor_loss(compute_covariance(features, torch.ones(8, 2, dtype=torch.bool)), floor=0.5).backward()
    assert features.grad is not None
    assert features.grad.abs().max() < 1.0


def test_a_view_present_in_a_single_row_does_not_enter_the_floor_loss() -> None:
    features, mask = torch.randn(8, 2, 4), torch.ones(8, 2, dtype=torch.bool)
    mask[1:, 1] = False
    expected = variance_floor_loss(compute_covariance(features[:, :1], mask[:, :1]), floor=9.0)
    torch.testing.assert_close(variance_floor_loss(compute_covariance(features, mask), floor=9.0), expected)


def test_decorrelation_of_duplicates_is_zero_with_finite_gradient() -> None:
    features = torch.ones(8, 2, 4, requires_grad=True)
    loss = decorrelation_loss(compute_covariance(features, torch.ones(8, 2, dtype=torch.bool)))
    loss.backward()
    assert loss.item() == 0.0
    assert features.grad is not None
    assert features.grad.isfinite().all()


def test_contrast_of_one_row_is_zero() -> None:
    loss = temporal_contrast_loss(torch.randn(1, 3, 8), torch.randn(1, 3, 8), torch.ones(1, 3, dtype=torch.bool))
    assert loss.item() == 0.0
