import pytest
import torch

from manyview.methods.re3 import RE3, RandomFeatures, RE3Config


def test_rollouts_apart_are_searched_among_their_own() -> None:
    re3 = RE3((3, 24, 24), RE3Config(trunk="tiny"))
    points = torch.randn(60, 50, generator=torch.Generator().manual_seed(1))
    together = re3.reward(RandomFeatures(points), apart=3)
    for first in range(3):
        torch.testing.assert_close(together[first::3], re3.reward(RandomFeatures(points[first::3])))
    with pytest.raises(ValueError, match="got both"):
        re3.reward(RandomFeatures(points), rows=torch.arange(60), apart=3)
