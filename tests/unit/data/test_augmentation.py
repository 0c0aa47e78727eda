"""Every augmentation is what it says, by its key alone."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from manyview.data import augmentation as module
from manyview.data.augmentation import (
    AUGMENTATIONS,
    FROM_YIQ,
    LUMA,
    TO_YIQ,
    Augmentation,
    augment,
    augment_views,
)
from manyview.utils.counter_rng import derive_keys, normal, uniform

EVERY: tuple[Augmentation, ...] = get_args(Augmentation)


def pictures(count: int = 40, *, size: int = 64) -> Tensor:
    return torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def key_of(count: int = 40) -> Tensor:
    return derive_keys(5, torch.arange(count))


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
def test_nothing_is_made_on_another_device_than_the_images(how: Augmentation) -> None:
    """See tests/unit/training/test_devices.py."""
    images, key = pictures(4), key_of(4)
    with torch.device("meta"):
        assert augment(images, key, how).device == images.device


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
    assert max(sides) == 21, "the authors draw below 22"
    assert min(tops) <= 1, "anywhere"
    assert max(tops) >= 48


@pytest.mark.parametrize("how", ["cutout", "cutout_color"])
def test_an_accelerator_paints_what_a_cpu_does(how: Augmentation, monkeypatch: pytest.MonkeyPatch) -> None:
    made = augment(pictures(), key_of(), how)
    monkeypatch.setattr(module, "_paint_by_slices", module._paint_by_pixels)
    assert torch.equal(augment(pictures(), key_of(), how), made)


def test_random_conv_is_a_convolution_of_the_whole_picture() -> None:
    """Its definition pixel by pixel: Xavier's weights from the key, the border repeated, a sigmoid, rounded."""
    images, key = pictures(4), key_of(4)
    std = (2 / (9 * 3 + 9 * 3)) ** 0.5
    weights = (normal(key, 81) * std).double().view(4, 3, 3, 3, 3)  # image, colour made, colour seen, row, column
    near = torch.arange(-1, 65).clamp(0, 63)
    bordered = images[:, :, near][:, :, :, near].double() / 255
    expected = torch.zeros(images.shape, dtype=torch.float64)
    for row in range(3):
        for column in range(3):
            seen = bordered[:, :, row : row + 64, column : column + 64]
            expected += torch.einsum("nms,nshw->nmhw", weights[..., row, column], seen)
    assert_rounded(augment(images, key, "random_conv"), expected.sigmoid() * 255)


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


def test_color_jitter_changes_one_thing_after_the_other() -> None:
    """Hue and saturation in YIQ, brightness, contrast around the mean brightness: each step as it is defined."""
    images, key = pictures(60), key_of(60)
    brightness, contrast, saturation = (0.6 + 0.8 * uniform(key, 3)).double().T
    turn = torch.polar(saturation, 2 * torch.pi * uniform(key, 1, stream=1).squeeze(1).double())
    luma, in_phase, quadrature = torch.einsum("ys,nshw->ynhw", TO_YIQ.double(), images.double())
    chroma = torch.complex(in_phase, quadrature) * turn[:, None, None]
    jittered = torch.stack([luma, chroma.real, chroma.imag], dim=1) * brightness[:, None, None, None]
    colours = torch.einsum("sy,nyhw->nshw", FROM_YIQ.double(), jittered)
    mean = (luma.mean((1, 2)) * brightness)[:, None, None, None]
    assert_rounded(augment(images, key, "color_jitter"), (colours - mean) * contrast[:, None, None, None] + mean)


def test_color_jitter_leaves_grey_grey() -> None:
    made = augment(augment(pictures(), key_of(), "grayscale"), key_of(), "color_jitter").int()
    assert (made.amax(1) - made.amin(1)).max() <= 1


def assert_rounded(made: Tensor, exactly: Tensor) -> None:
    """As numbers in float32 round: the nearest byte, but where a number is about half way between two."""
    exactly = exactly.clamp(0, 255)
    assert (made.double() - exactly).abs().max() <= 0.501


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(TypeError, match="uint8"):
        augment(pictures().float(), key_of(), "flip")
    with pytest.raises(ValueError, match="key"):
        augment(pictures(), key_of(3), "flip")
    with pytest.raises(ValueError, match="needs RGB images"):
        augment(pictures()[:, :1], key_of(), "grayscale")


def view_keys(rows: int, views: int) -> Tensor:
    return key_of(rows * views).view(rows, views)


@pytest.mark.parametrize("how", EVERY)
@pytest.mark.parametrize("channels", [1, 3])
def test_frames_of_a_stack_change_alike_and_images_each_on_their_own(how: Augmentation, channels: int) -> None:
    frame = pictures(1, size=20)[0, :channels]
    views = frame.repeat(16, 2, 3, 1, 1)  # 3 equal frames
    before, made = views.clone(), augment_views(views, view_keys(16, 2), how, frame_stack=3)
    assert (made.shape, made.dtype) == (views.shape, torch.uint8)
    assert torch.equal(views, before), "in place"
    frames = made.unflatten(2, (3, channels))
    for index in range(3):
        assert (frames[:, :, index].int() - frames[:, :, 0].int()).abs().max() <= (how == "random_conv")
    different = len({image.numpy().tobytes() for image in made.flatten(0, 1)})
    assert different == {"flip": 2, "grayscale": 1, "rotate": 4}.get(how, different)
    assert different > 20 or how in ("flip", "grayscale", "rotate")


@pytest.mark.parametrize("how", [how for how in EVERY if how != "flip"])
def test_views_of_a_batch_are_augmented_as_single_frames_by_the_same_key(how: Augmentation) -> None:
    frames = pictures(24, size=20).view(4, 2, 3, 3, 20, 20)
    made = augment_views(frames.flatten(2, 3), view_keys(4, 2), how, frame_stack=3).view(frames.shape)
    for index in range(3):
        single = augment(frames[:, :, index].flatten(0, 1), key_of(8), how).view(4, 2, 3, 20, 20)
        assert (made[:, :, index].int() - single.int()).abs().max() <= (how in ("random_conv", "color_jitter"))


def test_half_of_the_images_are_flipped_with_all_their_frames() -> None:
    views = pictures(800, size=8).view(200, 2, 6, 8, 8)
    made = augment_views(views, view_keys(200, 2), "flip", frame_stack=2)
    is_flipped, is_same = ((made == other).flatten(2).all(2) for other in (views.flip(-1), views))
    assert (is_flipped ^ is_same).all()
    assert 160 < int(is_flipped.sum()) < 240
    assert (is_flipped[:, 0] != is_flipped[:, 1]).any(), "each view by its own draw"


def test_gray_frames_keep_their_brightness_and_jitter_by_brightness_and_contrast() -> None:
    views, key = pictures(6, size=20)[:, :1].unsqueeze(1), view_keys(6, 1)
    assert torch.equal(augment_views(views, key, "grayscale", frame_stack=1), views)
    brightness, contrast, _ = (0.6 + 0.8 * uniform(key.flatten(), 3).double()).T[:, :, None, None, None, None]
    mean = views.double().mean((2, 3, 4), keepdim=True)
    expected = brightness * (contrast * views.double() + (1 - contrast) * mean)
    assert_rounded(augment_views(views, key, "color_jitter", frame_stack=1), expected)
