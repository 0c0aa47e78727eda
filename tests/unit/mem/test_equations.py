"""Eq. 1 to 10 of the paper, against float64 loops or closed forms."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import digamma, gamma

from manyview.mem import BetaSchedule, Encoder, Features, knn_entropy, total_reward
from manyview.mem.losses import adv_loss, con_loss, diff_loss, discriminator_loss, total_loss
from manyview.mem.reward import compute_distances, intrinsic_reward

B, V, P = 7, 3, 5
Array = NDArray[np.float64]


@pytest.fixture
def x() -> Array:
    """Return shared features x [B, V, P]."""
    return np.random.default_rng(0).normal(size=(B, V, P)).astype(np.float32).astype(np.float64)


@pytest.fixture
def y() -> Array:
    """Return specific features y [B, V, P]."""
    return np.random.default_rng(1).normal(size=(B, V, P)).astype(np.float32).astype(np.float64) * 0.4


def to_tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array).float()


ALL_PRESENT = torch.ones(B, V, dtype=torch.bool)


def compute_kth_distance(points: Array, row: int, k: int) -> float:
    """Return the distance of a row to its k-th nearest other row."""
    others = sorted(math.dist(points[row], points[other]) for other in range(len(points)) if other != row)
    return others[k - 1]


def test_eq1_entropy_estimator() -> None:
    points = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32).astype(np.float64)
    n, q, k = 40, 3, 4
    logs = [
        math.log(n * compute_kth_distance(points, i, k) ** q * math.pi ** (q / 2) / (k * gamma(q / 2 + 1)))
        for i in range(n)
    ]
    expected = sum(logs) / n + math.log(k) - digamma(k)
    assert knn_entropy(to_tensor(points), k).item() == pytest.approx(expected, rel=1e-6)


def test_eq2_encoder_applies_one_network_to_every_view() -> None:
    encoder = Encoder(3, (2, 24, 24), latent_dim=4)
    views = torch.randint(256, (2, 3, 2, 24, 24), dtype=torch.uint8)
    features = encoder(views)
    for b in range(2):
        for v in range(3):
            image = views[b, v].double() / 255 - 0.5
            for layer in encoder.trunk:
                if isinstance(layer, torch.nn.Conv2d):
                    assert layer.bias is not None
                    image = F.conv2d(image, layer.weight.double(), layer.bias.double(), layer.stride).clamp(min=0)
            outputs = encoder.heads.weight.double() @ image.flatten() + encoder.heads.bias.double()
            for actual, head in ((features.shared, outputs[:4]), (features.specific, outputs[4:])):
                expected = (head - head.mean()) / (head.var(correction=0) + 1e-5).sqrt()
                torch.testing.assert_close(actual[b, v].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("l1", ["mean", "sum"])
def test_eq3_diff(x: Array, y: Array, l1: str) -> None:
    total = 0.0
    for b in range(B):
        for v in range(V):
            a, c = x[b, v], y[b, v]
            cosine = sum(a * c) / math.sqrt(sum(a * a)) / math.sqrt(sum(c * c))
            sparsity = sum(abs(a)) + sum(abs(c))
            total += max(cosine, 0) + (sparsity / P if l1 == "mean" else sparsity)
    actual = diff_loss(to_tensor(x), to_tensor(y), ALL_PRESENT, l1=l1)  # type: ignore[arg-type]
    assert actual.item() == pytest.approx(total / (B * V), rel=1e-5)


@pytest.mark.parametrize("others", ["pooled", "each"])
def test_eq4_con(y: Array, others: str) -> None:
    margin, total = 1.3, 0.0
    for b in range(B):
        for v in range(V):
            view_mean = sum((y[j, v] for j in range(B)), np.zeros(P)) / B
            pull = sum((y[b, v] - view_mean) ** 2)
            other_views = [w for w in range(V) if w != v]
            if others == "pooled":
                other_means = [
                    sum((y[j, w] for j in range(B) for w in other_views), np.zeros(P)) / (B * len(other_views))
                ]
            else:
                other_means = [sum((y[j, w] for j in range(B)), np.zeros(P)) / B for w in other_views]
            pushes = [max(margin - math.dist(y[b, v], mean), 0) ** 2 for mean in other_means]
            total += pull + sum(pushes) / len(pushes)
    actual = con_loss(to_tensor(y), ALL_PRESENT, margin=margin, margin_unit="raw", others=others)  # type: ignore[arg-type]
    assert actual.item() == pytest.approx(total / (2 * B * V), rel=1e-5)


def test_eq5_discriminator_and_adversarial_losses(x: Array) -> None:
    weight = np.random.default_rng(3).normal(size=(V, P))
    discriminator_total, uniform_total = 0.0, 0.0
    for b in range(B):
        for v in range(V):
            scores = [math.exp(sum(weight[w] * x[b, v])) for w in range(V)]
            probabilities = [score / sum(scores) for score in scores]
            discriminator_total -= math.log(probabilities[v])
            uniform_total -= sum(math.log(p) for p in probabilities) / V
    logits = to_tensor(x) @ to_tensor(weight).T
    assert discriminator_loss(logits, ALL_PRESENT).item() == pytest.approx(discriminator_total / (B * V), rel=1e-5)
    assert adv_loss(logits, ALL_PRESENT, adversary="reversal").item() == pytest.approx(
        -discriminator_total / (B * V), rel=1e-5
    )
    assert adv_loss(logits, ALL_PRESENT, adversary="uniform").item() == pytest.approx(uniform_total / (B * V), rel=1e-5)


def test_eq6_total_loss() -> None:
    parts = [torch.tensor(v) for v in (2.0, 3.0, 5.0)]
    assert total_loss(*parts, diff_coef=0.1, con_coef=0.01, adv_coef=10.0).item() == pytest.approx(50.23)


def test_eq7_state_is_the_specific_features_then_the_shared_mean() -> None:
    features = Encoder(3, (2, 24, 24), latent_dim=4)(torch.randint(256, (2, 3, 2, 24, 24), dtype=torch.uint8))
    for b in range(2):
        mean = [sum(features.shared[b, v, i].item() for v in range(3)) / 3 for i in range(4)]
        expected = [features.specific[b, v, i].item() for v in range(3) for i in range(4)] + mean
        assert features.state[b].tolist() == pytest.approx(expected, abs=1e-6)


def test_eq8_entropy_is_the_mean_negative_log_density() -> None:
    samples = torch.randn(4096, 2, generator=torch.Generator().manual_seed(0))
    minus_log_density = -torch.distributions.Normal(0, 1).log_prob(samples).sum(1)
    assert knn_entropy(samples, 3).item() == pytest.approx(minus_log_density.mean().item(), abs=0.04)


def make_features(x: Array, y: Array) -> Features:
    shared, specific = to_tensor(x), to_tensor(y)
    state = torch.cat([specific.flatten(1), shared.mean(1)], 1)
    return Features(shared, specific, shared.mean(1), state, ALL_PRESENT)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_eq9_reward(x: Array, y: Array, k: int) -> None:
    mean = x.mean(1)
    expected = [
        (
            sum(math.log(compute_kth_distance(y[:, v], b, k) + 1) for v in range(V))
            + math.log(compute_kth_distance(mean, b, k) + 1)
        )
        / (V + 1)
        for b in range(B)
    ]
    actual = intrinsic_reward(*compute_distances(make_features(x, y), k=k))
    assert actual.tolist() == pytest.approx(expected, rel=1e-5)


def test_eq9_joint_takes_one_entropy_of_the_state(x: Array, y: Array) -> None:
    features = make_features(x, y)
    state = features.state.double().numpy()
    expected = [math.log(compute_kth_distance(state, b, 3) + 1) for b in range(B)]
    actual = intrinsic_reward(*compute_distances(features, k=3, entropy="joint"))
    assert actual.tolist() == pytest.approx(expected, rel=1e-5)


def test_eq10_total_reward_and_beta() -> None:
    beta = BetaSchedule(beta0=0.05, beta_decay=1e-5)
    assert beta(0) == 0.05
    expected = 0.05
    for _ in range(1000):
        expected *= 1 - 1e-5
    assert beta(1000) == pytest.approx(expected)
    assert beta(100_000) == pytest.approx(0.0184, abs=1e-4)
    actual = total_reward(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.25]), beta(0))
    assert actual.tolist() == pytest.approx([1.025, -1.9875])
