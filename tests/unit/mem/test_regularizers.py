"""Regularizers beyond the paper's losses, against independent computations."""

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
ALL_PRESENT = torch.ones(B, V, dtype=torch.bool)


def to_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).float()


def test_the_floor_loss_is_the_mean_shortfall_of_standard_deviations() -> None:
    shortfall = [max(0.5 - FEATURES[:, v, i].std(ddof=1), 0) for v in range(V) for i in range(P)]
    assert variance_floor_loss(compute_covariance(to_tensor(FEATURES), ALL_PRESENT), floor=0.5).item() == pytest.approx(
        np.mean(shortfall), rel=1e-4
    )


def test_decorrelation_is_the_sum_of_squared_covariances() -> None:
    view_losses = []
    for v in range(V):
        covariance = np.cov(FEATURES[:, v], rowvar=False)
        view_losses.append((covariance**2).sum() - (np.diag(covariance) ** 2).sum())
    expected = np.mean(view_losses) / P
    assert decorrelation_loss(compute_covariance(to_tensor(FEATURES), ALL_PRESENT)).item() == pytest.approx(
        expected, rel=1e-4
    )


def test_the_closeness_loss_is_the_mean_squared_change() -> None:
    next_features = FEATURES + np.random.default_rng(1).normal(size=FEATURES.shape)
    expected = ((FEATURES - next_features) ** 2).mean()
    assert temporal_closeness_loss(to_tensor(FEATURES), to_tensor(next_features), ALL_PRESENT).item() == pytest.approx(
        expected, rel=1e-4
    )


def test_the_contrast_loss_is_the_cross_entropy_of_the_next_features() -> None:
    next_features = FEATURES + 0.3 * np.random.default_rng(1).normal(size=FEATURES.shape)
    losses = []
    for v in range(V):
        for b in range(B):
            cosines = [
                FEATURES[b, v]
                @ next_features[c, v]
                / np.linalg.norm(FEATURES[b, v])
                / np.linalg.norm(next_features[c, v])
                for c in range(B)
            ]
            weights = np.exp(np.array(cosines) / 0.2)
            losses.append(-np.log(weights[b] / weights.sum()))
    actual = temporal_contrast_loss(to_tensor(FEATURES), to_tensor(next_features), ALL_PRESENT, temperature=0.2)
    assert actual.item() == pytest.approx(np.mean(losses), rel=1e-4)


def test_absent_views_enter_no_term() -> None:
    mask = ALL_PRESENT.clone()
    mask[::3, 1] = False
    changed_features = to_tensor(FEATURES)
    changed_features[~mask] = 77.0
    next_features = to_tensor(FEATURES) + 0.1
    for term in (variance_floor_loss, decorrelation_loss):
        view_inputs = [
            (to_tensor(FEATURES)[mask[:, v], v : v + 1], ALL_PRESENT[: int(mask[:, v].sum()), :1]) for v in range(V)
        ]
        view_losses = [term(compute_covariance(*view_input)) for view_input in view_inputs]
        assert term(compute_covariance(changed_features, mask)).item() == pytest.approx(
            torch.stack(view_losses).mean().item(), rel=1e-4
        )
    assert temporal_closeness_loss(changed_features, next_features, mask).item() == pytest.approx(0.01, rel=1e-3)
    assert temporal_contrast_loss(changed_features, next_features, mask).isfinite()


@pytest.mark.parametrize("term", [lambda c: variance_floor_loss(c, floor=9.0), decorrelation_loss])
def test_gradients_include_the_dependence_on_the_mean(term: Callable[[Covariance], torch.Tensor]) -> None:
    """The mean is detached in the code because its gradient is zero; finite differences do not detach it."""
    mask = ALL_PRESENT.clone()
    mask[::3, 1] = False
    features = torch.from_numpy(FEATURES).requires_grad_()
    assert torch.autograd.gradcheck(lambda f: term(compute_covariance(f, mask)), (features,))
