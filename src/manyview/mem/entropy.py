"""Eq. 1: the particle-based entropy estimator behind the reward, in full, with its constants."""

import math

import torch
from torch import Tensor

from manyview.mem.knn import knn_distance


def knn_entropy(points: Tensor, k: int = 3) -> Tensor:
    """Estimate the entropy of Eq. 8, in nats, of the distribution that `points` [N, Q] were drawn from.

    The reward (Eq. 9) keeps only what depends on the points, the log of the distances.
    """
    count, dim = points.shape
    if k >= count:
        raise ValueError(f"expected more points than k = {k}, got {count}")
    distance = knn_distance(points.unsqueeze(0), k).squeeze(0).double()
    log_unit_ball = dim / 2 * math.log(math.pi) - math.lgamma(dim / 2 + 1)
    digamma_k = torch.digamma(torch.tensor(float(k), dtype=torch.float64)).item()
    return math.log(count) + dim * distance.log().mean() + log_unit_ball - digamma_k
