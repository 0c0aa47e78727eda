"""The features of recent batches, so that a state is rare against more than the batch it was sampled with."""

import torch
from torch import Tensor, nn

from manyview.mem.encoder import Features
from manyview.mem.knn import ReferenceSet


class FeatureBank(nn.Module):
    """A ring of the last `size` rows of features, as buffers: they move and are saved with the module.

    They are a few updates old, which costs nothing to keep; encoding older frames anew would cost as much as training.
    `indices` are those of the batch in the replay buffer. A transition that is sampled again is not its own neighbour;
    without these numbers its copies would count, and a small replay would look like one crowded state.
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
        """The batch itself and everything in the bank."""
        points, mask = features.terms.detach().transpose(0, 1), features.terms_mask.T
        return ReferenceSet(
            torch.cat([points, self.points], dim=1),
            torch.cat([mask, self.mask], dim=1),
            torch.cat([indices, self.indices]),
        )

    @torch.no_grad()
    def push(self, features: Features, indices: Tensor) -> None:
        """Take in a batch, the oldest rows make room."""
        points, mask = features.terms[-self.size :].transpose(0, 1), features.terms_mask[-self.size :].T
        slots = (self.head + torch.arange(points.shape[1], device=points.device)) % self.size
        self.points[:, slots] = points.to(self.points.dtype)
        self.mask[:, slots] = mask
        self.indices[slots] = indices[-self.size :]
        self.head.copy_((self.head + len(slots)) % self.size)
