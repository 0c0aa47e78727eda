"""`resize_image` and `convert_channels`, against exact fractions per pixel."""

import ast
import sys
from fractions import Fraction
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from manyview.envs.views import Image
from manyview.runtime import image_resize
from manyview.runtime.image_resize import Aspect, convert_channels, resize_image


def make_image(*shape: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def compute_overlap(start: Fraction, stop: Fraction, pixel: int) -> Fraction:
    return max(Fraction(0), min(stop, Fraction(pixel + 1)) - max(start, Fraction(pixel)))


def compute_area_means(image: Image, size: int) -> Image:
    """Return exact means over the area of each pixel, in fractions, rounded half up."""
    height, width, channels = image.shape
    result = np.empty((size, size, channels), np.uint8)
    for row in range(size):
        rows = [
            compute_overlap(Fraction(row * height, size), Fraction((row + 1) * height, size), i) for i in range(height)
        ]
        for column in range(size):
            start, stop = Fraction(column * width, size), Fraction((column + 1) * width, size)
            columns = [compute_overlap(start, stop, j) for j in range(width)]
            for channel in range(channels):
                total = sum(
                    rows[i] * columns[j] * int(image[i, j, channel])
                    for i in range(height)
                    for j in range(width)
                    if rows[i] and columns[j]
                )
                result[row, column, channel] = int(total / (sum(rows) * sum(columns)) + Fraction(1, 2))
    return result


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [
        (12, 12, 4),
        (15, 15, 4),
        (7, 13, 5),
        (13, 7, 5),
        (9, 9, 9),
        (3, 5, 8),
        (1, 1, 3),
        (1, 9, 4),
        (11, 11, 1),
        (2, 3, 1),
    ],
)
def test_every_pixel_is_the_exact_mean_of_its_area(height: int, width: int, size: int) -> None:
    image = make_image(height, width, 3)
    assert np.array_equal(resize_image(image, size, "stretch"), compute_area_means(image, size))


def test_halves_are_rounded_up() -> None:
    image = np.array([[0, 1], [0, 1]], np.uint8)[..., None]
    assert resize_image(image, 1).item() == 1
    image = np.array([[0, 1], [0, 0]], np.uint8)[..., None]
    assert resize_image(image, 1).item() == 0


@pytest.mark.parametrize("shape", [(480, 640, 3), (487, 641, 3), (720, 1280, 3)])
@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_sums_of_large_images_are_exact(shape: tuple[int, ...], value: int) -> None:
    """A rounded or overflowing sum would change the color of a constant image."""
    assert (resize_image(np.full(shape, value, np.uint8), 64, "stretch") == value).all()


def test_large_images_with_fractional_ratios_are_exact() -> None:
    """With rows and columns repeated 64 times, every pixel covers whole pixels."""
    image, size = make_image(487, 641, 3), 64
    rows = image.repeat(size, 0).reshape(size, 487, 641, 3).sum(1, dtype=np.int64)
    sums = rows.repeat(size, 1).reshape(size, size, 641, 3).sum(2)
    total = 487 * 641
    assert np.array_equal(resize_image(image, size, "stretch"), (2 * sums + total) // (2 * total))


@pytest.mark.parametrize("brighter", [0, 1])
@pytest.mark.parametrize("value", [100, 127, 254])
def test_one_gray_level_in_300_000_pixels_decides_the_rounding(value: int, brighter: int) -> None:
    image = np.full(487 * 641, value, np.uint8)
    image[: 487 * 641 // 2 + brighter] += 1
    assert resize_image(image.reshape(487, 641, 1), 1, "stretch").item() == value + brighter


@pytest.mark.parametrize(("height", "width"), [(6, 10), (10, 6), (7, 10), (10, 7)])
def test_crop_is_the_square_at_the_center(height: int, width: int) -> None:
    image, side = make_image(height, width, 3), min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[top : top + side, left : left + side]
    assert np.array_equal(resize_image(image, 4, "crop"), compute_area_means(square, 4))


@pytest.mark.parametrize("portrait", [False, True])
def test_pad_keeps_the_whole_image_between_black_bars(portrait: bool) -> None:
    image = np.full((6, 12, 3), 200, np.uint8)
    resized = resize_image(image.transpose(1, 0, 2) if portrait else image, 4, "pad")
    rows = resized.transpose(1, 0, 2) if portrait else resized
    assert (rows[[0, 3]] == 0).all()
    assert (rows[1:3] == 200).all()


def test_stretch_shows_the_corners() -> None:
    image = np.zeros((6, 12, 1), np.uint8)
    image[:3, :6], image[3:, 6:] = 100, 200
    assert resize_image(image, 2, "stretch")[..., 0].tolist() == [[100, 0], [0, 200]]


@pytest.mark.parametrize("aspect", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("shape", [(8, 8, 3), (1, 1, 1), (1, 7, 3), (7, 1, 4), (9, 4, 2)])
def test_the_result_is_a_new_square_with_the_same_channels(shape: tuple[int, int, int], aspect: Aspect) -> None:
    image = make_image(*shape)
    before = image.copy()
    resized = resize_image(image, 8, aspect)
    assert resized.shape == (8, 8, shape[2])
    assert resized.dtype == np.uint8
    resized[:] = 0
    assert np.array_equal(image, before)


def test_the_memory_layout_of_the_image_does_not_matter() -> None:
    image = make_image(10, 12, 3)
    strided = np.asfortranarray(image)[:, :, ::-1]
    assert np.array_equal(resize_image(strided, 5), resize_image(np.ascontiguousarray(strided), 5))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 3)), r"got float64 of shape \(4, 4, 3\)"),
        (np.zeros((4, 4), np.uint8), r"height, width and channels, got uint8 of shape \(4, 4\)"),
        (np.zeros((0, 4, 3), np.uint8), r"got uint8 of shape \(0, 4, 3\)"),
        (np.zeros((2, 4, 4, 3), np.uint8), r"got uint8 of shape \(2, 4, 4, 3\)"),
    ],
)
def test_an_invalid_image_is_an_error(image: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resize_image(image, 4)


@pytest.mark.parametrize(
    ("size", "aspect", "message"),
    [
        (0, "crop", "invalid image_size: expected an integer of at least 1, got 0"),
        (True, "crop", "got True"),
        (2.5, "crop", r"got 2\.5"),
        (4, "fit", "invalid aspect: expected crop, pad, stretch, got 'fit'"),
    ],
)
def test_an_invalid_size_or_aspect_is_an_error(size: Any, aspect: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resize_image(make_image(4, 4, 3), size, aspect)


def test_bgr_and_channels_first_become_height_width_rgb() -> None:
    image = make_image(4, 5, 3)
    assert np.array_equal(convert_channels(image[..., ::-1], "bgr"), image)
    assert np.array_equal(convert_channels(image.transpose(2, 0, 1), channels_first=True), image)
    assert np.array_equal(convert_channels(image[..., ::-1].transpose(2, 0, 1), "bgr", channels_first=True), image)


@pytest.mark.parametrize("value", [None, "picture", make_image(4, 5), make_image(4, 5, 1), make_image(4, 5, 4)])
def test_gray_images_alpha_channels_and_other_things_stay_as_they_are(value: Any) -> None:
    assert convert_channels(value, "bgr") is value


def test_the_module_needs_numpy_alone() -> None:
    tree = ast.parse(Path(image_resize.__file__).read_text())
    from_imports = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.split(".")[0] for name in from_imports | imports} <= sys.stdlib_module_names | {"numpy"}


@pytest.mark.timing
def test_a_camera_of_480_x_640_takes_a_few_milliseconds(slack: float) -> None:
    image, times = make_image(480, 640, 3), []
    for _ in range(50):
        start = perf_counter()
        resize_image(image, 64)
        times.append(perf_counter() - start)
    assert min(times) < 0.005 * (1 + slack)
