"""View dropout by generator and by counter, against closed forms."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from manyview.data.augmentation import augment
from manyview.data.batch_augmentation import drop_views, drop_views_by_key
from manyview.utils.counter_rng import derive_keys, uniform

Drop = Callable[[Tensor, float], Tensor]
ROWS = 20_000


def drop_by_generator(mask: Tensor, probability: float) -> Tensor:
    return drop_views(mask, probability, torch.Generator().manual_seed(0))


def drop_by_counter(mask: Tensor, probability: float) -> Tensor:
    return drop_views_by_key(mask, probability, derive_keys(0, torch.arange(len(mask))))


both_sources = pytest.mark.parametrize("drop", [drop_by_generator, drop_by_counter])


@both_sources
@pytest.mark.parametrize("probability", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_a_view_stays_with_the_probability_of_the_closed_form(drop: Drop, views: int, probability: float) -> None:
    """A view stays by its own draw, 1 - p, or if all are dropped, p^V, by being chosen from V."""
    expected = 1 - probability + probability**views / views
    kept = drop(torch.ones(ROWS, views, dtype=torch.bool), probability).double().mean(0)
    # Five standard errors of a share.
    error = 5 * (expected * (1 - expected) / ROWS) ** 0.5
    assert ((kept - expected).abs() <= error + 1e-12).all()


@both_sources
def test_subsets_have_the_probabilities_of_independent_drops(drop: Drop) -> None:
    kept = drop(torch.ones(ROWS, 3, dtype=torch.bool), 0.4)
    counts = torch.bincount(kept.long() @ torch.tensor([4, 2, 1]), minlength=8).tolist()
    for subset in range(8):
        size = subset.bit_count()
        expected = 0.6**size * 0.4 ** (3 - size) if size else 0.0
        expected += 0.4**3 / 3 if size == 1 else 0.0
        assert abs(counts[subset] / ROWS - expected) <= 5 * (expected * (1 - expected) / ROWS) ** 0.5


@both_sources
@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_absent_views_stay_absent_and_no_row_becomes_empty(drop: Drop, probability: float) -> None:
    mask = torch.randint(2, (ROWS, 4), generator=torch.Generator().manual_seed(1)).bool()
    original = mask.clone()
    kept = drop(mask, probability)
    assert kept.dtype == torch.bool
    assert mask.equal(original)
    assert not (kept & ~mask).any()
    assert kept.any(1).equal(mask.any(1))  # rows without a present view stay empty
    if probability == 1:
        assert kept.sum(1).equal(mask.any(1).long())


@both_sources
def test_only_present_views_count_in_the_closed_form(drop: Drop) -> None:
    mask = torch.tensor([True, False, True]).expand(ROWS, 3)
    kept = drop(mask, 0.8).double().mean(0)
    expected = 1 - 0.8 + 0.8**2 / 2
    assert (kept[[0, 2]] - expected).abs().max() <= 5 * (expected * (1 - expected) / ROWS) ** 0.5
    assert kept[1] == 0


def test_the_same_generator_drops_the_same_views() -> None:
    mask = torch.ones(50, 3, dtype=torch.bool)
    first, second, different = (drop_views(mask, 0.5, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert first.equal(second)
    assert not first.equal(different)


def test_a_key_drops_the_same_views_in_any_batch() -> None:
    mask, keys = torch.ones(50, 3, dtype=torch.bool), derive_keys(7, torch.arange(50))
    kept, order = drop_views_by_key(mask, 0.5, keys), torch.randperm(50)
    assert drop_views_by_key(mask[order], 0.5, keys[order]).equal(kept[order])
    assert drop_views_by_key(mask[:3], 0.5, keys[:3]).equal(kept[:3])


def test_dropped_views_do_not_depend_on_the_augmentation_of_the_same_key() -> None:
    """If both used one stream of numbers, dropped views would correlate with augmentations."""
    keys = derive_keys(0, torch.arange(ROWS))
    dropped = ~drop_views_by_key(torch.ones(ROWS, 2, dtype=torch.bool), 0.5, keys)[:, 0]
    for stream in range(3):
        values = uniform(keys, 2, stream=stream)
        for value in values.T:
            assert abs(float(torch.corrcoef(torch.stack([value, dropped.float()]))[0, 1])) < 0.03
    image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4).expand(ROWS, 1, 4, 4)
    is_unrotated = (augment(image, keys, "rotate") == image).flatten(1).all(1)
    assert abs(float(dropped[is_unrotated].double().mean() - dropped.double().mean())) < 0.03


@both_sources
@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_a_probability_outside_of_0_and_1_is_rejected(drop: Drop, probability: float) -> None:
    with pytest.raises(ValueError, match=f"expected 0 to 1, got {probability}"):
        drop(torch.ones(2, 2, dtype=torch.bool), probability)
