"""View masks: an absent view gives the mean, losses and reward of a model without it."""

from itertools import product
from typing import Any

import pytest
import torch

from manyview.mem import MEM
from tests.support.mem import VIEW_NAMES, make_images, make_mem

SUBSETS = [bits for bits in product([True, False], repeat=4) if any(bits)]


def copy_with_views(mem: MEM, view_indices: list[int]) -> MEM:
    """Return a copy of the model with only the views at `view_indices`."""
    smaller_mem = MEM([mem.view_names[i] for i in view_indices], mem.encoder.image_shape, mem.config)  # type: ignore[arg-type]
    state = mem.state_dict()
    for name in ("encoder.absent_token", "discriminator.weight", "discriminator.bias"):
        state[name] = state[name][view_indices]
    for name in ("mean_sum", "variance_sum", "weight"):
        state[f"bonus.distance_moments.{name}"] = smaller_mem.state_dict()[f"bonus.distance_moments.{name}"]
    smaller_mem.load_state_dict(state)
    return smaller_mem


@pytest.mark.parametrize("bits", SUBSETS, ids=lambda bits: "".join("X" if bit else "-" for bit in bits))
@pytest.mark.parametrize(
    "options",
    [{}, {"entropy": "joint", "others": "each", "adversary": "reversal", "l1": "sum", "temporal": "contrast"}],
    ids=["default", "options"],
)
def test_masking_a_view_equals_building_without_it(bits: tuple[bool, ...], options: dict[str, Any]) -> None:
    mem = make_mem(**options)
    view_indices = [i for i, bit in enumerate(bits) if bit]
    smaller_mem = copy_with_views(mem, view_indices)
    views, next_views = make_images(32), make_images(32, seed=1)
    mask = torch.tensor(bits).expand(32, 4)
    masked_features, masked_next_features = mem.encode(views, mask), mem.encode(next_views, mask)
    features, next_features = (
        smaller_mem.encode(views[:, view_indices]),
        smaller_mem.encode(next_views[:, view_indices]),
    )

    torch.testing.assert_close(masked_features.shared_mean, features.shared_mean, atol=1e-6, rtol=1e-6)
    _, metrics = mem.compute_loss(masked_features, masked_next_features)
    _, expected_metrics = smaller_mem.compute_loss(features, next_features)
    for name, value in expected_metrics.items():
        torch.testing.assert_close(metrics[name], value, atol=1e-6, rtol=1e-6, msg=name)
    torch.testing.assert_close(
        mem.compute_reward(masked_features), smaller_mem.compute_reward(features), atol=1e-6, rtol=1e-6
    )
    masked_update, expected_update = (
        mem.update_discriminator(masked_features),
        smaller_mem.update_discriminator(features),
    )
    torch.testing.assert_close(
        masked_update["discriminator_loss"], expected_update["discriminator_loss"], atol=1e-6, rtol=1e-6
    )


def test_rows_may_miss_different_views() -> None:
    mem = make_mem()
    mask = torch.tensor(SUBSETS).repeat(2, 1)
    features = mem.encode(make_images(30), mask)
    loss, _ = mem.compute_loss(features, mem.encode(make_images(30, seed=1), mask.flip(0)))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mem.parameters())
    assert mem.compute_reward(features).isfinite().all()


def test_absent_views_do_not_raise_the_joint_reward() -> None:
    """With joint entropy, rows without a view have no larger reward than with it."""
    mem = make_mem(entropy="joint").eval()
    torch.nn.init.normal_(mem.encoder.absent_token, std=10.0)
    mask = torch.ones(64, len(VIEW_NAMES), dtype=torch.bool)
    mask[:8, 2] = False
    full_rewards, masked_rewards = (
        mem.compute_reward(mem.encode(make_images(64))),
        mem.compute_reward(mem.encode(make_images(64), mask)),
    )
    assert masked_rewards[:8].mean() <= full_rewards[:8].mean()
