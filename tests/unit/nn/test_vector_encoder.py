"""The encoder of state vectors: running statistics against numpy, features and targets."""

import numpy as np
import pytest
import torch

from manyview.nn.normalization import MAX_NORMALIZED, VectorNormalizer
from manyview.nn.vector_encoder import VectorEncoder


def test_statistics_are_those_of_all_rows_so_far() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal([300, -2, 0], [40, 0.1, 1e-3], (size, 3)).astype(np.float32) for size in (1, 7, 64, 1000)]
    normalizer = VectorNormalizer(3)
    for batch in batches:
        normalizer.update(torch.from_numpy(batch))
    rows = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean, rows.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(normalizer.std, rows.std(0), rtol=1e-3)
    expected = np.clip((rows - rows.mean(0)) / rows.std(0), -MAX_NORMALIZED, MAX_NORMALIZED)
    np.testing.assert_allclose(normalizer(torch.from_numpy(rows.astype(np.float32))), expected, atol=2e-2)


def test_vectors_keep_their_unit_before_the_first_update() -> None:
    vectors = torch.tensor([[0.5, -3.0, 1e6]])
    assert VectorNormalizer(3)(vectors).tolist() == [[0.5, -3.0, MAX_NORMALIZED]]


def test_a_constant_number_becomes_zero_and_an_outlier_stays_bounded() -> None:
    normalizer = VectorNormalizer(2)
    for _ in range(50):
        normalizer.update(torch.tensor([[1234.567, 0.0]]).expand(10, 2))
    assert normalizer(torch.tensor([[1234.567, 0.0]])).abs().max() < 0.1
    assert normalizer(torch.tensor([[1e12, -1e12]])).tolist() == [[MAX_NORMALIZED, -MAX_NORMALIZED]]


def test_statistics_of_the_largest_values_stay_finite() -> None:
    normalizer = VectorNormalizer(1)
    for _ in range(20):
        normalizer.update(torch.full((256, 1), 1e12))
        normalizer.update(torch.full((256, 1), -1e12))
    assert normalizer.std.isfinite().all()


def test_features_distinguish_a_number_from_its_double() -> None:
    torch.manual_seed(0)
    encoder = VectorEncoder(1, 32)
    features = encoder(torch.tensor([[0.5], [1.0], [2.0]]))
    assert features.shape == (3, 32)
    assert (features[0] - features[1]).abs().max() > 0.1
    assert (features[1] - features[2]).abs().max() > 0.1


def test_a_target_shares_the_statistics_but_not_the_weights() -> None:
    encoder = VectorEncoder(2, 8)
    target = encoder.make_target()
    encoder.normalizer.update(torch.randn(20, 2) * 9 + 4)
    with torch.no_grad():
        encoder.get_parameter("projection.0.weight").add_(1)
    assert target.normalizer.count == 20
    assert target.normalizer.mean.equal(encoder.normalizer.mean)
    assert not target.get_parameter("projection.0.weight").equal(encoder.get_parameter("projection.0.weight"))


@pytest.mark.parametrize("vectors", [None, torch.zeros(4, 3), torch.zeros(4, 2, dtype=torch.float64)])
def test_vectors_of_another_size_or_type_are_refused(vectors: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match=r"expected \[B, 2\] float32"):
        VectorEncoder(2, 8)(vectors)
