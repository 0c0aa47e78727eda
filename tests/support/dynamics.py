"""Forward and inverse models by loops in float64, as a reference."""

from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor

from manyview.data import Batch
from tests.support.batches import ACTION_SIZE, IMAGE_SHAPE, make_batch

MODEL_SIZES: dict[str, Any] = {"trunk": "tiny", "latent_dim": 5, "hidden": 16, "lr": 1e-3}
BonusT = TypeVar("BonusT")


def build_bonus(bonus_class: type[BonusT], config: Any, **options: Any) -> BonusT:
    """Build a bonus of two views and two continuous actions."""
    torch.manual_seed(0)
    options = options or {"discrete": False}
    return bonus_class(2, IMAGE_SHAPE, ACTION_SIZE, config, **options)  # type: ignore[call-arg]


def make_masked_batch(batch_size: int = 16, *, seed: int = 0) -> Batch:
    """Return a random batch in which some observations lack one view, but never both."""
    data = make_batch(batch_size, seed=seed)
    data.mask[::3, 0] = False
    data.mask[1::5, 1] = False
    data.mask[0], data.mask[6] = torch.tensor([[False, True], [True, False]])
    data.next_mask[::4, 1] = False
    return data


def copy_to_float64(bonus: Any) -> Any:
    """Return a copy of a bonus with parameters in float64."""
    return deepcopy(bonus).double()


def embed_views(bonus: Any, views: Tensor, mask: Tensor, *, train_trunk: bool = True) -> Tensor:
    """Return φ [B, V, P] of a bonus in float64, view by view.

    Masked views get the absent token. Gradients reach the trunk only with `train_trunk`.
    """
    encoder = bonus.encoder
    rows = []
    for row, present in zip(views, mask, strict=True):
        convolved = [encoder.trunk((view.double() / 255 - 0.5).unsqueeze(0)) for view in row]
        latents = [encoder.head(c if train_trunk else c.detach()).squeeze(0) for c in convolved]
        rows.append(torch.stack([latents[v] if present[v] else encoder.absent_token[v] for v in range(len(latents))]))
    return torch.stack(rows)


def compute_errors(bonus: Any, data: Batch) -> tuple[Tensor, Tensor]:
    """Return forward and inverse errors [B] of a bonus in float64, row by row."""
    features = embed_views(bonus, data.views, data.mask)
    next_features = embed_views(bonus, data.next_views, data.next_mask, train_trunk=False)
    forward, inverse = [], []
    for row in range(len(features)):
        action = data.action[row].double()
        predicted_features = bonus.forward_model[2](
            bonus.forward_model[0](torch.cat([features[row].flatten(), action])).clamp(min=0)
        ).view(features.shape[1:])
        common_views = [v for v in range(features.shape[1]) if data.mask[row, v] and data.next_mask[row, v]]
        squared_distance = sum(((predicted_features[v] - next_features[row, v]) ** 2).sum() for v in common_views)
        forward.append(
            (squared_distance * features.shape[1] / len(common_views)) ** 0.5
            if common_views
            else torch.zeros(()).double()
        )
        joined = torch.cat([features[row].flatten(), next_features[row].flatten()])
        predicted_action = bonus.inverse_model[2](bonus.inverse_model[0](joined).clamp(min=0)).tanh()
        inverse.append(((predicted_action - action) ** 2).sum() ** 0.5)
    return torch.stack(forward), torch.stack(inverse)


def compute_distance(features: Tensor, mask: Tensor, row: int, other: int) -> float:
    """Return the distance of two rows of φ [B, V, P] over their common views.

    It is scaled to the number of views of `row`. Rows without a common view are at distance inf.
    """
    common_views = [v for v in range(features.shape[1]) if mask[row, v] and mask[other, v]]
    squared_distance = sum(float(((features[row, v] - features[other, v]) ** 2).sum()) for v in common_views)
    return (squared_distance * int(mask[row].sum()) / len(common_views)) ** 0.5 if common_views else float("inf")
