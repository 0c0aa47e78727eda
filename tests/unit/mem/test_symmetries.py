"""Entropy estimates against closed forms (QUALITY S7), and symmetries (QUALITY S8)."""

import math

import pytest
import torch

from manyview.mem import Features, knn_distance, knn_entropy
from manyview.mem.reward import compute_distances, intrinsic_reward
from quality.plugin import Figure
from tests.support.mem import make_random_features


@pytest.mark.quality("S7")
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_entropy_of_known_distributions(kind: str, dim: int, figure: Figure) -> None:
    errors = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        if kind == "gaussian":
            samples, expected = torch.randn(4096, dim, generator=generator), dim / 2 * math.log(2 * math.pi * math.e)
        else:
            samples, expected = 5 * torch.rand(4096, dim, generator=generator), dim * math.log(5)
        errors.append(knn_entropy(samples, 3).item() - expected)
    figure(sum(map(abs, errors)) / len(errors), "3-d" if dim == 3 else "1-d and 2-d")


POINTS = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))


def compute_max_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest error, relative to expected values above 1."""
    return ((actual.double() - expected.double()).abs() / expected.double().abs().clamp(min=1)).max().item()


@pytest.mark.quality("S8")
def test_permuting_rows_permutes_distances(figure: Figure) -> None:
    order = torch.randperm(500)
    figure(compute_max_error(knn_distance(POINTS[None, order], 3), knn_distance(POINTS[None], 3)[:, order]))


@pytest.mark.quality("S8")
def test_translation_and_rotation_of_all_points_change_no_distance(figure: Figure) -> None:
    rotation = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64)).Q
    moved_points = POINTS.double() @ rotation + torch.randn(64).double()
    figure(compute_max_error(knn_distance(moved_points[None], 3), knn_distance(POINTS[None], 3)))


@pytest.mark.quality("S8")
@pytest.mark.parametrize("scale", [1e-3, 0.25, 8.0, 1e3])
def test_scaling_adds_its_logarithm_times_the_dimension(scale: float, figure: Figure) -> None:
    shifted = knn_entropy(scale * POINTS) - 64 * math.log(scale)
    figure(compute_max_error(shifted, knn_entropy(POINTS)))


@pytest.mark.quality("S8")
def test_tiled_search_equals_untiled_search(figure: Figure) -> None:
    figure(compute_max_error(knn_distance(POINTS[None], 3, tile_bytes=50_000), knn_distance(POINTS[None], 3)))


def compute_reward(features: Features) -> torch.Tensor:
    return intrinsic_reward(*compute_distances(features))


@pytest.mark.quality("S8")
def test_the_order_of_views_is_irrelevant(figure: Figure) -> None:
    features, order = make_random_features(200, 4, 64), [3, 1, 0, 2]
    permuted_features = features._replace(shared=features.shared[:, order], specific=features.specific[:, order])
    figure(compute_max_error(compute_reward(permuted_features), compute_reward(features)))


@pytest.mark.quality("S8")
def test_one_view_is_the_single_view_formula(figure: Figure) -> None:
    features = make_random_features(200, 1, 64)
    specific = knn_distance(features.specific[:, 0][None], 3)[0]
    shared = knn_distance(features.shared[:, 0][None], 3)[0]
    figure(compute_max_error(compute_reward(features), (specific.log1p() + shared.log1p()) / 2))
