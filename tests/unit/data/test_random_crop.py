"""Random and center crops of batches of images."""

import numpy as np
import pytest
import torch

from manyview.data.batch_augmentation import ShiftMode, _crop_by_index, center_crop, crop_views, random_crop


def make_positions(batch: int, views: int, channels: int, height: int, width: int) -> torch.Tensor:
    """Return images [B, V, C, H, W] whose pixels encode their position: 16 * row + column."""
    assert height <= 16
    assert width <= 16
    image = 16 * torch.arange(height)[:, None] + torch.arange(width)
    return image.to(torch.uint8).expand(batch, views, channels, height, width)


def find_starts(crops: torch.Tensor) -> torch.Tensor:
    """Return the row and column [2, B, V] at which the windows of `make_positions` start."""
    corner = crops[:, :, 0, 0, 0].long()
    return torch.stack([corner // 16, corner % 16])


@pytest.mark.parametrize("mode", ["each", "common"])
@pytest.mark.parametrize(("height", "width", "size"), [(12, 12, 9), (9, 16, 5), (7, 7, 7), (16, 6, 1)])
def test_each_crop_is_a_window_of_its_image(height: int, width: int, size: int, mode: ShiftMode) -> None:
    views = torch.randint(256, (6, 2, 3, height, width), dtype=torch.uint8)
    # The same generator gives the same windows, which the positions reveal.
    crops, positions = (
        random_crop(images, size, torch.Generator().manual_seed(3), mode)
        for images in (views, make_positions(6, 2, 3, height, width))
    )
    assert crops.shape == (6, 2, 3, size, size)
    assert crops.dtype == torch.uint8
    for row, view, channel in np.ndindex(6, 2, 3):
        top, left = find_starts(positions)[:, row, view].tolist()
        window = views[row, view, channel].numpy()[top : top + size, left : left + size]
        assert np.array_equal(crops[row, view, channel].numpy(), window)


def test_windows_are_uniform_over_all_starts() -> None:
    crops = random_crop(make_positions(3000, 2, 1, 8, 9), 6, torch.Generator().manual_seed(0))
    top, left = find_starts(crops)
    counts = torch.bincount((top * 4 + left).flatten(), minlength=12)
    assert len(counts) == 12  # 3 rows and 4 columns
    expected = 6000 / 12
    # 31.3: the chi-square value with 11 degrees of freedom that chance exceeds once in 1,000 draws.
    assert float(((counts - expected) ** 2 / expected).sum()) < 31.3
    # Rows, columns and views are drawn independently of each other.
    for first, second in ((top, left), (top[:, 0], top[:, 1]), (left[:, 0], left[:, 1]), (top[1:], top[:-1])):
        assert abs(float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]).float())[0, 1])) < 0.06


def test_stacked_frames_have_the_same_window() -> None:
    crops = random_crop(make_positions(50, 2, 9, 12, 12), 8, torch.Generator().manual_seed(1))
    assert crops.equal(crops[:, :, :1].expand_as(crops))


def test_common_crops_have_one_window_per_view() -> None:
    views = make_positions(40, 2, 3, 16, 16)
    top, left = find_starts(random_crop(views, 6, torch.Generator().manual_seed(2), "common"))
    assert top.equal(top[:1].expand_as(top))
    assert left.equal(left[:1].expand_as(left))
    assert (int(top[0, 0]), int(left[0, 0])) != (int(top[0, 1]), int(left[0, 1]))


def test_the_same_generator_gives_the_same_crops() -> None:
    views = torch.randint(256, (20, 2, 3, 14, 14), dtype=torch.uint8)
    first, second, different = (random_crop(views, 9, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert first.equal(second)
    assert not first.equal(different)


def test_a_device_crops_as_the_cpu_does() -> None:
    views, starts = torch.randint(256, (30, 3, 6, 11, 9), dtype=torch.uint8), torch.randint(3, (2, 30, 3))
    assert _crop_by_index(views, starts, 7).equal(crop_views(views, starts, 7))


def test_crops_do_not_depend_on_the_memory_layout() -> None:
    views = torch.randint(256, (3, 30, 6, 11, 9), dtype=torch.uint8).transpose(0, 1)
    starts = torch.randint(3, (2, 30, 3))
    crops = crop_views(views, starts, 7)
    assert crops.equal(crop_views(views.contiguous(), starts, 7))
    assert crops.is_contiguous()


@pytest.mark.parametrize(("height", "width", "size", "start"), [(10, 10, 8, 17), (9, 12, 4, 36), (5, 5, 5, 0)])
def test_the_center_crop_has_equal_margins(height: int, width: int, size: int, start: int) -> None:
    crops = center_crop(make_positions(1, 2, 3, height, width), size)
    assert crops.shape == (1, 2, 3, size, size)
    assert int(crops[0, 0, 0, 0, 0]) == start
    assert int(crops[0, 1, 2, -1, -1]) == start + 17 * (size - 1)


@pytest.mark.parametrize("size", [0, 9])
def test_a_crop_larger_than_the_image_is_rejected(size: int) -> None:
    views = make_positions(1, 1, 1, 8, 12)
    with pytest.raises(ValueError, match=f"expected 1 to 8 pixels for images of 8x12, got {size}"):
        random_crop(views, size, torch.Generator())
    with pytest.raises(ValueError, match=f"expected 1 to 8 pixels for images of 8x12, got {size}"):
        center_crop(views, size)
