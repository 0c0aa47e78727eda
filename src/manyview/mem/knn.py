"""Distance to the k-th nearest neighbour: exact, in tiles, for several views at once."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Combine = Literal["marginal", "joint"]


class ReferenceSet(NamedTuple):
    """The points among which neighbours are searched, when they are not the queries themselves."""

    points: Tensor  # [G, M, P]
    mask: Tensor  # [G, M] bool, which of them are there
    indices: Tensor  # [M] which row each one is: a query is no neighbour of points with its own row number


# More candidates than neighbours are chosen by matmul and measured again by difference: near-duplicates that rounding
# has put in the wrong order are put right. Five are enough for spreads of 1e-6 at norm 8 (QUALITY S6).
_EXTRA_CANDIDATES = 5


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
    """Distance from every point to its k-th nearest other point, or to the k-th nearest of the points of `reference`.

    With `average`, the mean of the distances to the k nearest ones.

    `points` [G, N, P] are N rows seen in G ways (views); `mask` [G, N] says where a row is seen. `marginal` searches
    each of the G by itself and returns [G, N]; `joint` takes a row's G vectors as one long vector and returns [1, N].
    Rows that miss a view are then compared over the views both have, scaled to the number the first one has: a
    camera that fails does not look like a discovery.

    A point is never its own neighbour, nor is a copy with the same index in `indices` [N] (0 to N - 1 if not given).
    With fewer than k others the farthest counts; with none, or where a row is not seen, the distance is 0.
    """
    if k < 1:
        raise ValueError(f"expected k >= 1, got {k}")
    if points.device.type == "mps":  # has no float64
        reference = reference and ReferenceSet(*(tensor.cpu() for tensor in reference))
        mask, indices = (tensor if tensor is None else tensor.cpu() for tensor in (mask, indices))
        found = knn_distance(
            points.cpu(), k, mask=mask, indices=indices, reference=reference, combine=combine, average=average
        )
        return found.to(points.device)
    points = points.detach().float()
    groups, count, dim = points.shape
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

        candidates = approximate.topk(min(k + _EXTRA_CANDIDATES, approximate.shape[2]), largest=False, sorted=False)
        chosen = candidates.indices.flatten(1).expand(groups, -1)  # [G, T * C]
        # By difference now: exact however close the points are.
        neighbours = reference_points.gather(1, chosen.unsqueeze(-1).expand(-1, -1, dim)).unflatten(
            1, candidates.indices.shape[1:]
        )
        exact = (neighbours - queries.unsqueeze(2)).pow(2).sum(-1)  # [G, T, C]
        exact = _combine_groups(
            exact, query_mask.unsqueeze(2), reference.mask.gather(1, chosen).view(exact.shape), combine
        )
        exact = exact.masked_fill(candidates.values.isinf(), torch.inf)  # [G or 1, T, C]
        ascending = exact.sort(-1).values.sqrt()
        distances.append(_average_first(ascending, k) if average else _select_kth(ascending, k))
    return torch.cat(distances, dim=1)


def windowed_knn_distance(
    points: Tensor,
    k: int,
    *,
    window: int,
    mask: Tensor | None = None,
    combine: Combine = "marginal",
    average: bool = False,
) -> Tensor:
    """As `knn_distance`, but searching only the `window` rows that lie nearest along the principal axis of the points.

    Close points are close along any axis, so little is missed, at an eighth of the cost for 2,048 of 16,384 rows:
    `docs/explanation/performance.md` has the rank correlation with the whole search.
    """
    if window <= k:
        raise ValueError(f"expected a window of more than k = {k} rows, got {window}")
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


def _project_on_principal_axis(points: Tensor, mask: Tensor, combine: Combine) -> Tensor:
    """Where each of [G, N, P] lies along the direction of largest variance: [G, N], or [1, N] for all views as one."""
    present = mask.unsqueeze(-1)
    observed = points.masked_fill(~present, 0.0)  # unseen rows may hold anything
    mean = observed.sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp(min=1)
    centred = (observed - mean).masked_fill(~present, 0.0)  # and stand at the mean of the seen ones
    if combine == "joint":
        centred = centred.transpose(0, 1).flatten(1).unsqueeze(0)
    axis: Tensor = torch.linalg.eigh(centred.transpose(1, 2) @ centred).eigenvectors[..., -1:]
    projection = (centred @ axis).squeeze(-1)
    return projection.masked_fill(~mask, torch.inf) if combine == "marginal" else projection  # out of the others' way


class _ApproximateMarginal:
    """|b|² - 2ab, which orders the neighbours of a as |a - b|² does, in one pass over [G, T, M]; inf where b is unseen.

    In float64: in float32 the rounding (6e-6 at squared norm 64) would hide distances under 2e-3.
    """

    def __init__(self, reference: Tensor, mask: Tensor) -> None:
        self.reference = reference.double()
        self.norms = self.reference.pow(2).sum(-1).masked_fill(~mask, torch.inf).unsqueeze(1)

    def __call__(self, queries: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002  # unseen queries are zeroed at the end
        return torch.baddbmm(self.norms, queries.double(), self.reference.transpose(1, 2), alpha=-2)


class _ApproximateJoint:
    """The sum over the views both have, by one matmul: a²·[b seen] + [a seen]·b² - 2ab, with unseen vectors zero."""

    def __init__(self, reference: Tensor, mask: Tensor) -> None:
        self.mask = mask.T.double()  # [M, G]
        self.columns = torch.cat([*self._flatten_groups(reference, mask), self.mask], dim=1)

    def __call__(self, queries: Tensor, mask: Tensor) -> Tensor:
        vectors, norms = self._flatten_groups(queries, mask)
        present = mask.T.double()
        total = torch.cat([-2 * vectors, present, norms], dim=1) @ self.columns.T
        common = present @ self.mask.T  # over how many views; none in common: 0 / 0, no neighbour
        return (total * present.sum(1, keepdim=True) / common).nan_to_num_(nan=torch.inf).unsqueeze(0)

    @staticmethod
    def _flatten_groups(points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        vectors = points.double().masked_fill(~mask.unsqueeze(-1), 0.0)
        return vectors.transpose(0, 1).flatten(1), vectors.pow(2).sum(-1).T  # [N, G * P], [N, G]


def _combine_groups(squared: Tensor, mask: Tensor, reference_mask: Tensor, combine: Combine) -> Tensor:
    """[G, T, M] squared distances per view, to [G, T, M] with inf where one is not seen, or to [1, T, M] over all."""
    both = mask & reference_mask
    if combine == "marginal":
        return squared.masked_fill(~both, torch.inf)
    common = both.sum(0, keepdim=True)
    total = squared.masked_fill(~both, 0.0).sum(0, keepdim=True) * mask.sum(0, keepdim=True)
    return torch.where(common > 0, total / common.clamp(min=1), torch.inf)


def _select_kth(ascending: Tensor, k: int) -> Tensor:
    """The k-th finite value of each row, the last one if there are fewer, 0 if there are none."""
    if ascending.shape[-1] == 0:
        return ascending.new_zeros(ascending.shape[:-1])
    available = ascending.isfinite().sum(-1, keepdim=True)
    value = ascending.gather(-1, (available.clamp(max=k) - 1).clamp(min=0)).squeeze(-1)
    return torch.where(available.squeeze(-1) > 0, value, 0.0)


def _average_first(ascending: Tensor, k: int) -> Tensor:
    """The mean of the first k finite values of each row, of fewer if there are not so many, 0 if there are none."""
    first = ascending[..., :k]
    finite = first.isfinite()
    return torch.where(finite, first, 0.0).sum(-1) / finite.sum(-1).clamp(min=1)


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
