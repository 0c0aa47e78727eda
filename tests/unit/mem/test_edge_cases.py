"""QUALITY S5: zero variance, duplicates, k >= B, B = 1, zero vectors. Defined values, finite gradients."""

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
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_k_at_least_the_batch_gives_finite_rewards_and_gradients(batch: int, options: dict[str, Any]) -> None:
    mem = make_mem(k=3, **options)
    features = mem.encode(make_images(batch))
    loss, _ = mem.compute_loss(features, mem.encode(make_images(batch, seed=1)))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in mem.encoder.trunk.parameters() if p.grad is not None)
    assert mem.compute_reward(features).isfinite().all()


def test_one_row_alone_earns_exactly_nothing() -> None:
    mem = make_mem()
    assert mem.compute_reward(mem.encode(make_images(1))).tolist() == [0.0]


def test_a_batch_of_duplicates_earns_exactly_nothing_and_has_finite_gradients() -> None:
    mem = make_mem()
    same = make_random_features(1, 4, 16)
    features = Features(*(t.expand(64, *t.shape[1:]).clone().requires_grad_(t.is_floating_point()) for t in same))
    assert mem.compute_reward(features).eq(0).all()
    loss, _ = mem.compute_loss(features, features)
    loss.backward()
    for tensor in features[:2]:
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


def test_a_frozen_view_pays_exactly_nothing_while_the_others_pay() -> None:
    mem = make_mem()
    features = make_random_features(64, 4, 16)
    features.specific[:, 2] = features.specific[0, 2]
    health = mem.diagnose(features, beta=1.0)
    assert health.share["top"] == 0.0
    assert health.share["front"] > 0.1


def test_a_frozen_camera_pays_exactly_nothing_through_the_encoder() -> None:
    mem, views = make_mem(), make_images(96)
    views[:, 1] = views[0, 1]
    assert mem.diagnose(mem.encode(views), beta=1.0).share["side"] == 0.0


def test_zero_vectors_in_the_cosine_have_a_value_and_a_gradient() -> None:
    shared, specific = torch.zeros(2, 4, 3, 5, requires_grad=True).unbind(0)
    mask = torch.ones(4, 3, dtype=torch.bool)
    loss = diff_loss(shared, specific, mask) + con_loss(specific, mask)
    (gradient,) = torch.autograd.grad(loss, shared, retain_graph=True)
    (other,) = torch.autograd.grad(loss, specific)
    assert loss.item() == pytest.approx(0.5)  # the margin, unmet by identical views
    assert gradient.isfinite().all()
    assert other.isfinite().all()


def test_zero_variance_is_pushed_without_infinite_gradient() -> None:
    features = torch.ones(8, 2, 4, requires_grad=True)
    loss = variance_floor_loss(compute_covariance(features, torch.ones(8, 2, dtype=torch.bool)), floor=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.5, abs=1e-3)
    assert features.grad is not None
    assert features.grad.isfinite().all()


def test_nearly_equal_rows_are_pushed_apart_with_bounded_gradients() -> None:
    features = (torch.ones(8, 2, 4) + 1e-7 * torch.randn(8, 2, 4)).requires_grad_()
    variance_floor_loss(compute_covariance(features, torch.ones(8, 2, dtype=torch.bool)), floor=0.5).backward()
    assert features.grad is not None
    assert features.grad.abs().max() < 1.0


def test_a_view_seen_in_one_row_only_does_not_enter_the_floor() -> None:
    features, mask = torch.randn(8, 2, 4), torch.ones(8, 2, dtype=torch.bool)
    mask[1:, 1] = False
    alone = variance_floor_loss(compute_covariance(features[:, :1], mask[:, :1]), floor=9.0)
    torch.testing.assert_close(variance_floor_loss(compute_covariance(features, mask), floor=9.0), alone)


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
