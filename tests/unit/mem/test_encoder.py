"""The encoder of MEM: shapes, view masks and errors of its inputs."""

import pytest
import torch

from manyview.mem import Encoder, stack_views
from manyview.nn.trunks import make_trunk
from tests.support.mem import IMAGE_SHAPE, make_images, make_random_mask


def test_the_papers_network_has_39200_features_before_the_heads() -> None:
    encoder = Encoder(3, (9, 84, 84))
    assert encoder.heads.in_features == 35 * 35 * 32
    assert encoder.state_dim == 4 * 64
    assert encoder(torch.zeros(2, 3, 9, 84, 84, dtype=torch.uint8)).state.shape == (2, 256)


@pytest.mark.parametrize("shape", [(1, 36, 36), (3, 64, 64), (9, 84, 84), (12, 50, 70)])
@pytest.mark.parametrize("trunk", ["paper", "small"])
def test_images_of_different_sizes_and_channels_are_encoded(shape: tuple[int, int, int], trunk: str) -> None:
    encoder = Encoder(2, shape, trunk=trunk)  # type: ignore[arg-type]
    assert encoder(torch.zeros(1, 2, *shape, dtype=torch.uint8)).state.isfinite().all()


@pytest.mark.parametrize("size", [20, 24, 32, 40, 64])
def test_the_small_trunk_depends_on_every_pixel_of_small_images(size: int) -> None:
    """Strided convolutions without padding can skip pixels at the border."""
    network, _ = make_trunk((3, size, size), "small")
    image = torch.rand(8, 3, size, size, requires_grad=True)
    network(image).sum().backward()
    assert image.grad is not None
    assert image.grad.abs().sum((0, 1)).all()


def test_each_view_is_encoded_independently() -> None:
    encoder = Encoder(4, IMAGE_SHAPE, latent_dim=8, trunk="small")
    views = make_images(5)
    permuted_features = encoder(views[:, [2, 0, 3, 1]])
    features = encoder(views)
    torch.testing.assert_close(permuted_features.shared, features.shared[:, [2, 0, 3, 1]])
    torch.testing.assert_close(permuted_features.shared_mean, features.shared_mean)


def test_images_of_absent_views_do_not_affect_features() -> None:
    encoder = Encoder(4, IMAGE_SHAPE, latent_dim=8, trunk="small")
    views, mask = make_images(6), make_random_mask(6)
    changed_views = torch.where(mask[:, :, None, None, None], views, make_images(6, seed=1))
    for actual, expected in zip(encoder(changed_views, mask), encoder(views, mask), strict=True):
        assert actual.equal(expected)


def test_a_learned_token_replaces_an_absent_view_in_the_state() -> None:
    encoder = Encoder(4, IMAGE_SHAPE, latent_dim=8, trunk="small")
    torch.nn.init.normal_(encoder.absent_token)
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[1, 2] = False
    state = encoder(make_images(2), mask).state
    assert state[1, 16:24].equal(encoder.absent_token[2])
    state.sum().backward()
    assert encoder.absent_token.grad is not None
    assert encoder.absent_token.grad[2].ne(0).all()
    assert encoder.absent_token.grad[[0, 1, 3]].eq(0).all()


def test_a_row_without_views_is_an_error() -> None:
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    with pytest.raises(ValueError, match="every view is absent in row 1"):
        Encoder(4, IMAGE_SHAPE, trunk="small")(make_images(3), mask)


@pytest.mark.parametrize(
    ("views", "error", "message"),
    [
        (
            torch.zeros(2, 3, *IMAGE_SHAPE, dtype=torch.uint8),
            ValueError,
            r"\[B, 4, 3, 24, 24\], got \[2, 3, 3, 24, 24\]",
        ),
        (torch.zeros(2, 4, 24, 24, 3, dtype=torch.uint8), ValueError, r"got \[2, 4, 24, 24, 3\]"),
        (torch.zeros(4, *IMAGE_SHAPE, dtype=torch.uint8), ValueError, r"got \[4, 3, 24, 24\]"),
        (torch.zeros(2, 4, *IMAGE_SHAPE), TypeError, "expected uint8 images from 0 to 255, got torch.float32"),
    ],
)
def test_invalid_images_are_refused(views: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Encoder(4, IMAGE_SHAPE, trunk="small")(views)


@pytest.mark.parametrize("mask", [torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 4)])
def test_an_invalid_mask_is_refused(mask: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected a bool mask \[B, V\] = \[2, 4\]"):
        Encoder(4, IMAGE_SHAPE, trunk="small")(make_images(2), mask)


def test_stack_views_orders_by_name_and_masks_missing_views() -> None:
    side, front = make_images(2, 2).unbind(1)
    views, mask = stack_views({"side": side, "front": front}, ("front", "side", "wrist"))
    assert views[:, 0].equal(front)
    assert views[:, 1].equal(side)
    assert mask.tolist() == [[True, True, False]] * 2


def test_the_mask_of_stack_views_may_be_changed_row_by_row() -> None:
    _, mask = stack_views({"front": make_images(3, 1)[:, 0]}, ("front", "side"))
    mask[2, 0] = False
    assert mask[:, 0].tolist() == [True, True, False]


def test_stack_views_refuses_unknown_names_unequal_shapes_and_no_images() -> None:
    image = make_images(2, 1)[:, 0]
    with pytest.raises(KeyError, match="frnt"):
        stack_views({"frnt": image}, ("front",))
    with pytest.raises(ValueError, match="one shape"):
        stack_views({"front": image, "side": image[:, :, :10]}, ("front", "side"))
    with pytest.raises(ValueError, match="every view is absent"):
        stack_views({}, ("front",))


def test_images_too_small_for_the_convolutions_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 12x12 are too small for the trunk 'small'"):
        Encoder(2, (3, 12, 12), trunk="small")
