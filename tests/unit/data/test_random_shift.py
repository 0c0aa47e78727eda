"""Random shifts of batches of images."""

import numpy as np
import pytest
import torch

from benchmarks.sampling import drqv2_shift
from manyview.data.batch_augmentation import _shift_by_gather, random_shift, shift_views
from quality.plugin import Figure


def make_images(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def make_all_shifts(pixels: int) -> torch.Tensor:
    """Return each shift of an image by up to `pixels` once, [2, B, 1]."""
    reach = torch.arange(-pixels, pixels + 1)
    return torch.cartesian_prod(reach, reach).T.unsqueeze(-1)


@pytest.mark.quality("P8")
@pytest.mark.parametrize(("size", "pixels"), [(84, 4), (64, 4), (20, 3)])
def test_a_shift_equals_the_interpolation_of_drqv2(size: int, pixels: int, figure: Figure) -> None:
    shifts = make_all_shifts(pixels)
    views = make_images(shifts.shape[1], 1, 3, size, size)
    interpolated = drqv2_shift(views.flatten(0, 1).float(), shifts.flatten(1), pixels)
    figure(float((shift_views(views, shifts).flatten(0, 1) - interpolated).abs().max()), "difference in 255ths")


def test_a_shift_repeats_the_border() -> None:
    image = torch.arange(20, dtype=torch.uint8).view(1, 1, 1, 4, 5)
    for down, right in make_all_shifts(3)[..., 0].T.tolist():
        output = shift_views(image, torch.tensor([[[down]], [[right]]]))
        rows, columns = np.clip(np.arange(4) + down, 0, 3), np.clip(np.arange(5) + right, 0, 4)
        assert np.array_equal(output[0, 0, 0].numpy(), image[0, 0, 0].numpy()[np.ix_(rows, columns)])


def test_a_device_shifts_as_the_cpu_does() -> None:
    views, shifts = make_images(40, 3, 6, 11, 9), torch.randint(-4, 5, (2, 40, 3))
    assert _shift_by_gather(views, shifts).equal(shift_views(views, shifts))


def test_shifts_do_not_depend_on_the_memory_layout() -> None:
    views, shifts = make_images(3, 40, 6, 11, 9).transpose(0, 1), torch.randint(-4, 5, (2, 40, 3))
    output = shift_views(views, shifts)
    assert output.equal(shift_views(views.contiguous(), shifts))
    assert output.is_contiguous()


def test_every_image_is_shifted_independently() -> None:
    views = make_images(1, 1, 1, 30, 30).expand(900, 2, 1, 30, 30)
    output = random_shift(views, 4, torch.Generator().manual_seed(0))
    unique_images, counts = output.flatten(0, 1).unique(dim=0, return_counts=True)
    assert len(unique_images) == 9**2
    assert int(counts.min()) > 5
    assert not output[:, 0].equal(output[:, 1])


def test_the_same_generator_gives_the_same_shifts() -> None:
    views = make_images(20, 2, 3, 12, 12)
    first, second = (random_shift(views, 4, torch.Generator().manual_seed(5)) for _ in range(2))
    assert first.equal(second)
    assert not first.equal(random_shift(views, 4, torch.Generator().manual_seed(6)))


def test_a_shift_of_zero_pixels_returns_its_input() -> None:
    views = make_images(4, 2, 3, 12, 12)
    assert random_shift(views, 0, torch.Generator()) is views


def test_a_shift_by_the_size_of_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match="expected less than 8 pixels for images of 8x12, got 8"):
        shift_views(make_images(1, 1, 1, 8, 12), torch.tensor([[[0]], [[-8]]]))
