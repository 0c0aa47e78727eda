"""RE3: novelty in the features of an encoder that is never trained (Seo et al., 2021), as in the paper's appendix."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyview.mem import knn_distance
from manyview.mem.encoder import Trunk, convolutions


class RandomFeatures(NamedTuple):
    embedding: Tensor  # [B, V * P], zero where a view is absent


class RE3(nn.Module):
    """r̂ is the distance to the k-th nearest neighbour within the batch, in a random embedding of all views.

    The embedding of a view is a LayerNorm of a random linear map of random convolutions; views are put side by side.
    """

    def __init__(
        self,
        num_views: int,
        image_shape: tuple[int, int, int],
        *,
        latent_dim: int = 50,
        trunk: Trunk = "paper",
        k: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.k, self.num_views = k, num_views
        self.convolutions, flat_dim = convolutions(image_shape, trunk)
        self.head = nn.Sequential(nn.Linear(flat_dim, latent_dim), nn.LayerNorm(latent_dim, elementwise_affine=False))
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.orthogonal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)
        self.requires_grad_(False)

    @torch.no_grad()
    def encode(self, views: Tensor, mask: Tensor | None = None) -> RandomFeatures:
        pixels = views.flatten(0, 1).float().mul_(1 / 255).sub_(0.5)
        embedding = self.head(self.convolutions(pixels)).float().unflatten(0, views.shape[:2])
        if mask is not None:
            embedding = torch.where(mask.unsqueeze(-1), embedding, 0.0)
        return RandomFeatures(embedding.flatten(1))

    @torch.no_grad()
    def reward(self, features: RandomFeatures, *, rows: Tensor | None = None) -> Tensor:
        return knn_distance(features.embedding.unsqueeze(0), self.k, rows=rows).squeeze(0)
