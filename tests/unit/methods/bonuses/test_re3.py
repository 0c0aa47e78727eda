"""RE3: distances between random features, of whichever rows are neighbours."""

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
    bare = [*trunk.parameters(), *linear.parameters()]
    assert all(map(torch.equal, re3.parameters(), bare))
    assert all(parameter.abs().sum() > 0 for parameter in bare)  # biases too


def test_rollouts_apart_are_searched_among_their_own() -> None:
    re3 = RE3(2, (3, 24, 24), RE3Config(trunk="tiny", search="batch", reward_scale="raw"))
    points = torch.randn(60, 50, generator=torch.Generator().manual_seed(1))
    together = re3.compute_reward(RE3Features(points), num_rollouts=3)
    for first in range(3):
        torch.testing.assert_close(together[first::3], re3.compute_reward(RE3Features(points[first::3])))
    with pytest.raises(ValueError, match="got both"):
        re3.compute_reward(RE3Features(points), indices=torch.arange(60), num_rollouts=3)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_the_bonus_is_the_distance_to_the_neighbours_that_are_other_rows(average: bool, log: bool) -> None:
    re3 = RE3(
        2, (3, 24, 24), RE3Config(trunk="tiny", search="batch", k=2, average=average, log=log, reward_scale="raw")
    )
    points, rows = torch.randn(12, 50, generator=torch.Generator().manual_seed(1)), torch.arange(12) // 2
    apart = torch.cdist(points, points).masked_fill(rows[:, None] == rows, torch.inf).sort(1).values[:, :2]
    expected = apart.mean(1) if average else apart[:, 1]
    found = re3.compute_reward(RE3Features(points), indices=rows)
    torch.testing.assert_close(found, expected.log1p() if log else expected, rtol=1e-4, atol=1e-4)


def test_windows_average_as_the_whole_search_does() -> None:
    re3 = RE3(2, (3, 24, 24), RE3Config(trunk="tiny", search="batch", average=True, reward_scale="raw"))
    line = RE3Features(torch.rand(300, 1, generator=torch.Generator().manual_seed(1)) * torch.ones(50))
    torch.testing.assert_close(re3.compute_reward(line, window=60), re3.compute_reward(line), rtol=1e-3, atol=1e-5)


def test_what_an_absent_camera_shows_does_not_matter() -> None:
    re3, mask = RE3(2, (3, 24, 24), RE3Config(trunk="tiny", search="batch")), torch.arange(12).view(6, 2) % 3 > 0
    one, other = torch.randint(256, (2, 6, 2, 3, 24, 24), dtype=torch.uint8)
    other = torch.where(mask[:, :, None, None, None], one, other)
    assert re3.encode(one, mask).embedding.equal(re3.encode(other, mask).embedding)


def test_its_scale_counts_every_row_in_training_and_rests_in_evaluation() -> None:
    re3 = RE3(2, (3, 24, 24), RE3Config(trunk="tiny", search="batch", reward_scale="std"))
    points = RE3Features(torch.randn(60, 50, generator=torch.Generator().manual_seed(1)))
    assert isinstance(re3.reward_moments, CumulativeMoments)
    re3.compute_reward(points)
    assert re3.reward_moments.count.item() == 60
    re3.eval().compute_reward(points)
    assert re3.reward_moments.count.item() == 60
