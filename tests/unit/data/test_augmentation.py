"""Augmentations: each equals its definition and depends on its key alone."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from manyview.data import augmentation as augmentation_module
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

AUGMENTATION_NAMES: tuple[Augmentation, ...] = get_args(Augmentation)


def make_images(count: int = 40, *, size: int = 64) -> Tensor:
    """Return random images [N, 3, size, size]."""
    return torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def make_keys(count: int = 40) -> Tensor:
    return derive_keys(5, torch.arange(count))


def test_every_augmentation_name_has_a_function() -> None:
    assert tuple(AUGMENTATIONS) == AUGMENTATION_NAMES


@pytest.mark.parametrize("augmentation", AUGMENTATION_NAMES)
def test_an_augmented_image_depends_on_its_key_alone(augmentation: Augmentation) -> None:
    images, key = make_images(), make_keys()
    before, output = images.clone(), augment(images, key, augmentation)
    assert (output.shape, output.dtype) == (images.shape, torch.uint8)
    assert torch.equal(images, before), "in place"
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(2))
    assert torch.equal(augment(images[order], key[order], augmentation), output[order])
    single_output = augment(images[3:4], key[3:4], augmentation)
    # The order of summation of a convolution may depend on the batch size.
    assert (single_output.int() - output[3:4].int()).abs().max() <= (
        1 if augmentation in ("random_conv", "color_jitter") else 0
    )


@pytest.mark.parametrize("augmentation", AUGMENTATION_NAMES)
def test_augmented_images_stay_on_the_device_of_the_images(augmentation: Augmentation) -> None:
    """The default device is not used, see tests/unit/training/test_devices.py."""
    images, key = make_images(4), make_keys(4)
    with torch.device("meta"):
        assert augment(images, key, augmentation).device == images.device


@pytest.mark.parametrize("augmentation", AUGMENTATION_NAMES)
def test_different_keys_give_different_images(augmentation: Augmentation) -> None:
    images = make_images(1).expand(40, -1, -1, -1).contiguous()
    num_different = len({bytes(image.numpy().tobytes()) for image in augment(images, make_keys(), augmentation)})
    expected = {"flip": 1, "grayscale": 1, "rotate": 4}.get(augmentation)
    assert num_different == expected if expected else num_different > 30


def test_crop_is_a_window_of_the_image_with_a_replicated_border() -> None:
    images = make_images()
    padded_images = torch.nn.functional.pad(images.float(), (12, 12, 12, 12), mode="replicate").to(torch.uint8)
    output = augment(images, make_keys(), "crop")
    offsets = []
    for image, padded_image in zip(output, padded_images, strict=True):
        windows = padded_image.unfold(1, 64, 1).unfold(2, 64, 1)  # [3, 25, 25, 64, 64]
        matches = (windows == image[:, None, None]).flatten(3).all(-1).all(0)
        assert int(matches.sum()) == 1
        offsets.append(matches.nonzero()[0])
    all_offsets = torch.stack(offsets)
    assert all_offsets.min() <= 3, "it moves up to 12 pixels either way"
    assert all_offsets.max() >= 21


@pytest.mark.parametrize("augmentation", ["cutout", "cutout_color"])
def test_cutout_fills_one_rectangle(augmentation: Augmentation) -> None:
    images = make_images(200).clamp(min=1)
    images[images == 0] = 1
    output, sides, tops = augment(images, make_keys(200), augmentation), [], []
    for before, after in zip(images, output, strict=True):
        is_changed = (before != after).any(0)
        rows, columns = is_changed.any(1).nonzero().flatten(), is_changed.any(0).nonzero().flatten()
        top, bottom, left, right = int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])
        patch = after[:, top : bottom + 1, left : right + 1].flatten(1)
        assert (patch == patch[:, :1]).all(), "one color"
        assert augmentation == "cutout_color" or not patch.any()
        is_outside = ~torch.zeros_like(is_changed)
        is_outside[top : bottom + 1, left : right + 1] = False
        assert torch.equal(before[:, is_outside], after[:, is_outside])
        sides += [bottom - top + 1, right - left + 1]
        tops += [top, left]
    assert min(sides) == 7
    assert max(sides) == 21, "the authors draw below 22"
    assert min(tops) <= 1, "anywhere"
    assert max(tops) >= 48


@pytest.mark.parametrize("augmentation", ["cutout", "cutout_color"])
def test_cutout_by_pixels_equals_cutout_by_slices(augmentation: Augmentation, monkeypatch: pytest.MonkeyPatch) -> None:
    output = augment(make_images(), make_keys(), augmentation)
    monkeypatch.setattr(augmentation_module, "_paint_by_slices", augmentation_module._paint_by_pixels)
    assert torch.equal(augment(make_images(), make_keys(), augmentation), output)


def test_random_conv_is_a_convolution_of_the_whole_image() -> None:
    """The definition: Xavier weights from the key, a replicated border and a sigmoid."""
    images, key = make_images(4), make_keys(4)
    std = (2 / (9 * 3 + 9 * 3)) ** 0.5
    weights = (normal(key, 81) * std).double().view(4, 3, 3, 3, 3)  # image, output channel, input channel, row, column
    clamped_indices = torch.arange(-1, 65).clamp(0, 63)
    padded_images = images[:, :, clamped_indices][:, :, :, clamped_indices].double() / 255
    expected = torch.zeros(images.shape, dtype=torch.float64)
    for row in range(3):
        for column in range(3):
            window = padded_images[:, :, row : row + 64, column : column + 64]
            expected += torch.einsum("nms,nshw->nmhw", weights[..., row, column], window)
    assert_rounded(augment(images, key, "random_conv"), expected.sigmoid() * 255)


def test_flip_is_the_mirror_image() -> None:
    images = make_images()
    output = augment(images, make_keys(), "flip")
    assert torch.equal(output[:, :, 5, 10], images[:, :, 5, 53])
    assert torch.equal(augment(output, make_keys(), "flip"), images)


def test_rotate_turns_by_each_multiple_of_90_degrees_equally_often() -> None:
    images = make_images(400)
    output = augment(images, make_keys(400), "rotate")
    matches = [(output == torch.rot90(images, turns, (-2, -1))).flatten(1).all(1) for turns in range(4)]
    counts = torch.stack(matches).sum(1)
    assert int(counts.sum()) == 400
    assert counts.min() > 70
    with pytest.raises(ValueError, match="square"):
        augment(images[:, :, :32], make_keys(400), "rotate")


def test_grayscale_equals_the_luma() -> None:
    images = make_images()
    output = augment(images, make_keys(), "grayscale")
    expected = (images.int() * torch.tensor(LUMA)[:, None, None]).sum(1) // 128
    for channel in range(3):
        assert torch.equal(output[:, channel].int(), expected)
    assert sum(LUMA) == 128


def test_color_jitter_equals_its_definition() -> None:
    """The definition: hue and saturation in YIQ, brightness, contrast around the mean."""
    images, key = make_images(60), make_keys(60)
    brightness, contrast, saturation = (0.6 + 0.8 * uniform(key, 3)).double().T
    rotation = torch.polar(saturation, 2 * torch.pi * uniform(key, 1, stream=1).squeeze(1).double())
    luma, in_phase, quadrature = torch.einsum("ys,nshw->ynhw", TO_YIQ.double(), images.double())
    chroma = torch.complex(in_phase, quadrature) * rotation[:, None, None]
    yiq = torch.stack([luma, chroma.real, chroma.imag], dim=1) * brightness[:, None, None, None]
    rgb = torch.einsum("sy,nyhw->nshw", FROM_YIQ.double(), yiq)
    mean = (luma.mean((1, 2)) * brightness)[:, None, None, None]
    assert_rounded(augment(images, key, "color_jitter"), (rgb - mean) * contrast[:, None, None, None] + mean)


def test_color_jitter_keeps_gray_images_gray() -> None:
    output = augment(augment(make_images(), make_keys(), "grayscale"), make_keys(), "color_jitter").int()
    assert (output.amax(1) - output.amin(1)).max() <= 1


def assert_rounded(output: Tensor, exact_values: Tensor) -> None:
    """Assert that `output` has the nearest bytes, up to float32 errors at halves."""
    exact_values = exact_values.clamp(0, 255)
    assert (output.double() - exact_values).abs().max() <= 0.501


def test_invalid_images_and_keys_are_refused() -> None:
    with pytest.raises(TypeError, match="uint8"):
        augment(make_images().float(), make_keys(), "flip")
    with pytest.raises(ValueError, match="key"):
        augment(make_images(), make_keys(3), "flip")
    with pytest.raises(ValueError, match="needs RGB images"):
        augment(make_images()[:, :1], make_keys(), "grayscale")


def make_view_keys(rows: int, views: int) -> Tensor:
    return make_keys(rows * views).view(rows, views)


@pytest.mark.parametrize("augmentation", AUGMENTATION_NAMES)
@pytest.mark.parametrize("channels", [1, 3])
def test_frames_of_a_stack_change_alike_and_images_independently(augmentation: Augmentation, channels: int) -> None:
    frame = make_images(1, size=20)[0, :channels]
    views = frame.repeat(16, 2, 3, 1, 1)  # 3 equal frames
    before, output = views.clone(), augment_views(views, make_view_keys(16, 2), augmentation, frame_stack=3)
    assert (output.shape, output.dtype) == (views.shape, torch.uint8)
    assert torch.equal(views, before), "in place"
    frames = output.unflatten(2, (3, channels))
    for index in range(3):
        assert (frames[:, :, index].int() - frames[:, :, 0].int()).abs().max() <= (augmentation == "random_conv")
    num_different = len({image.numpy().tobytes() for image in output.flatten(0, 1)})
    assert num_different == {"flip": 2, "grayscale": 1, "rotate": 4}.get(augmentation, num_different)
    assert num_different > 20 or augmentation in ("flip", "grayscale", "rotate")


@pytest.mark.parametrize(
    "augmentation", [augmentation for augmentation in AUGMENTATION_NAMES if augmentation != "flip"]
)
def test_views_of_a_batch_are_augmented_as_single_frames_by_the_same_key(augmentation: Augmentation) -> None:
    frames = make_images(24, size=20).view(4, 2, 3, 3, 20, 20)
    output = augment_views(frames.flatten(2, 3), make_view_keys(4, 2), augmentation, frame_stack=3).view(frames.shape)
    for index in range(3):
        single = augment(frames[:, :, index].flatten(0, 1), make_keys(8), augmentation).view(4, 2, 3, 20, 20)
        assert (output[:, :, index].int() - single.int()).abs().max() <= (
            augmentation in ("random_conv", "color_jitter")
        )


def test_half_of_the_images_are_flipped_with_all_their_frames() -> None:
    views = make_images(800, size=8).view(200, 2, 6, 8, 8)
    output = augment_views(views, make_view_keys(200, 2), "flip", frame_stack=2)
    is_flipped, is_same = ((output == candidate).flatten(2).all(2) for candidate in (views.flip(-1), views))
    assert (is_flipped ^ is_same).all()
    assert 160 < int(is_flipped.sum()) < 240
    assert (is_flipped[:, 0] != is_flipped[:, 1]).any(), "each view by its own draw"


def test_gray_frames_keep_their_brightness_and_jitter_by_brightness_and_contrast() -> None:
    views, key = make_images(6, size=20)[:, :1].unsqueeze(1), make_view_keys(6, 1)
    assert torch.equal(augment_views(views, key, "grayscale", frame_stack=1), views)
    brightness, contrast, _ = (0.6 + 0.8 * uniform(key.flatten(), 3).double()).T[:, :, None, None, None, None]
    mean = views.double().mean((2, 3, 4), keepdim=True)
    expected = brightness * (contrast * views.double() + (1 - contrast) * mean)
    assert_rounded(augment_views(views, key, "color_jitter", frame_stack=1), expected)
