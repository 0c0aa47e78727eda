"""Feature bank: recent features, searched for nearest neighbors together with the batch."""

import torch
from torch import Tensor, nn

from manyview.mem.encoder import Features
from manyview.mem.knn import ReferenceSet


class FeatureBank(nn.Module):
    """Ring of the last `size` rows of features, stored as module buffers.

    The features are a few updates old: encoding their frames again would cost as much as training.
    `indices` are replay buffer indices. They prevent a transition that is sampled again from being its own neighbor;
    otherwise every state of a small replay buffer would look crowded.
    """

    points: Tensor
    mask: Tensor
    indices: Tensor
    head: Tensor

    def __init__(self, size: int, num_terms: int, latent_dim: int) -> None:
        super().__init__()
        self.register_buffer("points", torch.zeros(num_terms, size, latent_dim))
        self.register_buffer("mask", torch.zeros(num_terms, size, dtype=torch.bool))
        self.register_buffer("indices", torch.full((size,), -1))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))

    @property
    def size(self) -> int:
        return self.mask.shape[1]

    def make_reference(self, features: Features, indices: Tensor) -> ReferenceSet:
        """Return the reference set of a batch: its rows and all rows of the bank."""
        points, mask = features.terms.detach().transpose(0, 1), features.terms_mask.T
        return ReferenceSet(
            torch.cat([points, self.points], dim=1),
            torch.cat([mask, self.mask], dim=1),
            torch.cat([indices, self.indices]),
        )

    @torch.no_grad()
    def push(self, features: Features, indices: Tensor) -> None:
        """Append a batch; it overwrites the oldest rows."""
        points, mask = features.terms[-self.size :].transpose(0, 1), features.terms_mask[-self.size :].T
        slots = (self.head + torch.arange(points.shape[1], device=points.device)) % self.size
        self.points.index_copy_(1, slots, points.to(self.points.dtype))
        self.mask.index_copy_(1, slots, mask)
        self.indices.index_copy_(0, slots, indices[-self.size :])
        self.head.copy_((self.head + len(slots)) % self.size)
