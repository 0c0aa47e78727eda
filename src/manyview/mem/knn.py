"""k-nearest-neighbor search and the entropy estimate of Eq. 1.

`knn_distance` is exact, tiled to bound memory, and handles several views with absent rows at once.
"""

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Combine = Literal["marginal", "joint"]

# A matmul selects k plus this many candidates, whose distances are then computed exactly by difference: this corrects
# the order of near-duplicates that rounding has swapped. Five suffice for spreads of 1e-6 at norm 8 (QUALITY S6).
_EXTRA_CANDIDATES = 5


class ReferenceSet(NamedTuple):
    """Points to search for neighbors, if other than the queries."""

    points: Tensor  # [G, M, P]
    mask: Tensor  # [G, M] bool, true where the point is present
    indices: Tensor  # [M] row index; a point with the query's index is not its neighbor


def knn_distance(
    points: Tensor,
    k: int,
    *,
    mask: Tensor | None = None,
    indices: Tensor | None = None,
    reference: ReferenceSet | None = None,
    combine: Combine = "marginal",
    average: bool = False,
    tile_bytes: int = 32 * 2**20,
) -> Tensor:
    """Return the Euclidean distance from every point to its k-th nearest neighbor.

    Args:
        points: [G, N, P], N rows in G groups (views).
        k: which neighbor, at least 1.
        mask: [G, N] bool, true where a row is present (default: everywhere).
        indices: [N] row indices (default: 0 to N - 1). A point is never its own neighbor, nor is a copy with the same
            index.
        reference: points to search; default: `points`.
        combine: `marginal` searches each group separately. `joint` concatenates a row's G vectors to one; rows are
            compared over the groups that both have, scaled to the number of groups the query has, so that a failing
            camera does not look like a new state.
        average: return the mean of the distances to the k nearest neighbors instead.
        tile_bytes: memory of one tile of the distance matrix.

    Returns:
        Distances [G, N], or [1, N] with `joint`. With fewer than k neighbors, the distance to the farthest; with none,
        or for an absent row, 0.

    """
    if k < 1:
        raise ValueError(f"expected k >= 1, got {k}")
    if points.device.type == "mps":  # has no float64
        reference = reference and ReferenceSet(*(tensor.cpu() for tensor in reference))
        mask, indices = (tensor if tensor is None else tensor.cpu() for tensor in (mask, indices))
        distance = knn_distance(
            points.cpu(), k, mask=mask, indices=indices, reference=reference, combine=combine, average=average
        )
        return distance.to(points.device)
    points = points.detach().float()
    groups, count, _ = points.shape
    if mask is None:
        mask = torch.ones(groups, count, dtype=torch.bool, device=points.device)
    if indices is None:
        indices = torch.arange(count, device=points.device)
    if reference is None:
        reference = ReferenceSet(points, mask, indices)
    reference_points = reference.points.detach().float()
    approximate_distances = (_ApproximateMarginal if combine == "marginal" else _ApproximateJoint)(
        reference_points, reference.mask
    )

    tile = max(1, tile_bytes // (8 * groups * max(1, reference_points.shape[1])))
    distances = []
    for first in range(0, count, tile):
        block = slice(first, min(first + tile, count))
        queries, query_mask = points[:, block], mask[:, block]
        approximate = approximate_distances(queries, query_mask)  # [G or 1, T, M]
        approximate.masked_fill_(indices[block].unsqueeze(1) == reference.indices, torch.inf)
        ascending = _measure_nearest(approximate, queries, query_mask, reference_points, reference.mask, k, combine)
        distances.append(_average_first(ascending, k) if average else _select_kth(ascending, k))
    return torch.cat(distances, dim=1)


def search_neighbors(
    points: Tensor,
    k: int,
    *,
    mask: Tensor,
    indices: Tensor,
    blocks: Iterable[ReferenceSet],
    combine: Combine = "marginal",
) -> Tensor:
    """Return the distances from every point to its k nearest neighbors in a large reference set.

    The arguments and the rules for absent rows and own indices are those of `knn_distance`. The reference set comes in
    `blocks` with ascending indices, which are read once and not kept. Candidates are selected in float32, around the
    mean of the points; their distances are exact. At a norm of 7 around that mean (50 LayerNormed features in several
    clusters), distances above 0.02 are those of `knn_distance`; below, rounding can choose others, by up to 0.001.

    Returns:
        Ascending distances [G, N, k], or [1, N, k] with `joint`. With fewer than k neighbors, the distance to the
        farthest is repeated; with none, or for an absent row, all are 0.

    """
    center = (points * mask.unsqueeze(-1)).sum(1, keepdim=True) / mask.sum(1).clamp(min=1).view(-1, 1, 1)  # [G, 1, P]
    approximate_distances = _ApproximateMarginal if combine == "marginal" else _ApproximateJoint
    groups = len(points) if combine == "marginal" else 1
    nearest = points.new_full((groups, points.shape[1], k), torch.inf)
    for block in blocks:
        approximate = approximate_distances(block.points - center, block.mask, torch.float32)(points - center, mask)
        own = torch.searchsorted(block.indices, indices).clamp(max=len(block.indices) - 1)  # column of each row's index
        rows = (block.indices[own] == indices).nonzero().squeeze(1)
        approximate[:, rows, own[rows]] = torch.inf
        distances = _measure_nearest(approximate, points, mask, block.points, block.mask, k, combine)
        nearest = torch.cat([nearest, distances], dim=2).sort(-1).values[..., :k]
    return nearest.nan_to_num(posinf=0.0).cummax(-1).values


def windowed_knn_distance(
    points: Tensor,
    k: int,
    *,
    window: int,
    mask: Tensor | None = None,
    combine: Combine = "marginal",
    average: bool = False,
) -> Tensor:
    """Return `knn_distance`, searched only among `window` rows per query.

    These are the rows nearest to the query on the principal axis of the points. Close points are close along any axis,
    so few neighbors are missed, at an eighth of the cost for 2,048 of 16,384 rows.
    `docs/explanation/performance.md` has the rank correlation with the full search.
    Raises ValueError unless `window` > k.
    """
    if window <= k:
        raise ValueError(f"window is too small: expected more than k = {k} rows, got {window}")
    groups, count, _ = points.shape
    if mask is None:
        mask = torch.ones(groups, count, dtype=torch.bool, device=points.device)
    if count <= window:
        return knn_distance(points, k, mask=mask, combine=combine, average=average)
    points = points.detach().float()
    projection = _project_on_principal_axis(points, mask, combine)  # [G or 1, N]
    order = projection.argsort(1).expand(groups, -1)
    points, mask = points.gather(1, order.unsqueeze(-1).expand_as(points)), mask.gather(1, order)
    indices = torch.arange(count, device=points.device)

    tile = max(1, window // 4)
    distances = []
    for first in range(0, count, tile):
        block = slice(first, min(first + tile, count))
        low = min(max(0, (first + block.stop - window) // 2), count - window)
        window_slice = slice(low, low + window)
        reference = ReferenceSet(points[:, window_slice], mask[:, window_slice], indices[window_slice])
        queries, query_mask = points[:, block], mask[:, block]
        distances.append(
            knn_distance(
                queries,
                k,
                mask=query_mask,
                indices=indices[block],
                reference=reference,
                combine=combine,
                average=average,
            )
        )
    ordered = torch.cat(distances, dim=1)
    return torch.empty_like(ordered).scatter_(1, order[: len(ordered)], ordered)


def knn_entropy(points: Tensor, k: int = 3) -> Tensor:
    """Estimate the entropy (Eq. 8), in nats, of the distribution of `points` [N, Q] by Eq. 1.

    The intrinsic reward (Eq. 9) keeps only the part that depends on the points: the log of the k-NN distances. Raises
    ValueError unless there are more than k points.
    """
    count, dim = points.shape
    if k >= count:
        raise ValueError(f"too few points: expected more than k = {k}, got {count}")
    distance = knn_distance(points.unsqueeze(0), k).squeeze(0).double()
    log_unit_ball = dim / 2 * math.log(math.pi) - math.lgamma(dim / 2 + 1)
    digamma_k = torch.digamma(torch.tensor(float(k), dtype=torch.float64)).item()
    return math.log(count) + dim * distance.log().mean() + log_unit_ball - digamma_k


def _project_on_principal_axis(points: Tensor, mask: Tensor, combine: Combine) -> Tensor:
    """Project [G, N, P] on the direction of largest variance: [G, N], or [1, N] for `joint`."""
    present = mask.unsqueeze(-1)
    observed = points.masked_fill(~present, 0.0)  # absent rows may hold any value
    mean = observed.sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp(min=1)
    centered = (observed - mean).masked_fill(~present, 0.0)  # absent rows lie at the mean
    if combine == "joint":
        centered = centered.transpose(0, 1).flatten(1).unsqueeze(0)
    axis: Tensor = torch.linalg.eigh(centered.transpose(1, 2) @ centered).eigenvectors[..., -1:]
    projection = (centered @ axis).squeeze(-1)
    return projection.masked_fill(~mask, torch.inf) if combine == "marginal" else projection  # absent rows sort last


class _ApproximateMarginal:
    """Ranking score |b|² - 2ab, [G, T, M].

    It orders the neighbors b of a as |a - b|² does, in one pass; inf where b is absent. In float64: float32 rounding
    (6e-6 at squared norm 64) would hide distances under 2e-3.
    """

    def __init__(self, reference: Tensor, mask: Tensor, dtype: torch.dtype = torch.float64) -> None:
        self.reference = reference.to(dtype)
        self.norms = self.reference.pow(2).sum(-1).masked_fill(~mask, torch.inf).unsqueeze(1)

    def __call__(self, queries: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002  # absent queries get 0 at the end
        return torch.baddbmm(self.norms, queries.to(self.reference), self.reference.transpose(1, 2), alpha=-2)


class _ApproximateJoint:
    """Squared distance [1, T, M] over common views, scaled to the number of the query's views.

    One matmul: a²·[b present] + [a present]·b² - 2ab, with absent vectors zero.
    """

    def __init__(self, reference: Tensor, mask: Tensor, dtype: torch.dtype = torch.float64) -> None:
        self.mask = mask.T.to(dtype)  # [M, G]
        self.columns = torch.cat([*self._flatten_groups(reference.to(dtype), mask), self.mask], dim=1)

    def __call__(self, queries: Tensor, mask: Tensor) -> Tensor:
        vectors, norms = self._flatten_groups(queries.to(self.mask), mask)
        present = mask.T.to(self.mask)
        total = torch.cat([-2 * vectors, present, norms], dim=1) @ self.columns.T
        common = present @ self.mask.T  # number of common views; none: 0 / 0, no neighbor
        return (total * present.sum(1, keepdim=True) / common).nan_to_num_(nan=torch.inf).unsqueeze(0)

    @staticmethod
    def _flatten_groups(points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        vectors = points.masked_fill(~mask.unsqueeze(-1), 0.0)
        return vectors.transpose(0, 1).flatten(1), vectors.pow(2).sum(-1).T  # [N, G * P], [N, G]


def _measure_nearest(
    approximate: Tensor,
    queries: Tensor,
    query_mask: Tensor,
    reference: Tensor,
    reference_mask: Tensor,
    k: int,
    combine: Combine,
) -> Tensor:
    """Return ascending distances [G or 1, T, C] to the C best of `approximate` [G or 1, T, M], inf if not neighbors."""
    groups, _, dim = queries.shape
    candidates = approximate.topk(min(k + _EXTRA_CANDIDATES, approximate.shape[2]), largest=False, sorted=False)
    candidate_rows = candidates.indices.flatten(1).expand(groups, -1)  # [G, T * C]
    # Distances by difference are exact however close the points are.
    neighbors = reference.gather(1, candidate_rows.unsqueeze(-1).expand(-1, -1, dim)).unflatten(
        1, candidates.indices.shape[1:]
    )
    exact = (neighbors - queries.unsqueeze(2)).pow(2).sum(-1)  # [G, T, C]
    exact = _combine_groups(
        exact, query_mask.unsqueeze(2), reference_mask.gather(1, candidate_rows).view(exact.shape), combine
    )
    exact = exact.masked_fill(candidates.values.isinf(), torch.inf)  # [G or 1, T, C]
    return exact.sort(-1).values.sqrt()


def _combine_groups(squared: Tensor, mask: Tensor, reference_mask: Tensor, combine: Combine) -> Tensor:
    """Set squared distances [G, T, M] of absent rows to inf; `joint` sums them to [1, T, M]."""
    both = mask & reference_mask
    if combine == "marginal":
        return squared.masked_fill(~both, torch.inf)
    common = both.sum(0, keepdim=True)
    total = squared.masked_fill(~both, 0.0).sum(0, keepdim=True) * mask.sum(0, keepdim=True)
    return torch.where(common > 0, total / common.clamp(min=1), torch.inf)


def _select_kth(ascending: Tensor, k: int) -> Tensor:
    """Return the k-th finite value of each row, the last if there are fewer, 0 if none."""
    if ascending.shape[-1] == 0:
        return ascending.new_zeros(ascending.shape[:-1])
    available = ascending.isfinite().sum(-1, keepdim=True)
    value = ascending.gather(-1, (available.clamp(max=k) - 1).clamp(min=0)).squeeze(-1)
    return torch.where(available.squeeze(-1) > 0, value, 0.0)


def _average_first(ascending: Tensor, k: int) -> Tensor:
    """Return the mean of the first k finite values of each row, or of fewer, 0 if none."""
    first = ascending[..., :k]
    finite = first.isfinite()
    return torch.where(finite, first, 0.0).sum(-1) / finite.sum(-1).clamp(min=1)
