"""The terms the paper does not have, against independent computations."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from manyview.mem.regularizers import (
    Covariance,
    compute_covariance,
    decorrelation_loss,
    temporal_closeness_loss,
    temporal_contrast_loss,
    variance_floor_loss,
)

B, V, P = 12, 2, 5
FEATURES = np.random.default_rng(0).normal(size=(B, V, P)) * [0.1, 0.4, 0.6, 1.0, 2.0]
ALL = torch.ones(B, V, dtype=torch.bool)


def torched(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).float()


def test_the_floor_is_the_shortfall_of_each_standard_deviation() -> None:
    shortfall = [max(0.5 - FEATURES[:, v, i].std(ddof=1), 0) for v in range(V) for i in range(P)]
    assert variance_floor_loss(compute_covariance(torched(FEATURES), ALL), floor=0.5).item() == pytest.approx(
        np.mean(shortfall), rel=1e-4
    )


def test_decorrelation_is_the_sum_of_squared_covariances() -> None:
    per_view = []
    for v in range(V):
        covariance = np.cov(FEATURES[:, v], rowvar=False)
        per_view.append((covariance**2).sum() - (np.diag(covariance) ** 2).sum())
    expected = np.mean(per_view) / P
    assert decorrelation_loss(compute_covariance(torched(FEATURES), ALL)).item() == pytest.approx(expected, rel=1e-4)


def test_closeness_is_the_mean_squared_step() -> None:
    later = FEATURES + np.random.default_rng(1).normal(size=FEATURES.shape)
    expected = ((FEATURES - later) ** 2).mean()
    assert temporal_closeness_loss(torched(FEATURES), torched(later), ALL).item() == pytest.approx(expected, rel=1e-4)


def test_contrast_is_the_cross_entropy_of_naming_ones_own_future() -> None:
    later = FEATURES + 0.3 * np.random.default_rng(1).normal(size=FEATURES.shape)
    losses = []
    for v in range(V):
        for b in range(B):
            cosines = [
                FEATURES[b, v] @ later[c, v] / np.linalg.norm(FEATURES[b, v]) / np.linalg.norm(later[c, v])
                for c in range(B)
            ]
            weights = np.exp(np.array(cosines) / 0.2)
            losses.append(-np.log(weights[b] / weights.sum()))
    got = temporal_contrast_loss(torched(FEATURES), torched(later), ALL, temperature=0.2)
    assert got.item() == pytest.approx(np.mean(losses), rel=1e-4)


def test_absent_rows_enter_no_term() -> None:
    mask = ALL.clone()
    mask[::3, 1] = False
    garbage = torched(FEATURES)
    garbage[~mask] = 77.0
    later = torched(FEATURES) + 0.1
    for term in (variance_floor_loss, decorrelation_loss):
        rows = [(torched(FEATURES)[mask[:, v], v : v + 1], ALL[: int(mask[:, v].sum()), :1]) for v in range(V)]
        seen = [term(compute_covariance(*row)) for row in rows]
        assert term(compute_covariance(garbage, mask)).item() == pytest.approx(
            torch.stack(seen).mean().item(), rel=1e-4
        )
    assert temporal_closeness_loss(garbage, later, mask).item() == pytest.approx(0.01, rel=1e-3)
    assert temporal_contrast_loss(garbage, later, mask).isfinite()


@pytest.mark.parametrize("term", [lambda c: variance_floor_loss(c, floor=9.0), decorrelation_loss])
def test_gradients_include_the_dependence_on_the_mean(term: Callable[[Covariance], torch.Tensor]) -> None:
    """The mean is detached in the code because its gradient is zero; finite differences do not detach it."""
    mask = ALL.clone()
    mask[::3, 1] = False
    features = torch.from_numpy(FEATURES).requires_grad_()
    assert torch.autograd.gradcheck(lambda f: term(compute_covariance(f, mask)), (features,))
