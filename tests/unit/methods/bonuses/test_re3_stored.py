"""RE3 with stored features, against a float64 reference with the same weights."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyview.methods import RE3, RE3Config
from manyview.methods.bonuses.stored_search import StoredNeighborSearch
from manyview.training import OffPolicyTrainer
from tests.support.runs import make_short_config

K = 12  # a toy task has few different images: the nearest are equal


def make_trainer(**bonus: Any) -> OffPolicyTrainer:
    return OffPolicyTrainer(make_short_config("drqv2+re3", bonus={"k": K, "reward_scale": "std", **bonus}))


def embed(re3: RE3, frames: torch.Tensor) -> torch.Tensor:
    """Embed frames [N, C, H, W] one by one in float64."""
    weights = {name: part.double() for name, part in re3.state_dict().items() if part.is_floating_point()}
    embeddings = []
    for frame in frames.double() / 255 - 0.5:
        hidden = frame.unsqueeze(0)
        for name, layer in re3.trunk.named_children():
            if isinstance(layer, nn.Conv2d):
                weight, bias = weights[f"trunk.{name}.weight"], weights[f"trunk.{name}.bias"]
                hidden = nn.functional.conv2d(hidden, weight, bias, layer.stride).clamp(min=0)
        linear = hidden.flatten() @ weights["head.0.weight"].T + weights["head.0.bias"]
        centered = linear - linear.mean()
        embeddings.append((centered / (centered.square().mean() + 1e-5).sqrt()).tanh())
    return torch.stack(embeddings)


def test_the_bonus_is_the_distance_to_the_kth_neighbor_in_the_whole_buffer() -> None:
    trainer = make_trainer()
    while trainer.counters.steps < 50:
        trainer.collector.step()
    replay, re3 = trainer.replay, trainer.agent.bonus
    assert isinstance(re3, RE3)
    rewards, past_distances = [], []
    for _ in range(3):
        batch = trainer.sampler.sample()
        inserted = replay.inserted
        frames = [np.stack([ring[i] for ring in replay.frames]) for i in range(inserted)]
        features = torch.stack([embed(re3, torch.from_numpy(views)).flatten() for views in frames])
        neighbors = [i for i in range(inserted - 1) if replay.steps["acted"][i]]
        distances = []
        for index in batch.indices.tolist():
            other_distances = [(features[index] - features[i]).norm() for i in neighbors if i != index]
            distances.append(float(sorted(other_distances)[K - 1]))
        past_distances += distances
        assert np.std(past_distances) > 0.01
        rewards.append(torch.tensor(distances) / float(np.std(past_distances)))
        torch.testing.assert_close(
            re3.compute(batch, None, batch.reward_ext), rewards[-1].float(), rtol=1e-3, atol=1e-4
        )
    trainer.close()


def test_the_embedding_depends_on_the_newest_frame_alone() -> None:
    torch.manual_seed(0)
    re3 = RE3(1, (3, 20, 20), RE3Config(trunk="tiny", latent_dim=8))
    views = torch.randint(256, (4, 1, 9, 20, 20), dtype=torch.uint8)
    changed_views = views.clone()
    changed_views[:, :, :6] = 0
    assert torch.equal(re3.encode(views).embedding, re3.encode(changed_views).embedding)
    changed_views[:, :, 6:] = 0
    assert not torch.equal(re3.encode(views).embedding, re3.encode(changed_views).embedding)


def test_the_embedding_depends_on_the_chosen_views_alone() -> None:
    torch.manual_seed(0)
    re3 = RE3(3, (3, 20, 20), RE3Config(trunk="tiny", latent_dim=8), view_indices=[2, 0])
    views = torch.randint(256, (4, 3, 3, 20, 20), dtype=torch.uint8)
    changed_views = views.clone()
    changed_views[:, 1] = 0
    assert re3.feature_shape == (1, 16)
    assert torch.equal(re3.encode(views).embedding, re3.encode(changed_views).embedding)


def test_nothing_trains_the_encoder() -> None:
    trainer = make_trainer()
    before = {name: part.clone() for name, part in trainer.agent.bonus.named_parameters()}  # type: ignore[union-attr]
    while trainer.counters.updates < 3:
        trainer.advance()
    for name, part in trainer.agent.bonus.named_parameters():  # type: ignore[union-attr]
        assert torch.equal(part, before[name])
    trainer.close()


def test_batch_search_stores_nothing() -> None:
    trainer = make_trainer(search="batch")
    assert trainer.replay.features is None
    assert trainer.agent.bonus.neighbor_search is None  # type: ignore[union-attr]
    trainer.close()


def test_the_search_follows_the_settings() -> None:
    re3 = RE3(2, (3, 20, 20), RE3Config(trunk="tiny", k=4, rewarded_state="next"))
    assert re3.neighbor_search == StoredNeighborSearch(groups=1, k=4, rewarded_state="next")


def test_a_batch_without_distances_is_refused() -> None:
    trainer, batch_trainer = make_trainer(), make_trainer(search="batch")
    while not batch_trainer.should_update:
        batch_trainer.collector.step()
    with pytest.raises(ValueError, match="neighbor_distances"):
        trainer.agent.update(batch_trainer.sampler.sample(), 0)
    trainer.close()
    batch_trainer.close()
