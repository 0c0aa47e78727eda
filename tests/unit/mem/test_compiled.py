"""Compilation, export and bfloat16 autocast of MEM, on the CPU."""

from typing import Any

import pytest
import torch

from manyview.mem import MEM, Features
from tests.support.mem import make_images, make_mem, make_random_mask


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of the compiler
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"entropy": "joint", "bank": 48, "reward_scale": "std", "distance_scale": "relative"},
    ],
)
def test_compilation_without_graph_breaks_equals_eager(options: dict[str, Any]) -> None:
    eager_mem, compiled_mem = make_mem(**options), make_mem(**options)

    def step(
        views: torch.Tensor, next_views: torch.Tensor, mask: torch.Tensor, mem: MEM
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = mem.encode(views, mask)
        loss, _ = mem.compute_loss(features, mem.encode(next_views))
        return features.state, loss, mem.compute_reward(features)

    compiled_step = torch.compile(step, fullgraph=True)
    for seed in range(2):
        inputs = make_images(16, seed=seed), make_images(16, seed=seed + 9), make_random_mask(16, seed=seed)
        for actual, expected in zip(compiled_step(*inputs, compiled_mem), step(*inputs, eager_mem), strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_encode_exports_with_a_dynamic_batch() -> None:
    mem = make_mem().eval()
    batch_dim = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(
        mem, (make_images(2), make_random_mask(2)), dynamic_shapes=({0: batch_dim}, {0: batch_dim})
    )
    for size in (1, 2, 7):
        views, mask = make_images(size, seed=size), make_random_mask(size, seed=size)
        actual: Features = program.module()(views, mask)
        torch.testing.assert_close(actual.state, mem.encode(views, mask).state)


def test_bf16_autocast_keeps_losses_distances_and_reward_in_float32() -> None:
    mem = make_mem().eval()
    views, next_views = make_images(256), make_images(256, seed=1)
    expected = mem.compute_reward(mem.encode(views))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = mem.encode(views)
        loss, metrics = mem.compute_loss(features, mem.encode(next_views))
        reward = mem.compute_reward(features)
        discriminator_metrics = mem.update_discriminator(features)
    tensors = [*features[:4], loss, reward, *metrics.values(), *discriminator_metrics.values()]
    assert all(tensor.dtype == torch.float32 for tensor in tensors)
    assert ((reward - expected).abs() / expected).max() <= 0.02
