"""Trunks: layers, sizes, cost and initialization against explicit computations."""

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.trunks import count_macs
from manyview.nn.trunks import (
    TRUNKS,
    DifferenceConv2d,
    ResidualBlock,
    Trunk,
    init_orthogonal,
    make_trunk,
    normalize_images,
)

FEATURES: list[tuple[Trunk, int, int]] = [
    ("paper", 84, 35 * 35 * 32),
    ("small", 24, 3 * 3 * 32),
    ("small", 32, 5 * 5 * 32),
    ("small", 35, 5 * 5 * 32),
    ("small", 36, 3 * 3 * 32),
    ("small", 40, 4 * 4 * 32),
    ("tiny", 20, 4 * 4 * 16),
    ("tiny_diff", 32, 7 * 7 * 16),
    ("nature", 84, 7 * 7 * 64),
    ("nature", 64, 4 * 4 * 64),
    ("impala", 64, 8 * 8 * 32),
    ("impala", 84, 11 * 11 * 32),  # 84, 42, 21, 11
    ("impala_half", 64, 8 * 8 * 16),
    ("area", 16, 4 * 4 * 64),
    ("area", 25, 8 * 8 * 64),
    ("area", 26, 5 * 5 * 64),
    ("area", 32, 6 * 6 * 64),
]


def test_every_trunk_name_has_its_convolutions() -> None:
    assert set(TRUNKS) == set(get_args(Trunk))


@pytest.mark.parametrize(("trunk", "size", "expected"), FEATURES)
def test_the_number_of_features_is_that_of_the_output(trunk: Trunk, size: int, expected: int) -> None:
    network, flat_dim = make_trunk((9, size, size), trunk)
    assert flat_dim == expected
    assert network(torch.zeros(2, 9, size, size)).shape == (2, expected)


@pytest.mark.parametrize("trunk", get_args(Trunk))
def test_images_need_not_be_square(trunk: Trunk) -> None:
    network, flat_dim = make_trunk((3, 41, 58), trunk)
    assert network(torch.zeros(1, 3, 41, 58)).shape == (1, flat_dim)


@pytest.mark.parametrize("trunk", get_args(Trunk))
def test_features_and_gradients_do_not_depend_on_the_layout_of_the_images(trunk: Trunk) -> None:
    network = make_trunk((6, 36, 40), trunk)[0].double()
    images = torch.randint(256, (4, 6, 36, 40), dtype=torch.uint8)
    results = []
    for pixels in (normalize_images(images, torch.float64), images.double() / 255 - 0.5):
        output = network(pixels)
        results.append([output, *torch.autograd.grad(output.square().mean(), list(network.parameters()))])
    torch.testing.assert_close(*results)


def test_images_are_channels_last_for_a_backward_pass_alone() -> None:
    images = torch.randint(256, (4, 6, 8, 8), dtype=torch.uint8)
    assert normalize_images(images).is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert normalize_images(images).is_contiguous()


@pytest.mark.parametrize("size", range(16, 41))
def test_area_keeps_at_most_4096_features_up_to_40_pixels(size: int) -> None:
    assert make_trunk((3, size, size), "area")[1] <= 4096


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_difference_convolution_sees_the_newest_frame_and_the_scaled_changes(frames: int) -> None:
    images = torch.rand(2, 3 * frames, 9, 8)
    changes = (images[:, 3:] - images[:, :-3]) * 4
    convolution = DifferenceConv2d(3 * frames, 5, 3, stride=2)
    expected = F.conv2d(torch.cat([changes, images[:, -3:]], dim=1), convolution.weight, convolution.bias, stride=2)
    torch.testing.assert_close(convolution(images), expected)
    gradient, expected_gradient = (
        torch.autograd.grad(output.sum(), convolution.weight) for output in (convolution(images), expected)
    )
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


def test_difference_convolution_sees_a_small_change_under_autocast() -> None:
    """1 of 255 is less than bfloat16 resolves."""
    before = torch.full((1, 3, 3, 3), 200 / 255)
    images = torch.cat([before, before + 1 / 255], dim=1)
    convolution = DifferenceConv2d(6, 5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        output = convolution(images)
    torch.testing.assert_close(output, convolution(images))


@pytest.mark.parametrize("trunk", get_args(Trunk))
def test_a_trunk_in_bfloat16_takes_images_in_bfloat16(trunk: Trunk) -> None:
    network = make_trunk((3, 84, 84), trunk)[0].bfloat16()
    assert network(torch.zeros(1, 3, 84, 84, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_differences_of_frames_that_are_not_in_color_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'tiny_diff' .* expected a multiple of 3 channels, got 4\. Use 'tiny'"):
        make_trunk((4, 32, 32), "tiny_diff")


def compute_impala(network: nn.Sequential, images: Tensor) -> Tensor:
    """Compute three stages and the last ReLU from the bare weights, in float64."""
    weights = [parameter.detach().double() for parameter in network.parameters()]
    pairs = list(zip(weights[::2], weights[1::2], strict=True))
    x = images.double()
    for stage in range(3):
        first, *blocks = pairs[5 * stage : 5 * stage + 5]
        x = F.pad(F.conv2d(x, *first, padding=1), (1, 1, 1, 1), value=-torch.inf)
        x = x.unfold(2, 3, 2).unfold(3, 3, 2).amax((4, 5))  # max-pooling
        for a, b in (blocks[:2], blocks[2:]):
            x = x + F.conv2d(F.conv2d(x.clamp(min=0), *a, padding=1).clamp(min=0), *b, padding=1)
    return x.clamp(min=0).flatten(1)


@pytest.mark.parametrize("trunk", ["impala", "impala_half"])
def test_impala_equals_its_definition(trunk: Trunk) -> None:
    network, _ = make_trunk((3, 21, 30), trunk)
    for parameter in network.parameters():  # biases too
        nn.init.normal_(parameter, std=0.2)
    images = torch.randn(2, 3, 21, 30)
    assert len(list(network.parameters())) == 2 * 15
    torch.testing.assert_close(network(images), compute_impala(network, images).float(), rtol=1e-3, atol=1e-3)


def test_a_residual_block_leaves_its_input_unchanged() -> None:
    inputs = torch.randn(2, 4, 5, 5)
    before = inputs.clone()
    ResidualBlock(4)(inputs)
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("trunk", ["paper", "small", "tiny", "nature", "area"])
def test_a_seed_gives_the_weights_of_the_bare_convolutions_in_order(trunk: Trunk) -> None:
    torch.manual_seed(5)
    network, _ = make_trunk((3, 40, 40), trunk)
    torch.manual_seed(5)
    channels = 3
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    for layer, (filters, kernel, _) in zip(layers, TRUNKS[trunk], strict=True):
        assert torch.equal(layer.weight, nn.Conv2d(channels, filters, kernel).weight)
        channels = filters


@pytest.mark.parametrize("trunk", get_args(Trunk))
def test_initialization_is_orthogonal_in_every_convolution(trunk: Trunk) -> None:
    network, _ = make_trunk((3, 40, 40), trunk)
    network.apply(init_orthogonal)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == (15 if trunk.startswith("impala") else len(TRUNKS[trunk]))
    for layer in convolutions:
        matrix = layer.weight.flatten(1)
        rows = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(len(rows)), rtol=0, atol=1e-5)  # ReLU's gain √2
        assert layer.bias is not None
        assert not layer.bias.any()


@pytest.mark.parametrize(
    ("trunk", "size", "place", "rest"),
    [
        ("nature", 35, 3, 2),  # 35, 7, 2
        ("area", 9, 2, 3),
        ("impala", 4, 2, 2),
        ("impala_half", 8, 3, 2),
        ("paper", 14, 4, 2),  # 14, 6, 4, 2
    ],
)
def test_too_small_images_are_refused_by_name(trunk: Trunk, size: int, place: int, rest: int) -> None:
    expected = rf"{size}x{size} are too small for the trunk '{trunk}'.* at convolution {place}, got {rest}x{rest}"
    with pytest.raises(ValueError, match=expected):
        make_trunk((3, size, size), trunk)


# Output height and width, then filters, kernel² and input channels, of each convolution.
MACS: list[tuple[Trunk, int, int]] = [
    ("paper", 84, (41**2 * 9 + (39**2 + 37**2 + 35**2) * 32) * 32 * 9),
    ("nature", 84, 20**2 * 32 * 64 * 9 + 9**2 * 64 * 16 * 32 + 7**2 * 64 * 9 * 64),
    ("area", 16, 7**2 * 32 * 16 * 9 + 4**2 * 64 * 16 * 32),
    ("area", 32, 15**2 * 32 * 16 * 9 + 6**2 * 64 * 16 * 32),
    (
        "impala",
        64,
        9
        * (64**2 * 16 * 9 + 4 * 32**2 * 16**2 + 32**2 * 32 * 16 + 4 * 16**2 * 32**2 + 16**2 * 32**2 + 4 * 8**2 * 32**2),
    ),
]


@pytest.mark.parametrize(("trunk", "size", "expected"), MACS)
def test_multiply_accumulates_equal_the_closed_form(trunk: Trunk, size: int, expected: int) -> None:
    assert count_macs((9, size, size), trunk) == expected
