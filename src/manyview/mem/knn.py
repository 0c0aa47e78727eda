"""Distance to the k-th nearest neighbour: exact, in tiles, for several views at once."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Combine = Literal["marginal", "joint"]


class Reference(NamedTuple):
    """The points among which neighbours are searched, when they are not the queries themselves."""

    points: Tensor  # [G, M, P]
    mask: Tensor  # [G, M] bool, which of them are there
    own: Tensor  # [N], where each query stands among them, -1 if it does not


def subset(points: Tensor, mask: Tensor, rows: Tensor) -> Reference:
    """Search only among these `rows` [M] of the N points [G, N, P] themselves: large rollouts need no more."""
    own = torch.full((points.shape[1],), -1, device=points.device)
    own[rows] = torch.arange(len(rows), device=points.device)
    return Reference(points[:, rows], mask[:, rows], own)


# More candidates than neighbours are chosen by matmul and measured again by difference: near-duplicates that rounding
# has put in the wrong order are put right. Five are enough for spreads of 1e-6 at norm 8 (QUALITY S6).
_SPARE_CANDIDATES = 5


def knn_distance(
    points: Tensor,
    k: int,
    *,
    mask: Tensor | None = None,
    among: "Reference | None" = None,
    combine: Combine = "marginal",
    tile_bytes: int = 32 * 2**20,
) -> Tensor:
    """Distance from every point to its k-th nearest other point, or to the k-th nearest of the points `among`.

    `points` [G, N, P] are N rows seen in G ways (views); `mask` [G, N] says where a row is seen. `marginal` searches
    each of the G by itself and returns [G, N]; `joint` takes a row's G vectors as one long vector and returns [1, N].
    Rows that miss a view are then compared over the views both have, scaled to the number the first one has: a
    camera that fails does not look like a discovery.

    A point is never its own neighbour. With fewer than k others the farthest counts; with none, or where a row
    is not seen, the distance is 0.
    """
    if k < 1:
        raise ValueError(f"expected k >= 1, got {k}")
    points = points.detach().float()
    groups, rows, _ = points.shape
    if mask is None:
        mask = torch.ones(groups, rows, dtype=torch.bool, device=points.device)
    if among is None:
        among = Reference(points, mask, torch.arange(rows, device=points.device))
    reference = among.points.detach().float()
    columns = torch.arange(reference.shape[1], device=points.device)
    # float64: in float32 the matmul's rounding (6e-6 at squared norm 64) hides distances under 2e-3.
    reference64 = reference.double()
    squared_norms = reference64.pow(2).sum(-1).unsqueeze(1)  # [G, 1, M]

    tile = max(1, tile_bytes // (8 * groups * max(1, len(columns))))
    distances = []
    for first in range(0, rows, tile):
        here = slice(first, min(first + tile, rows))
        queries, seen = points[:, here], mask[:, here].unsqueeze(2)  # [G, T, P], [G, T, 1]
        queries64 = queries.double()
        rough = torch.baddbmm(squared_norms, queries64, reference64.transpose(1, 2), alpha=-2)
        rough = _combine(rough + queries64.pow(2).sum(-1, keepdim=True), seen, among.mask.unsqueeze(1), combine)
        itself = columns == among.own[here].unsqueeze(1)  # [T, M]
        rough = rough.masked_fill(itself, torch.inf)

        candidates = rough.topk(min(k + _SPARE_CANDIDATES, len(columns)), largest=False, sorted=False)
        chosen = candidates.indices.flatten(1).expand(groups, -1)  # [G, T * C]
        # By difference now: exact however close the points are.
        near = reference.gather(1, chosen.unsqueeze(-1).expand(-1, -1, queries.shape[2]))
        exact = (near.view(*queries.shape[:2], -1, queries.shape[2]) - queries.unsqueeze(2)).pow(2).sum(-1)
        exact = _combine(exact, seen, among.mask.gather(1, chosen).view(exact.shape), combine)
        exact = exact.masked_fill(candidates.values.isinf(), torch.inf)  # [G or 1, T, C]
        distances.append(_kth(exact.sort(-1).values, k).sqrt())
    return torch.cat(distances, dim=1)


def _combine(squared: Tensor, seen: Tensor, reference_seen: Tensor, combine: Combine) -> Tensor:
    """[G, T, M] squared distances per view, to [G, T, M] with inf where one is not seen, or to [1, T, M] over all."""
    both = seen & reference_seen
    if combine == "marginal":
        return squared.masked_fill(~both, torch.inf)
    common = both.sum(0, keepdim=True)
    total = squared.masked_fill(~both, 0.0).sum(0, keepdim=True) * seen.sum(0, keepdim=True)
    return torch.where(common > 0, total / common.clamp(min=1), torch.inf)


def _kth(ascending: Tensor, k: int) -> Tensor:
    """The k-th finite value of each row, the last one if there are fewer, 0 if there are none."""
    if ascending.shape[-1] == 0:
        return ascending.new_zeros(ascending.shape[:-1])
    available = ascending.isfinite().sum(-1, keepdim=True)
    value = ascending.gather(-1, (available.clamp(max=k) - 1).clamp(min=0)).squeeze(-1)
    return torch.where(available.squeeze(-1) > 0, value, 0.0)
