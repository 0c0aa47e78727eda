"""Eq. 1 to 10, each against an independent computation: float64 loops over samples and views, or a closed form."""

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
    return np.random.default_rng(0).normal(size=(B, V, P)).astype(np.float32).astype(np.float64)


@pytest.fixture
def y() -> Array:
    return np.random.default_rng(1).normal(size=(B, V, P)).astype(np.float32).astype(np.float64) * 0.4


def torched(array: Array) -> torch.Tensor:
    return torch.from_numpy(array).float()


ALL = torch.ones(B, V, dtype=torch.bool)


def kth_neighbour(points: Array, row: int, k: int) -> float:
    others = sorted(math.dist(points[row], points[other]) for other in range(len(points)) if other != row)
    return others[k - 1]


def test_eq1_entropy_estimator() -> None:
    points = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32).astype(np.float64)
    n, q, k = 40, 3, 4
    logs = [
        math.log(n * kth_neighbour(points, i, k) ** q * math.pi ** (q / 2) / (k * gamma(q / 2 + 1))) for i in range(n)
    ]
    expected = sum(logs) / n + math.log(k) - digamma(k)
    assert knn_entropy(torched(points), k).item() == pytest.approx(expected, rel=1e-6)


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
            both = encoder.heads.weight.double() @ image.flatten() + encoder.heads.bias.double()
            for got, head in ((features.shared, both[:4]), (features.specific, both[4:])):
                expected = (head - head.mean()) / (head.var(correction=0) + 1e-5).sqrt()
                torch.testing.assert_close(got[b, v].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("l1", ["mean", "sum"])
def test_eq3_diff(x: Array, y: Array, l1: str) -> None:
    total = 0.0
    for b in range(B):
        for v in range(V):
            a, c = x[b, v], y[b, v]
            cosine = sum(a * c) / math.sqrt(sum(a * a)) / math.sqrt(sum(c * c))
            sparsity = sum(abs(a)) + sum(abs(c))
            total += max(cosine, 0) + (sparsity / P if l1 == "mean" else sparsity)
    got = diff_loss(torched(x), torched(y), ALL, l1=l1)  # type: ignore[arg-type]
    assert got.item() == pytest.approx(total / (B * V), rel=1e-5)


@pytest.mark.parametrize("others", ["pooled", "each"])
def test_eq4_con(y: Array, others: str) -> None:
    margin, total = 1.3, 0.0
    for b in range(B):
        for v in range(V):
            same = sum((y[j, v] for j in range(B)), np.zeros(P)) / B
            pull = sum((y[b, v] - same) ** 2)
            rest = [w for w in range(V) if w != v]
            if others == "pooled":
                means = [sum((y[j, w] for j in range(B) for w in rest), np.zeros(P)) / (B * len(rest))]
            else:
                means = [sum((y[j, w] for j in range(B)), np.zeros(P)) / B for w in rest]
            pushes = [max(margin - math.dist(y[b, v], mean), 0) ** 2 for mean in means]
            total += pull + sum(pushes) / len(pushes)
    got = con_loss(torched(y), ALL, margin=margin, margin_unit="raw", others=others)  # type: ignore[arg-type]
    assert got.item() == pytest.approx(total / (2 * B * V), rel=1e-5)


def test_eq5_adv_both_players(x: Array) -> None:
    weight = np.random.default_rng(3).normal(size=(V, P))
    naming, uniform = 0.0, 0.0
    for b in range(B):
        for v in range(V):
            score = [math.exp(sum(weight[w] * x[b, v])) for w in range(V)]
            probability = [s / sum(score) for s in score]
            naming -= math.log(probability[v])
            uniform -= sum(math.log(p) for p in probability) / V
    logits = torched(x) @ torched(weight).T
    assert discriminator_loss(logits, ALL).item() == pytest.approx(naming / (B * V), rel=1e-5)
    assert adv_loss(logits, ALL, adversary="reversal").item() == pytest.approx(-naming / (B * V), rel=1e-5)
    assert adv_loss(logits, ALL, adversary="uniform").item() == pytest.approx(uniform / (B * V), rel=1e-5)


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
    draws = torch.randn(4096, 2, generator=torch.Generator().manual_seed(0))
    minus_log_density = -torch.distributions.Normal(0, 1).log_prob(draws).sum(1)
    assert knn_entropy(draws, 3).item() == pytest.approx(minus_log_density.mean().item(), abs=0.04)


def features_of(x: Array, y: Array) -> Features:
    shared, specific = torched(x), torched(y)
    state = torch.cat([specific.flatten(1), shared.mean(1)], 1)
    return Features(shared, specific, shared.mean(1), state, ALL)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_eq9_reward(x: Array, y: Array, k: int) -> None:
    mean = x.mean(1)
    expected = [
        (sum(math.log(kth_neighbour(y[:, v], b, k) + 1) for v in range(V)) + math.log(kth_neighbour(mean, b, k) + 1))
        / (V + 1)
        for b in range(B)
    ]
    got = intrinsic_reward(*compute_distances(features_of(x, y), k=k))
    assert got.tolist() == pytest.approx(expected, rel=1e-5)


def test_eq9_joint_takes_one_entropy_of_the_state(x: Array, y: Array) -> None:
    features = features_of(x, y)
    state = features.state.double().numpy()
    expected = [math.log(kth_neighbour(state, b, 3) + 1) for b in range(B)]
    got = intrinsic_reward(*compute_distances(features, k=3, entropy="joint"))
    assert got.tolist() == pytest.approx(expected, rel=1e-5)


def test_eq10_total_reward_and_beta() -> None:
    beta = BetaSchedule(beta0=0.05, beta_decay=1e-5)
    assert beta(0) == 0.05
    by_hand = 0.05
    for _ in range(1000):
        by_hand *= 1 - 1e-5
    assert beta(1000) == pytest.approx(by_hand)
    assert beta(100_000) == pytest.approx(0.0184, abs=1e-4)
    got = total_reward(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.25]), beta(0))
    assert got.tolist() == pytest.approx([1.025, -1.9875])
