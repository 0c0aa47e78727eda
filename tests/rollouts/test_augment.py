"""Every augmentation is what it says, by its key alone."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from manyview.data.augment import AUGMENTATIONS, LUMA, Augmentation, augment
from manyview.data.draws import keys

EVERY: tuple[Augmentation, ...] = get_args(Augmentation)


def pictures(count: int = 40, *, size: int = 64) -> Tensor:
    return torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def key_of(count: int = 40) -> Tensor:
    return keys(5, torch.arange(count))


def test_there_is_one_for_each_name() -> None:
    assert tuple(AUGMENTATIONS) == EVERY


@pytest.mark.parametrize("how", EVERY)
def test_a_picture_depends_on_its_key_and_on_nothing_else(how: Augmentation) -> None:
    images, key = pictures(), key_of()
    before, made = images.clone(), augment(images, key, how)
    assert (made.shape, made.dtype) == (images.shape, torch.uint8)
    assert torch.equal(images, before), "in place"
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(2))
    assert torch.equal(augment(images[order], key[order], how), made[order])
    one = augment(images[3:4], key[3:4], how)
    # A convolution of one image and of many may add in another order.
    assert (one.int() - made[3:4].int()).abs().max() <= (1 if how in ("random_conv", "color_jitter") else 0)


@pytest.mark.parametrize("how", EVERY)
def test_another_key_gives_another_picture_where_there_is_chance(how: Augmentation) -> None:
    images = pictures(1).expand(40, -1, -1, -1).contiguous()
    different = len({bytes(picture.numpy().tobytes()) for picture in augment(images, key_of(), how)})
    expected = {"flip": 1, "grayscale": 1, "rotate": 4}.get(how)
    assert different == expected if expected else different > 30


def test_crop_shows_a_part_of_the_picture_with_its_border_repeated() -> None:
    images = pictures()
    padded = torch.nn.functional.pad(images.float(), (12, 12, 12, 12), mode="replicate").to(torch.uint8)
    made = augment(images, key_of(), "crop")
    places = []
    for image, whole in zip(made, padded, strict=True):
        windows = whole.unfold(1, 64, 1).unfold(2, 64, 1)  # [3, 25, 25, 64, 64]
        same = (windows == image[:, None, None]).flatten(3).all(-1).all(0)
        assert int(same.sum()) == 1
        places.append(same.nonzero()[0])
    found = torch.stack(places)
    assert found.min() <= 3, "it moves up to 12 pixels either way"
    assert found.max() >= 21


@pytest.mark.parametrize("how", ["cutout", "cutout_color"])
def test_cutout_paints_one_rectangle(how: Augmentation) -> None:
    images = pictures(200).clamp(min=1)
    images[images == 0] = 1
    made, sides, tops = augment(images, key_of(200), how), [], []
    for before, after in zip(images, made, strict=True):
        changed = (before != after).any(0)
        rows, columns = changed.any(1).nonzero().flatten(), changed.any(0).nonzero().flatten()
        top, bottom, left, right = int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])
        inside = after[:, top : bottom + 1, left : right + 1].flatten(1)
        assert (inside == inside[:, :1]).all(), "one colour"
        assert how == "cutout_color" or not inside.any()
        outside = ~torch.zeros_like(changed)
        outside[top : bottom + 1, left : right + 1] = False
        assert torch.equal(before[:, outside], after[:, outside])
        sides += [bottom - top + 1, right - left + 1]
        tops += [top, left]
    assert min(sides) == 7
    assert max(sides) == 22
    assert min(tops) <= 1, "anywhere"
    assert max(tops) >= 48


def test_random_conv_is_a_convolution_of_the_whole_picture() -> None:
    """Solve for the weights at some pixels; they explain all the others."""
    images = pictures(4)
    made = augment(images, key_of(4), "random_conv").double()
    inner = made[:, :, 1:-1, 1:-1]
    logits = torch.logit((inner / 255).clamp(0.02, 0.98))
    sure = ((inner > 15) & (inner < 240)).all(1).flatten(1)
    for image, wanted, usable in zip(images, logits, sure, strict=True):
        patches = torch.nn.functional.unfold(image.double().unsqueeze(0) / 255, 3)[0].T  # [62 * 62, 27]
        weights = torch.linalg.lstsq(patches[usable], wanted.flatten(1).T[usable]).solution
        error = (patches @ weights - wanted.flatten(1).T)[usable].abs().max()
        assert error < 0.1, "a rounded byte is up to 0.07 in the logit here"
        assert 0.1 < float(weights.std()) < 0.35, "Xavier's for three channels and nine pixels: 0.19"


def test_flip_is_the_mirror_image() -> None:
    images = pictures()
    made = augment(images, key_of(), "flip")
    assert torch.equal(made[:, :, 5, 10], images[:, :, 5, 53])
    assert torch.equal(augment(made, key_of(), "flip"), images)


def test_rotate_turns_by_quarters_each_as_often() -> None:
    images = pictures(400)
    made = augment(images, key_of(400), "rotate")
    turned = [(made == torch.rot90(images, quarter, (-2, -1))).flatten(1).all(1) for quarter in range(4)]
    counts = torch.stack(turned).sum(1)
    assert int(counts.sum()) == 400
    assert counts.min() > 70
    with pytest.raises(ValueError, match="square"):
        augment(images[:, :, :32], key_of(400), "rotate")


def test_grayscale_is_the_brightness() -> None:
    images = pictures()
    made = augment(images, key_of(), "grayscale")
    expected = (images.int() * torch.tensor(LUMA)[:, None, None]).sum(1) // 128
    for channel in range(3):
        assert torch.equal(made[:, channel].int(), expected)
    assert sum(LUMA) == 128


def test_color_jitter_is_one_linear_map_of_the_colours_that_keeps_grey_grey() -> None:
    images = (pictures(60) // 16 + 112).to(torch.uint8)  # far enough from both ends that nothing is cut
    made = augment(images, key_of(60), "color_jitter").double()
    ones = torch.ones(1, 64 * 64, dtype=torch.float64)
    angles = []
    for before, after in zip(images.double().flatten(2), made.flatten(2), strict=True):
        solved = torch.linalg.lstsq(torch.cat([before, ones]).T, after.T)
        assert (torch.cat([before, ones]).T @ solved.solution - after.T).abs().max() < 0.75, "rounding apart"
        matrix = solved.solution[:3].T
        rows = matrix.sum(1)
        assert (rows - rows.mean()).abs().max() < 0.05, "grey stays grey"
        assert 0.3 < float(rows.mean()) < 2.0, "brightness times contrast"
        angles.append(float(matrix[0, 0] - matrix[0, 1]))
    assert min(angles) < -0.2 < 0.5 < max(angles), "hues are turned all the way"


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(TypeError, match="uint8"):
        augment(pictures().float(), key_of(), "flip")
    with pytest.raises(ValueError, match="key"):
        augment(pictures(), key_of(3), "flip")
    with pytest.raises(ValueError, match="three colours"):
        augment(pictures()[:, :1], key_of(), "grayscale")
