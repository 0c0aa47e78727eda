"""A view that is absent everywhere leaves mean, losses and reward as if it had never been declared."""

from itertools import product
from typing import Any

import pytest
import torch

from manyview.mem import MEM
from tests.support.mem import VIEW_NAMES, make_images, make_mem

SUBSETS = [bits for bits in product([True, False], repeat=4) if any(bits)]


def without(mem: MEM, kept: list[int]) -> MEM:
    """The same model, built with only the kept views."""
    smaller = MEM([mem.view_names[i] for i in kept], mem.encoder.image_shape, mem.config)  # type: ignore[arg-type]
    state = mem.state_dict()
    for name in ("encoder.absent_token", "discriminator.weight", "discriminator.bias"):
        state[name] = state[name][kept]
    for name in ("mean_sum", "variance_sum", "weight"):
        state[f"bonus.distance_moments.{name}"] = smaller.state_dict()[f"bonus.distance_moments.{name}"]
    smaller.load_state_dict(state)
    return smaller


@pytest.mark.parametrize("bits", SUBSETS, ids=lambda bits: "".join("X" if bit else "-" for bit in bits))
@pytest.mark.parametrize(
    "options",
    [{}, {"entropy": "joint", "others": "each", "adversary": "reversal", "l1": "sum", "temporal": "contrast"}],
    ids=["default", "options"],
)
def test_masking_a_view_equals_building_without_it(bits: tuple[bool, ...], options: dict[str, Any]) -> None:
    mem = make_mem(**options)
    kept = [i for i, bit in enumerate(bits) if bit]
    smaller = without(mem, kept)
    views, next_views = make_images(32), make_images(32, seed=1)
    mask = torch.tensor(bits).expand(32, 4)
    masked, masked_later = mem.encode(views, mask), mem.encode(next_views, mask)
    built, built_later = smaller.encode(views[:, kept]), smaller.encode(next_views[:, kept])

    torch.testing.assert_close(masked.shared_mean, built.shared_mean, atol=1e-6, rtol=1e-6)
    _, metrics = mem.compute_loss(masked, masked_later)
    _, expected = smaller.compute_loss(built, built_later)
    for name, value in expected.items():
        torch.testing.assert_close(metrics[name], value, atol=1e-6, rtol=1e-6, msg=name)
    torch.testing.assert_close(mem.compute_reward(masked), smaller.compute_reward(built), atol=1e-6, rtol=1e-6)
    got, wanted = mem.update_discriminator(masked), smaller.update_discriminator(built)
    torch.testing.assert_close(got["discriminator_loss"], wanted["discriminator_loss"], atol=1e-6, rtol=1e-6)


def test_rows_may_miss_different_views() -> None:
    mem = make_mem()
    mask = torch.tensor(SUBSETS).repeat(2, 1)
    features = mem.encode(make_images(30), mask)
    loss, _ = mem.compute_loss(features, mem.encode(make_images(30, seed=1), mask.flip(0)))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mem.parameters())
    assert mem.compute_reward(features).isfinite().all()


def test_a_camera_that_drops_out_does_not_look_like_a_discovery() -> None:
    """Joint entropy: the rows that lost a view are paid no more than the same rows with it."""
    mem = make_mem(entropy="joint").eval()
    torch.nn.init.normal_(mem.encoder.absent_token, std=10.0)
    mask = torch.ones(64, len(VIEW_NAMES), dtype=torch.bool)
    mask[:8, 2] = False
    whole, dropped = (
        mem.compute_reward(mem.encode(make_images(64))),
        mem.compute_reward(mem.encode(make_images(64), mask)),
    )
    assert dropped[:8].mean() <= whole[:8].mean()
