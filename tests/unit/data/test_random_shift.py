import numpy as np
import pytest
import torch

from benchmarks.sampling import drqv2_shift
from manyview.data.batch_augmentation import _shift_by_gather, random_shift, shift_views
from quality.plugin import Figure


def images(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def every_move(pixels: int) -> torch.Tensor:
    """[2, B, 1]: each way in which an image can be moved, once."""
    reach = torch.arange(-pixels, pixels + 1)
    return torch.cartesian_prod(reach, reach).T.unsqueeze(-1)


@pytest.mark.quality("P8")
@pytest.mark.parametrize(("size", "pixels"), [(84, 4), (64, 4), (20, 3)])
def test_a_shift_is_what_drqv2_interpolates(size: int, pixels: int, figure: Figure) -> None:
    moves = every_move(pixels)
    views = images(moves.shape[1], 1, 3, size, size)
    interpolated = drqv2_shift(views.flatten(0, 1).float(), moves.flatten(1), pixels)
    figure(float((shift_views(views, moves).flatten(0, 1) - interpolated).abs().max()), "difference in 255ths")


def test_a_shift_repeats_the_border() -> None:
    picture = torch.arange(20, dtype=torch.uint8).view(1, 1, 1, 4, 5)
    for down, right in every_move(3)[..., 0].T.tolist():
        moved = shift_views(picture, torch.tensor([[[down]], [[right]]]))
        rows, columns = np.clip(np.arange(4) + down, 0, 3), np.clip(np.arange(5) + right, 0, 4)
        assert np.array_equal(moved[0, 0, 0].numpy(), picture[0, 0, 0].numpy()[np.ix_(rows, columns)])


def test_a_device_shifts_as_the_cpu_does() -> None:
    views, moves = images(40, 3, 6, 11, 9), torch.randint(-4, 5, (2, 40, 3))
    assert _shift_by_gather(views, moves).equal(shift_views(views, moves))


def test_how_the_views_lie_in_memory_does_not_matter() -> None:
    views, moves = images(3, 40, 6, 11, 9).transpose(0, 1), torch.randint(-4, 5, (2, 40, 3))
    moved = shift_views(views, moves)
    assert moved.equal(shift_views(views.contiguous(), moves))
    assert moved.is_contiguous()


def test_every_image_is_moved_by_a_draw_of_its_own() -> None:
    views = images(1, 1, 1, 30, 30).expand(900, 2, 1, 30, 30)
    moved = random_shift(views, 4, torch.Generator().manual_seed(0))
    kinds, counts = moved.flatten(0, 1).unique(dim=0, return_counts=True)
    assert len(kinds) == 9**2
    assert int(counts.min()) > 5
    assert not moved[:, 0].equal(moved[:, 1])


def test_the_same_generator_gives_the_same_shifts() -> None:
    views = images(20, 2, 3, 12, 12)
    one, other = (random_shift(views, 4, torch.Generator().manual_seed(5)) for _ in range(2))
    assert one.equal(other)
    assert not one.equal(random_shift(views, 4, torch.Generator().manual_seed(6)))


def test_no_pixels_is_no_shift() -> None:
    views = images(4, 2, 3, 12, 12)
    assert random_shift(views, 0, torch.Generator()) is views


def test_a_shift_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="expected less than 8 pixels for images of 8x12, got 8"):
        shift_views(images(1, 1, 1, 8, 12), torch.tensor([[[0]], [[-8]]]))
