"""Distance to the k-th nearest neighbour: exact, in tiles, for several views at once."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Combine = Literal["marginal", "joint"]


class Reference(NamedTuple):
    """The points among which neighbours are searched, when they are not the queries themselves."""

    points: Tensor  # [G, M, P]
    mask: Tensor  # [G, M] bool, which of them are there
    rows: Tensor  # [M] which row each one is: a query is no neighbour of points with its own row number


# More candidates than neighbours are chosen by matmul and measured again by difference: near-duplicates that rounding
# has put in the wrong order are put right. Five are enough for spreads of 1e-6 at norm 8 (QUALITY S6).
_SPARE_CANDIDATES = 5


def knn_distance(
    points: Tensor,
    k: int,
    *,
    mask: Tensor | None = None,
    rows: Tensor | None = None,
    among: Reference | None = None,
    combine: Combine = "marginal",
    average: bool = False,
    tile_bytes: int = 32 * 2**20,
) -> Tensor:
    """Distance from every point to its k-th nearest other point, or to the k-th nearest of the points `among`.

    With `average`, the mean of the distances to the k nearest ones.

    `points` [G, N, P] are N rows seen in G ways (views); `mask` [G, N] says where a row is seen. `marginal` searches
    each of the G by itself and returns [G, N]; `joint` takes a row's G vectors as one long vector and returns [1, N].
    Rows that miss a view are then compared over the views both have, scaled to the number the first one has: a
    camera that fails does not look like a discovery.

    A point is never its own neighbour, nor is a copy with the same number in `rows` [N] (0 to N - 1 if not given).
    With fewer than k others the farthest counts; with none, or where a row is not seen, the distance is 0.
    """
    if k < 1:
        raise ValueError(f"expected k >= 1, got {k}")
    if points.device.type == "mps":  # has no float64
        among = among and Reference(*(tensor.cpu() for tensor in among))
        mask, rows = (tensor if tensor is None else tensor.cpu() for tensor in (mask, rows))
        found = knn_distance(points.cpu(), k, mask=mask, rows=rows, among=among, combine=combine, average=average)
        return found.to(points.device)
    points = points.detach().float()
    groups, count, dim = points.shape
    if mask is None:
        mask = torch.ones(groups, count, dtype=torch.bool, device=points.device)
    if rows is None:
        rows = torch.arange(count, device=points.device)
    if among is None:
        among = Reference(points, mask, rows)
    reference = among.points.detach().float()
    rough_distances = (_RoughMarginal if combine == "marginal" else _RoughJoint)(reference, among.mask)

    tile = max(1, tile_bytes // (8 * groups * max(1, reference.shape[1])))
    distances = []
    for first in range(0, count, tile):
        here = slice(first, min(first + tile, count))
        queries, seen = points[:, here], mask[:, here]
        rough = rough_distances(queries, seen)  # [G or 1, T, M]
        rough.masked_fill_(rows[here].unsqueeze(1) == among.rows, torch.inf)

        candidates = rough.topk(min(k + _SPARE_CANDIDATES, rough.shape[2]), largest=False, sorted=False)
        chosen = candidates.indices.flatten(1).expand(groups, -1)  # [G, T * C]
        # By difference now: exact however close the points are.
        near = reference.gather(1, chosen.unsqueeze(-1).expand(-1, -1, dim)).unflatten(1, candidates.indices.shape[1:])
        exact = (near - queries.unsqueeze(2)).pow(2).sum(-1)  # [G, T, C]
        exact = _combine(exact, seen.unsqueeze(2), among.mask.gather(1, chosen).view(exact.shape), combine)
        exact = exact.masked_fill(candidates.values.isinf(), torch.inf)  # [G or 1, T, C]
        ascending = exact.sort(-1).values.sqrt()
        distances.append(_mean_of_first(ascending, k) if average else _kth(ascending, k))
    return torch.cat(distances, dim=1)


def nearby_distance(
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
    `docs/performance.md` has the rank correlation with the whole search.
    """
    if window <= k:
        raise ValueError(f"expected a window of more than k = {k} rows, got {window}")
    groups, count, _ = points.shape
    if mask is None:
        mask = torch.ones(groups, count, dtype=torch.bool, device=points.device)
    if count <= window:
        return knn_distance(points, k, mask=mask, combine=combine, average=average)
    points = points.detach().float()
    place = _along_principal_axis(points, mask, combine)  # [G or 1, N]
    order = place.argsort(1).expand(groups, -1)
    points, mask = points.gather(1, order.unsqueeze(-1).expand_as(points)), mask.gather(1, order)
    places = torch.arange(count, device=points.device)

    tile = max(1, window // 4)
    distances = []
    for first in range(0, count, tile):
        here = slice(first, min(first + tile, count))
        low = min(max(0, (first + here.stop - window) // 2), count - window)
        there = slice(low, low + window)
        among = Reference(points[:, there], mask[:, there], places[there])
        queries, seen = points[:, here], mask[:, here]
        distances.append(
            knn_distance(queries, k, mask=seen, rows=places[here], among=among, combine=combine, average=average)
        )
    found = torch.cat(distances, dim=1)
    return torch.empty_like(found).scatter_(1, order[: len(found)], found)


def _along_principal_axis(points: Tensor, mask: Tensor, combine: Combine) -> Tensor:
    """Where each of [G, N, P] lies along the direction of largest variance: [G, N], or [1, N] for all views as one."""
    present = mask.unsqueeze(-1)
    seen = points.masked_fill(~present, 0.0)  # unseen rows may hold anything
    mean = seen.sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp(min=1)
    centred = (seen - mean).masked_fill(~present, 0.0)  # and stand at the mean of the seen ones
    if combine == "joint":
        centred = centred.transpose(0, 1).flatten(1).unsqueeze(0)
    axis: Tensor = torch.linalg.eigh(centred.transpose(1, 2) @ centred).eigenvectors[..., -1:]
    place = (centred @ axis).squeeze(-1)
    return place.masked_fill(~mask, torch.inf) if combine == "marginal" else place  # out of the others' way


class _RoughMarginal:
    """|b|² - 2ab, which orders the neighbours of a as |a - b|² does, in one pass over [G, T, M]; inf where b is unseen.

    In float64: in float32 the rounding (6e-6 at squared norm 64) would hide distances under 2e-3.
    """

    def __init__(self, reference: Tensor, mask: Tensor) -> None:
        self.reference = reference.double()
        self.norms = self.reference.pow(2).sum(-1).masked_fill(~mask, torch.inf).unsqueeze(1)

    def __call__(self, queries: Tensor, seen: Tensor) -> Tensor:  # noqa: ARG002  # unseen queries are zeroed at the end
        return torch.baddbmm(self.norms, queries.double(), self.reference.transpose(1, 2), alpha=-2)


class _RoughJoint:
    """The sum over the views both have, by one matmul: a²·[b seen] + [a seen]·b² - 2ab, with unseen vectors zero."""

    def __init__(self, reference: Tensor, mask: Tensor) -> None:
        self.seen = mask.T.double()  # [M, G]
        self.columns = torch.cat([*self._parts(reference, mask), self.seen], dim=1)

    def __call__(self, queries: Tensor, seen: Tensor) -> Tensor:
        vectors, norms = self._parts(queries, seen)
        present = seen.T.double()
        total = torch.cat([-2 * vectors, present, norms], dim=1) @ self.columns.T
        common = present @ self.seen.T  # over how many views; none in common: 0 / 0, no neighbour
        return (total * present.sum(1, keepdim=True) / common).nan_to_num_(nan=torch.inf).unsqueeze(0)

    @staticmethod
    def _parts(points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        vectors = points.double().masked_fill(~mask.unsqueeze(-1), 0.0)
        return vectors.transpose(0, 1).flatten(1), vectors.pow(2).sum(-1).T  # [N, G * P], [N, G]


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


def _mean_of_first(ascending: Tensor, k: int) -> Tensor:
    """The mean of the first k finite values of each row, of fewer if there are not so many, 0 if there are none."""
    first = ascending[..., :k]
    there = first.isfinite()
    return torch.where(there, first, 0.0).sum(-1) / there.sum(-1).clamp(min=1)
