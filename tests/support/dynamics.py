"""Features and errors of forward and inverse models, restated by loops in float64."""

from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor

from manyview.data import Batch
from tests.support.batches import ACTIONS, SHAPE, batch

SIZES: dict[str, Any] = {"trunk": "tiny", "latent_dim": 5, "hidden": 16, "lr": 1e-3}
BonusT = TypeVar("BonusT")


def build(kind: type[BonusT], config: Any, **options: Any) -> BonusT:
    """Build a bonus of two views and two continuous actions."""
    torch.manual_seed(0)
    options = options or {"discrete": False}
    return kind(2, SHAPE, ACTIONS, config, **options)  # type: ignore[call-arg]


def draw_masked(count: int = 16, *, seed: int = 0) -> Batch:
    """Draw a batch whose states lack views here and there, but never both."""
    data = batch(count, seed=seed)
    data.mask[::3, 0] = False
    data.mask[1::5, 1] = False
    data.mask[0], data.mask[6] = torch.tensor([[False, True], [True, False]])
    data.next_mask[::4, 1] = False
    return data


def in_float64(bonus: Any) -> Any:
    """Copy a bonus with parameters in float64."""
    return deepcopy(bonus).double()


def embed(bonus: Any, views: Tensor, mask: Tensor, *, with_convolutions: bool = True) -> Tensor:
    """Return φ [B, V, P] of a bonus in float64, view by view; the token where a view is absent.

    The gradient reaches the convolutions only `with_convolutions`.
    """
    encoder = bonus.encoder
    rows = []
    for row, shown in zip(views, mask, strict=True):
        convolved = [encoder.trunk((view.double() / 255 - 0.5).unsqueeze(0)) for view in row]
        latents = [encoder.head(c if with_convolutions else c.detach()).squeeze(0) for c in convolved]
        rows.append(torch.stack([latents[v] if shown[v] else encoder.absent_token[v] for v in range(len(latents))]))
    return torch.stack(rows)


def compute_errors(bonus: Any, data: Batch) -> tuple[Tensor, Tensor]:
    """Return forward and inverse errors [B] of a bonus in float64, row by row."""
    now = embed(bonus, data.views, data.mask)
    then = embed(bonus, data.next_views, data.next_mask, with_convolutions=False)
    forward, inverse = [], []
    for row in range(len(now)):
        action = data.action[row].double()
        predicted = bonus.forward_model[2](
            bonus.forward_model[0](torch.cat([now[row].flatten(), action])).clamp(min=0)
        ).view(now.shape[1:])
        common = [v for v in range(now.shape[1]) if data.mask[row, v] and data.next_mask[row, v]]
        squares = sum(((predicted[v] - then[row, v]) ** 2).sum() for v in common)
        forward.append((squares * now.shape[1] / len(common)) ** 0.5 if common else torch.zeros(()).double())
        joined = torch.cat([now[row].flatten(), then[row].flatten()])
        guess = bonus.inverse_model[2](bonus.inverse_model[0](joined).clamp(min=0)).tanh()
        inverse.append(((guess - action) ** 2).sum() ** 0.5)
    return torch.stack(forward), torch.stack(inverse)


def measure(points: Tensor, mask: Tensor, row: int, other: int) -> float:
    """Return the distance of two rows of φ [B, V, P] over common views, scaled to those of `row`; inf without."""
    common = [v for v in range(points.shape[1]) if mask[row, v] and mask[other, v]]
    squares = sum(float(((points[row, v] - points[other, v]) ** 2).sum()) for v in common)
    return (squares * int(mask[row].sum()) / len(common)) ** 0.5 if common else float("inf")
