"""Gradient flow (QUALITY S9): each loss trains its own network, the reward none."""

import copy

import pytest
import torch

from manyview.mem.losses import MarginUnit, OtherViews, con_loss, discriminator_gradient, discriminator_loss
from tests.support.mem import make_images, make_mem, make_random_features

pytestmark = pytest.mark.quality("S9")


def test_the_reward_has_no_gradient() -> None:
    mem = make_mem()
    features = mem.encode(make_images(8))
    assert features.state.requires_grad
    assert not mem.compute_reward(features).requires_grad


@pytest.mark.parametrize("adversary", ["uniform", "reversal"])
def test_the_loss_trains_the_encoder_and_not_the_discriminator(adversary: str) -> None:
    mem = make_mem(adversary=adversary)
    loss, _ = mem.compute_loss(mem.encode(make_images(8)), mem.encode(make_images(8, seed=1)))
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mem.encoder.trunk.parameters())
    assert all(p.grad is None for p in mem.discriminator.parameters())


def test_the_discriminator_trains_itself_and_not_the_encoder() -> None:
    mem = make_mem()
    before = copy.deepcopy(mem.state_dict())
    features = mem.encode(make_images(8))
    mem.update_discriminator(features)
    assert all(p.grad is None for p in mem.encoder.parameters())
    changed_names = {name for name, value in mem.state_dict().items() if not value.equal(before[name])}
    assert changed_names == {"discriminator.weight", "discriminator.bias"}


def test_the_discriminator_update_keeps_the_graph_for_the_joint_backward() -> None:
    mem = make_mem()
    features = mem.encode(make_images(8))
    loss, _ = mem.compute_loss(features, features.detach())
    mem.update_discriminator(features)
    (loss + features.state.pow(2).mean()).backward()
    assert all(p.grad is not None for p in mem.encoder.trunk.parameters())


def test_reversal_negates_the_gradient_of_the_discriminator_loss() -> None:
    """The encoder receives the negative of the gradient that helps the discriminator."""
    mem = make_mem(
        adversary="reversal",
        diff_coef=0.0,
        con_coef=0.0,
        adv_coef=1.0,
        floor_coef=0.0,
        decorrelation_coef=0.0,
        temporal_coef=0.0,
    )
    features = mem.encode(make_images(8))
    loss, _ = mem.compute_loss(features)
    (reversed_gradient,) = torch.autograd.grad(loss, features.shared, retain_graph=True)
    labels = torch.arange(4).repeat(8)
    cross_entropy = torch.nn.functional.cross_entropy(mem.discriminator(features.shared).flatten(0, 1), labels)
    (gradient,) = torch.autograd.grad(cross_entropy, features.shared)
    torch.testing.assert_close(reversed_gradient, -gradient)


@pytest.mark.parametrize("temporal", ["closeness", "contrast"])
def test_next_features_are_targets_without_gradient(temporal: str) -> None:
    mem = make_mem(temporal=temporal, temporal_coef=1.0)
    features, next_features = mem.encode(make_images(8)).detach(), mem.encode(make_images(8, seed=1))
    loss, _ = mem.compute_loss(features, next_features)
    assert not loss.requires_grad


@pytest.mark.parametrize("others", ["pooled", "each"])
@pytest.mark.parametrize("unit", ["norm", "raw"])
def test_gradients_of_eq_4_equal_finite_differences(others: OtherViews, unit: MarginUnit) -> None:
    generator = torch.Generator().manual_seed(0)
    specific = torch.randn(6, 3, 4, dtype=torch.float64, generator=generator).requires_grad_()
    mask = torch.rand(6, 3, generator=generator) < 0.8
    assert torch.autograd.gradcheck(
        lambda y: con_loss(y, mask, margin=3.0, margin_unit=unit, others=others), (specific,)
    )


def test_the_discriminators_gradient_in_closed_form_equals_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 3, 3, dtype=torch.float64, generator=generator).requires_grad_()
    mask = torch.rand(8, 3, generator=generator) < 0.7
    mask[:, 0] = True
    discriminator_loss(logits, mask).backward()
    torch.testing.assert_close(discriminator_gradient(logits.detach(), mask), logits.grad)


def test_a_step_of_the_discriminator_follows_its_gradient() -> None:
    mem, features = make_mem(), make_random_features(32, 4, 16)
    weight, bias = (p.detach().clone().requires_grad_() for p in mem.discriminator.parameters())
    logits = torch.nn.functional.linear(features.shared, weight, bias)
    discriminator_loss(logits, features.mask).backward()
    optimizer = torch.optim.Adam([weight, bias], lr=mem.config.discriminator_lr)
    optimizer.step()
    mem.update_discriminator(features)
    torch.testing.assert_close(mem.discriminator.weight, weight, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(mem.discriminator.bias, bias, atol=1e-6, rtol=1e-5)
