"""k-nearest-neighbor search and the entropy estimate of Eq. 1.

`knn_distance` is exact, tiled to bound memory, and handles several views with absent rows at once.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from manyview.mem.neighbor_selection import (
    ApproximateJoint,
    ApproximateMarginal,
    Combine,
    ExactSearch,
    ReferenceSet,
    compute_center,
    measure_nearest,
)

__all__ = [
    "Combine",
    "ReferenceSet",
    "knn_distance",
    "knn_entropy",
    "search_neighbors",
    "windowed_knn_distance",
]


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
    reference = reference._replace(points=reference.points.detach().float())
    # Compiled, all is in float64: a proof of float32 depends on the data and would break the graph.
    is_compiling = torch.compiler.is_compiling()
    if combine == "joint" and not is_compiling and bool(mask.all() & reference.mask.all()):
        points, mask, reference = _join_groups(points, mask, reference)
        combine = "marginal"
    center = None if is_compiling or combine == "joint" else compute_center(points, mask)
    search = ExactSearch(reference, k, combine, average=average, center=center)
    tile = max(1, tile_bytes // (8 * groups * max(1, reference.points.shape[1])))
    blocks = zip(points.split(tile, dim=1), mask.split(tile, dim=1), indices.split(tile), strict=True)
    with torch.autocast(points.device.type, enabled=False):
        return torch.cat([search(*block) for block in blocks], dim=1) if count else points.new_zeros(len(points), 0)


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
    center = compute_center(points, mask)
    approximate_distances = ApproximateMarginal if combine == "marginal" else ApproximateJoint
    groups = len(points) if combine == "marginal" else 1
    nearest = points.new_full((groups, points.shape[1], k), torch.inf)
    for block in blocks:
        approximate = approximate_distances(block.points - center, block.mask, torch.float32)(points - center, mask)
        distances, _ = measure_nearest(approximate, points, mask, indices, block, k, combine)
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


def _join_groups(points: Tensor, mask: Tensor, reference: ReferenceSet) -> tuple[Tensor, Tensor, ReferenceSet]:
    """Return queries, mask and reference set with the vectors of all groups, which must be present, as one."""
    joined, others = (part.transpose(0, 1).flatten(1).unsqueeze(0) for part in (points, reference.points))
    return joined, mask[:1], ReferenceSet(others, reference.mask[:1], reference.indices)
