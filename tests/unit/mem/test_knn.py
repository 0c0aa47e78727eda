"""Distances to the k-th neighbor: exact for any tiles, masks, windows and references."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from experiments.recording import FIXTURES, VIEWS, Recording
from experiments.unrewarded import spearman
from manyview.mem import Encoder, knn_distance
from manyview.mem.knn import Combine, ReferenceSet, windowed_knn_distance
from manyview.mem.neighbor_selection import ExactSearch
from quality.plugin import Figure


def compute_kth_distances(points: torch.Tensor, k: int) -> torch.Tensor:
    """Return the distances [N] to the k-th other row, by brute force in float64."""
    distances = torch.from_numpy(cdist(points.double().numpy(), points.double().numpy()))
    return distances.fill_diagonal_(torch.inf).sort(1).values[:, k - 1]


@pytest.mark.quality("S6")
@pytest.mark.parametrize("spread", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0])
def test_near_duplicates_are_measured_exactly(spread: float, figure: Figure) -> None:
    max_error = 0.0
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        # Eight far-apart clusters of LayerNormed features, as of cameras that hardly move.
        centers = torch.nn.functional.layer_norm(torch.randn(8, 64, generator=generator), (64,))
        points = centers.repeat(64, 1) + spread * torch.randn(512, 64, generator=generator)
        for k in (1, 3, 5):
            expected = compute_kth_distances(points, k)
            actual = knn_distance(points.unsqueeze(0), k)[0]
            max_error = max(max_error, ((actual - expected).abs() / expected).max().item())
    figure(max_error)


@pytest.fixture
def repeated_row_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every search in float64 appends its number of rows."""
    row_counts: list[int] = []
    search = ExactSearch._search_exactly

    def count_and_search(
        self: ExactSearch, queries: torch.Tensor, mask: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        row_counts.append(len(indices))
        return search(self, queries, mask, indices)

    monkeypatch.setattr(ExactSearch, "_search_exactly", count_and_search)
    return row_counts


@pytest.mark.quality("S6")
def test_near_duplicates_within_float32_rounding_are_found(
    repeated_row_counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding exceeds the squared distances within clusters far from their mean."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(2, 64, generator=generator).repeat(256, 1) + 1e-4 * torch.randn(512, 64, generator=generator)
    expected = compute_kth_distances(points, 3).float()
    torch.testing.assert_close(knn_distance(points.unsqueeze(0), 3)[0], expected, rtol=1e-5, atol=0.0)
    assert sum(repeated_row_counts) > 400
    monkeypatch.setattr(ExactSearch, "_is_proven", lambda *_: torch.ones(1, 512, dtype=torch.bool))
    float32_distances = knn_distance(points.unsqueeze(0), 3)[0]
    assert ((float32_distances - expected) / expected).max() > 0.05


@pytest.mark.parametrize("combine", ["marginal", "joint"])
def test_rows_that_differ_are_not_searched_twice(repeated_row_counts: list[int], combine: Combine) -> None:
    """The rows have few degrees of freedom, as states of a task, and one outlier."""
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(512, 6, generator=generator)
    points = torch.nn.functional.layer_norm(latents @ torch.randn(3, 6, 32, generator=generator), (32,))
    points[:, 0] *= 100
    knn_distance(points, 3, combine=combine)
    assert sum(repeated_row_counts) == 0


def test_copies_of_a_row_may_outnumber_the_candidates(repeated_row_counts: list[int]) -> None:
    points = torch.randn(1, 40, 8, generator=torch.Generator().manual_seed(0))
    indices = torch.arange(40)
    copies = points[:, :1].expand(-1, 60, -1)
    reference = ReferenceSet(
        torch.cat([copies, points], dim=1),
        torch.ones(1, 100, dtype=torch.bool),
        torch.cat([torch.zeros(60, dtype=torch.long), indices]),
    )
    actual = knn_distance(points[:, :1], 3, indices=indices[:1], reference=reference)[0]
    torch.testing.assert_close(actual, compute_kth_distances(points[0], 3).float()[:1])
    assert repeated_row_counts == [1]


def test_autocast_does_not_reach_the_search() -> None:
    generator = torch.Generator().manual_seed(0)
    clusters = torch.randn(2, 2, 64, generator=generator).repeat(1, 150, 1)
    points = clusters + 0.05 * torch.randn(2, 300, 64, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = knn_distance(points, 3)
    torch.testing.assert_close(actual, torch.stack([compute_kth_distances(group, 3) for group in points]).float())


@given(
    rows=st.integers(1, 20),
    groups=st.integers(1, 3),
    k=st.integers(1, 25),
    tile_bytes=st.integers(1, 2000),
    combine=st.sampled_from(["marginal", "joint"]),
    seed=st.integers(0, 2**16),
)
@settings(deadline=None)
def test_tiles_change_nothing(rows: int, groups: int, k: int, tile_bytes: int, combine: Combine, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(groups, rows, 4, generator=generator)
    mask = torch.rand(groups, rows, generator=generator) < 0.7
    whole = knn_distance(points, k, mask=mask, combine=combine)
    tiled = knn_distance(points, k, mask=mask, combine=combine, tile_bytes=tile_bytes)
    torch.testing.assert_close(tiled, whole, atol=1e-6, rtol=1e-6)


@pytest.mark.quality("S5")
@pytest.mark.parametrize("combine", ["marginal", "joint"])
def test_fewer_than_k_neighbors_give_the_distance_to_the_farthest(combine: Combine) -> None:
    points = torch.tensor([[[0.0], [1.0], [5.0]]])
    assert knn_distance(points, 2, combine=combine).tolist() == [[5.0, 4.0, 5.0]]
    assert knn_distance(points, 99, combine=combine).tolist() == [[5.0, 4.0, 5.0]]


@pytest.mark.quality("S5")
@pytest.mark.parametrize("combine", ["marginal", "joint"])
def test_a_single_point_has_distance_zero(combine: Combine) -> None:
    assert knn_distance(torch.ones(1, 1, 4), 3, combine=combine).tolist() == [[0.0]]


@pytest.mark.quality("S5")
def test_duplicates_have_distance_exactly_zero() -> None:
    points = torch.randn(1, 1, 64).expand(3, 256, 64)
    assert knn_distance(points, 3).eq(0).all()
    assert knn_distance(points, 3, combine="joint").eq(0).all()


def test_a_duplicate_is_a_neighbor_but_the_point_itself_is_not() -> None:
    points = torch.tensor([[[0.0], [0.0], [3.0]]])
    assert knn_distance(points, 1).tolist() == [[0.0, 0.0, 3.0]]
    assert knn_distance(points, 2).tolist() == [[3.0, 3.0, 3.0]]


def test_masked_rows_are_no_neighbors_and_have_distance_zero() -> None:
    points, mask = torch.randn(2, 30, 8), torch.ones(2, 30, dtype=torch.bool)
    mask[0, ::3] = False
    actual = knn_distance(points, 3, mask=mask)
    assert actual[0, ::3].eq(0).all()
    torch.testing.assert_close(actual[0, mask[0]], compute_kth_distances(points[0, mask[0]], 3).float())
    torch.testing.assert_close(actual[1], compute_kth_distances(points[1], 3).float())


def test_joint_compares_rows_over_the_views_both_have() -> None:
    # Row 1 misses the second view, in which rows 0 and 2 are far apart.
    points = torch.tensor([[[0.0], [3.0], [1.0]], [[0.0], [77.0], [9.0]]])
    mask = torch.tensor([[True, True, True], [True, False, True]])
    actual = knn_distance(points, 1, mask=mask, combine="joint")[0]
    # 0: to 1 over one of its two views, 3² * 2 / 1 = 18; to 2 over both, 1 + 81.  1: to 2 over its only view, 2² = 4.
    assert actual.tolist() == pytest.approx([18**0.5, 2.0, 8**0.5])


@pytest.mark.parametrize("combine", ["marginal", "joint"])
def test_a_window_as_large_as_the_rows_is_exact(combine: Combine) -> None:
    points, mask = torch.randn(2, 50, 8), torch.rand(2, 50) < 0.8
    actual = windowed_knn_distance(points, 3, window=50, mask=mask, combine=combine)
    assert actual.equal(knn_distance(points, 3, mask=mask, combine=combine))


@pytest.mark.parametrize("combine", ["marginal", "joint"])
def test_a_window_is_exact_for_points_on_a_line(combine: Combine) -> None:
    line = torch.rand(2, 300, 1, generator=torch.Generator().manual_seed(0)).sort(1).values.flip(1)
    points = (line * torch.tensor([3.0, 4.0]))[:, torch.randperm(300, generator=torch.Generator().manual_seed(1))]
    if combine == "joint":
        points = points[:1].repeat(2, 1, 1)
    actual = windowed_knn_distance(points, 3, window=40, combine=combine)
    torch.testing.assert_close(actual, knn_distance(points, 3, combine=combine), rtol=1e-4, atol=1e-5)


def test_windowed_distances_are_upper_bounds_and_ignore_masked_rows() -> None:
    points, mask = torch.randn(2, 400, 16), torch.rand(2, 400) < 0.7
    exact, windowed = knn_distance(points, 3, mask=mask), windowed_knn_distance(points, 3, window=100, mask=mask)
    assert windowed[~mask].eq(0).all()
    assert (windowed >= exact - 1e-5).all()
    changed_points = points.masked_fill(~mask.unsqueeze(-1), 1e6)
    torch.testing.assert_close(windowed_knn_distance(changed_points, 3, window=100, mask=mask), windowed)


@pytest.mark.slow
def test_a_window_keeps_the_reward_order_of_a_rollout() -> None:
    """A window of an eighth of the rows beats as many random rows on every task."""
    torch.manual_seed(0)
    window_correlations, random_correlations = [], []
    for path in sorted(FIXTURES.glob("*.zst")):
        recording = Recording.load(path.name.split(".")[0])
        encoder = Encoder(len(VIEWS), recording.image_shape, trunk="small")
        with torch.no_grad():
            points = torch.cat([encoder(recording.stack_frames(rows)).terms for rows in torch.arange(4000).split(500)])
        points, mask = points.transpose(0, 1), torch.ones(len(VIEWS) + 1, 4000, dtype=torch.bool)
        random_rows = torch.randperm(4000)[:500]
        exact_rewards = knn_distance(points, 3).log1p().mean(0)
        window_rewards = windowed_knn_distance(points, 3, window=500).log1p().mean(0)
        random_rewards = (
            knn_distance(points, 3, reference=ReferenceSet(points[:, random_rows], mask[:, random_rows], random_rows))
            .log1p()
            .mean(0)
        )
        window_correlations.append(spearman(exact_rewards, window_rewards))
        random_correlations.append(spearman(exact_rewards, random_rewards))
    print("rank correlation with the whole search, window:", window_correlations, "random rows:", random_correlations)
    assert sum(window_correlations) / len(window_correlations) >= 0.95
    assert all(w > c for w, c in zip(window_correlations, random_correlations, strict=True))


@pytest.mark.slow
@pytest.mark.long
def test_a_window_of_2048_keeps_the_order_of_16384_rewards() -> None:
    """The rows are features of five tasks."""
    torch.manual_seed(0)
    recordings = [Recording.load(path.name.split(".")[0]) for path in sorted(FIXTURES.glob("*.zst"))]
    encoder = Encoder(len(VIEWS), recordings[0].image_shape, trunk="small")
    with torch.no_grad():
        parts = [
            encoder(recording.stack_frames(rows)).terms
            for recording in recordings
            for rows in torch.arange(4000).split(500)
        ]
    terms = torch.cat(parts)
    points = terms[torch.randperm(len(terms))[:16_384]].transpose(0, 1)
    exact, windowed = knn_distance(points, 3), windowed_knn_distance(points, 3, window=2048)
    assert spearman(exact.log1p().mean(0), windowed.log1p().mean(0)) >= 0.95


def test_other_points_may_serve_as_reference() -> None:
    points, bank = torch.randn(1, 6, 4), torch.randn(1, 30, 4)
    reference = ReferenceSet(bank, torch.ones(1, 30, dtype=torch.bool), torch.full((30,), -1))
    expected = torch.from_numpy(cdist(points[0].numpy(), bank[0].numpy())).sort(1).values[:, 1]
    torch.testing.assert_close(knn_distance(points, 2, reference=reference)[0], expected.float(), rtol=1e-5, atol=1e-5)


def test_copies_with_the_same_index_are_no_neighbors() -> None:
    points = torch.tensor([[[0.0], [0.0], [3.0], [7.0]]])
    indices = torch.tensor([5, 5, 8, 9])
    assert knn_distance(points, 1, indices=indices).tolist() == [[3.0, 3.0, 3.0, 4.0]]


@pytest.mark.parametrize("combine", ["marginal", "joint"])
def test_without_any_reference_every_distance_is_zero(combine: Combine) -> None:
    empty_reference = ReferenceSet(
        torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool), torch.zeros(0, dtype=torch.long)
    )
    assert knn_distance(torch.zeros(2, 3, 4), 1, reference=empty_reference, combine=combine).eq(0).all()


@given(
    rows=st.integers(2, 16),
    groups=st.integers(1, 3),
    k=st.integers(1, 5),
    combine=st.sampled_from(["marginal", "joint"]),
    seed=st.integers(0, 2**16),
)
@settings(deadline=None)
def test_masked_search_equals_loops(rows: int, groups: int, k: int, combine: Combine, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(groups, rows, 3, generator=generator)
    mask = torch.rand(groups, rows, generator=generator) < 0.6
    actual = knn_distance(points, k, mask=mask, combine=combine)
    for i in range(rows):
        for part in [[g] for g in range(groups)] if combine == "marginal" else [list(range(groups))]:
            distances = []
            for j in range(rows):
                common = [g for g in part if mask[g, i] and mask[g, j]]
                if j != i and common:
                    squared = sum(float((points[g, i] - points[g, j]).double().pow(2).sum()) for g in common)
                    distances.append((squared * sum(bool(mask[g, i]) for g in part) / len(common)) ** 0.5)
            expected = sorted(distances)[min(k, len(distances)) - 1] if distances else 0.0
            assert actual[part[0] if combine == "marginal" else 0, i].item() == pytest.approx(
                expected, rel=1e-4, abs=1e-6
            )


def test_a_window_must_hold_more_than_k_rows() -> None:
    with pytest.raises(ValueError, match="more than k = 3 rows, got 3"):
        windowed_knn_distance(torch.zeros(1, 9, 2), 3, window=3)


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="k >= 1, got 0"):
        knn_distance(torch.zeros(1, 3, 2), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_a_rollout_of_16384_rows_needs_no_full_distance_matrix() -> None:
    """The full matrix has 2 GB. A new process measures it: peak memory never falls."""
    code = (
        "import resource, torch; from manyview.mem import knn_distance; torch.set_num_threads(1)\n"
        "points = torch.randn(1, 16384, 64); knn_distance(points[:, :64], 3)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; knn_distance(points, 3)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    extra_kib = int(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300).stdout
    )
    assert extra_kib * 1024 <= 200e6
