"""Exact selection of nearest neighbors by matmuls: candidates, their distances, and a proof of the k-th."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Combine = Literal["marginal", "joint"]

# A matmul selects k plus this many candidates, whose distances are then computed exactly by difference: this corrects
# the order of near-duplicates that rounding has swapped. Five suffice for spreads of 1e-6 at norm 8 (QUALITY S6); one
# more is the point itself.
_EXTRA_CANDIDATES = 6


class ReferenceSet(NamedTuple):
    """Points to search for neighbors, if other than the queries."""

    points: Tensor  # [G, M, P]
    mask: Tensor  # [G, M] bool, true where the point is present
    indices: Tensor  # [M] row index; a point with the query's index is not its neighbor


def compute_center(points: Tensor, mask: Tensor) -> Tensor:
    """Return the mean [G, 1, P] of the present points [G, N, P]."""
    present = mask.unsqueeze(-1)
    return torch.where(present, points, 0.0).sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp(min=1)


class ExactSearch:
    """Exact k-NN search in one reference set.

    In float32, around `center`, the candidates are only selected; their distances are exact. Rows whose k-th distance
    this does not prove are searched again in float64: near-duplicates, whose order float32 cannot tell, and rows with
    many copies of themselves. Without a `center` all rows are searched in float64.
    """

    def __init__(
        self, reference: ReferenceSet, k: int, combine: Combine, *, average: bool, center: Tensor | None
    ) -> None:
        self.reference, self.k, self.combine, self.average, self.center = reference, k, combine, average, center
        self._exact_scores: ApproximateMarginal | ApproximateJoint | None = None
        if center is not None:
            self.scores = ApproximateMarginal(reference.points - center, reference.mask, torch.float32)

    def __call__(self, queries: Tensor, mask: Tensor, indices: Tensor) -> Tensor:
        """Return the distances [G or 1, T] of queries [G, T, P]."""
        if self.center is None:
            return self._search_exactly(queries, mask, indices)
        centered = queries - self.center
        ascending, scores = self._measure(self.scores(centered, mask), queries, mask, indices)
        distances = self._select(ascending)
        if scores.shape[2] < len(self.reference.indices):
            proven = self._is_proven(
                ascending[..., self.k - 1], scores.amax(-1), torch.linalg.vector_norm(centered, dim=2)
            )
            rows = (~proven & mask).any(0).nonzero().squeeze(1)
            if len(rows):
                distances[:, rows] = self._search_exactly(queries[:, rows], mask[:, rows], indices[rows])
        return distances

    def _is_proven(self, distance: Tensor, farthest_score: Tensor, norm: Tensor) -> Tensor:
        """Return whether no point outside the candidates can be nearer than `distance`, all [G, T].

        Its score would be at least `farthest_score`, and its norm at most `norm` + `distance`. A float32 sum of P
        products errs by at most P 2^-24 of the sum of their absolute values; 8 more roundings cover the other steps.
        """
        rounding = (self.reference.points.shape[-1] + 8) * 2.0**-24
        tolerance = rounding * ((2 * norm + distance).square() + distance.square())
        return distance.square() + tolerance <= farthest_score + norm.square()

    def _search_exactly(self, queries: Tensor, mask: Tensor, indices: Tensor) -> Tensor:
        """Return the distances by candidates selected in float64."""
        if self._exact_scores is None:
            kind = ApproximateMarginal if self.combine == "marginal" else ApproximateJoint
            self._exact_scores = kind(self.reference.points, self.reference.mask)
        scores = self._exact_scores(queries, mask)
        scores.masked_fill_(indices.unsqueeze(1) == self.reference.indices, torch.inf)
        return self._select(self._measure(scores, queries, mask, indices)[0])

    def _measure(self, scores: Tensor, queries: Tensor, mask: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        return measure_nearest(scores, queries, mask, indices, self.reference, self.k, self.combine)

    def _select(self, ascending: Tensor) -> Tensor:
        return _average_first(ascending, self.k) if self.average else _select_kth(ascending, self.k)


class ApproximateMarginal:
    """Ranking score |b|² - 2ab, [G, T, M].

    It orders the neighbors b of a as |a - b|² does, in one pass; inf where b is absent. In float64: float32 rounding
    (6e-6 at squared norm 64) would hide distances under 2e-3.
    """

    def __init__(self, reference: Tensor, mask: Tensor, dtype: torch.dtype = torch.float64) -> None:
        self.reference = reference.to(dtype)
        squared_norms = torch.linalg.vector_norm(self.reference, dim=-1).square_()
        self.norms = squared_norms.masked_fill_(~mask, torch.inf).unsqueeze(1)

    def __call__(self, queries: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002  # absent queries get 0 at the end
        return torch.baddbmm(self.norms, queries.to(self.reference), self.reference.transpose(1, 2), alpha=-2)


class ApproximateJoint:
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


def measure_nearest(
    scores: Tensor,
    queries: Tensor,
    mask: Tensor,
    indices: Tensor,
    reference: ReferenceSet,
    k: int,
    combine: Combine,
) -> tuple[Tensor, Tensor]:
    """Measure the C candidates with the lowest `scores` [G or 1, T, M].

    Returns:
        Ascending distances, inf where a candidate is not a neighbor, and scores of the candidates, [G or 1, T, C] each.

    """
    groups, _, dim = queries.shape
    size = scores.shape[2]
    candidates = scores.topk(min(k + _EXTRA_CANDIDATES, size), largest=False, sorted=False)
    shape = (groups, *candidates.indices.shape[1:])
    first_rows = size * torch.arange(groups, device=scores.device).view(-1, 1, 1)
    rows = (candidates.indices + first_rows).flatten()  # of all groups; selecting whole rows is faster than a gather
    neighbors = reference.points.flatten(0, 1).index_select(0, rows).view(*shape, dim)
    # Distances by difference are exact however close the points are.
    exact = neighbors.sub_(queries.unsqueeze(2)).square_().sum(-1)  # [G, T, C]
    reference_mask = reference.mask.flatten().index_select(0, rows).view(shape)
    exact = _combine_groups(exact, mask.unsqueeze(2), reference_mask, combine)  # [G or 1, T, C]
    is_own = reference.indices[candidates.indices] == indices.unsqueeze(1)
    exact = exact.masked_fill(candidates.values.isinf() | is_own, torch.inf)
    return exact.sort(-1).values.sqrt(), candidates.values


def measure_all_pairs(points: Tensor, mask: Tensor) -> Tensor:
    """Return the `joint` distances [N, N] of points [G, N, P] in `mask` [G, N], inf without a common group."""
    squared = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()
    return _combine_groups(squared, mask.unsqueeze(2), mask.unsqueeze(1), "joint").squeeze(0).sqrt()


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
