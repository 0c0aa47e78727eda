"""RE3: embeddings, distances to neighbors, and the reward scale."""

import pytest
import torch

from manyview.methods.bonuses.re3 import RE3, RE3Config, RE3Features
from manyview.nn.normalization import CumulativeMoments
from manyview.nn.trunks import make_trunk


def test_the_embedding_starts_as_torch_initializes_it() -> None:
    torch.manual_seed(0)
    re3 = RE3(1, (3, 24, 24), RE3Config(trunk="tiny"))
    torch.manual_seed(0)
    trunk, flat_dim = make_trunk((3, 24, 24), "tiny")
    linear = torch.nn.Linear(flat_dim, re3.config.latent_dim)
    expected = [*trunk.parameters(), *linear.parameters()]
    assert all(map(torch.equal, re3.parameters(), expected))
    assert all(parameter.abs().sum() > 0 for parameter in expected)  # biases too


def test_each_rollout_is_searched_separately() -> None:
    re3 = RE3(2, (3, 24, 24), RE3Config(trunk="tiny", search="batch", reward_scale="raw"))
    points = torch.randn(60, 50, generator=torch.Generator().manual_seed(1))
    rewards = re3.compute_reward(RE3Features(points), num_rollouts=3)
    for index in range(3):
        torch.testing.assert_close(rewards[index::3], re3.compute_reward(RE3Features(points[index::3])))
    with pytest.raises(ValueError, match="got both"):
        re3.compute_reward(RE3Features(points), indices=torch.arange(60), num_rollouts=3)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_the_bonus_is_the_distance_to_neighbors_with_other_indices(average: bool, log: bool) -> None:
    re3 = RE3(
        2, (3, 24, 24), RE3Config(trunk="tiny", search="batch", k=2, average=average, log=log, reward_scale="raw")
    )
    points, indices = torch.randn(12, 50, generator=torch.Generator().manual_seed(1)), torch.arange(12) // 2
    neighbor_distances = (
        torch.cdist(points, points).masked_fill(indices[:, None] == indices, torch.inf).sort(1).values[:, :2]
    )
    expected = neighbor_distances.mean(1) if average else neighbor_distances[:, 1]
    actual = re3.compute_reward(RE3Features(points), indices=indices)
    torch.testing.assert_close(actual, expected.log1p() if log else expected, rtol=1e-4, atol=1e-4)


def test_windowed_search_averages_as_the_whole_search_does() -> None:
    re3 = RE3(2, (3, 24, 24), RE3Config(trunk="tiny", search="batch", average=True, reward_scale="raw"))
    features = RE3Features(torch.rand(300, 1, generator=torch.Generator().manual_seed(1)) * torch.ones(50))
    torch.testing.assert_close(
        re3.compute_reward(features, window=60), re3.compute_reward(features), rtol=1e-3, atol=1e-5
    )


def test_images_of_absent_views_do_not_affect_the_embedding() -> None:
    re3, mask = RE3(2, (3, 24, 24), RE3Config(trunk="tiny", search="batch")), torch.arange(12).view(6, 2) % 3 > 0
    views, changed_views = torch.randint(256, (2, 6, 2, 3, 24, 24), dtype=torch.uint8)
    changed_views = torch.where(mask[:, :, None, None, None], views, changed_views)
    assert re3.encode(views, mask).embedding.equal(re3.encode(changed_views, mask).embedding)


def test_the_reward_scale_counts_rows_in_training_only() -> None:
    re3 = RE3(2, (3, 24, 24), RE3Config(trunk="tiny", search="batch", reward_scale="std"))
    features = RE3Features(torch.randn(60, 50, generator=torch.Generator().manual_seed(1)))
    assert isinstance(re3.reward_moments, CumulativeMoments)
    re3.compute_reward(features)
    assert re3.reward_moments.count.item() == 60
    re3.eval().compute_reward(features)
    assert re3.reward_moments.count.item() == 60
