"""Neighbor search in stored features, against brute-force search."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from benchmarks.run_comparison import compare_trees
from manyview.data import Batch, ReplayBuffer, Sampler
from manyview.data.batch import RewardedState
from manyview.data.layout import FeatureShape
from manyview.data.neighbors import NeighborSearch, iter_neighbor_rows
from manyview.envs import MASK, View, wrap
from manyview.mem.knn import Combine, ReferenceSet, search_neighbors
from manyview.methods.bonuses.stored_search import StoredNeighborSearch
from manyview.scale import ray_runtime
from manyview.scale.batch_loader import BatchLoader
from manyview.scale.replay_shard import ReplayShard
from manyview.training import factory
from tests.support.replay import (
    NoiseEnv,
    PixelProjection,
    are_batches_equal,
    make_replay_buffer,
    play_steps,
    record_steps,
)
from tests.unit.data.test_replay_buffer import ALL_GONE, FAULTS
from tests.unit.scale.test_replay_shard import (
    KEY,
    LocalShardHandle,
    collect_chunks,
    make_config_and_shapes,
    wait_for_segments,
)

STACK, N_STEP = 3, 3


def make_filled_replay(*, capacity: int = 100, steps: int = 220, shape: FeatureShape = (4, 5)) -> ReplayBuffer:
    env = wrap(NoiseEnv(), faults=FAULTS + ALL_GONE, frame_stack=STACK)
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=STACK, feature_shape=shape)
    record_steps(env, replay, steps=steps)
    return replay


def make_sampler(replay: ReplayBuffer, search: NeighborSearch | None, *, prefetch: bool = False) -> Sampler:
    settings: dict[str, Any] = {"batch_size": 16, "n_step": N_STEP, "discount": 0.9, "seed": 0}
    return Sampler(replay, prefetch=prefetch, neighbor_search=search, **settings)


def search_brute_force(
    replay: ReplayBuffer, index: int, *, k: int, combine: Combine, horizon: int, state: RewardedState = "current"
) -> NDArray[np.float64]:
    """Return distances [G or 1, k] of a step to all others, by a loop in float64."""

    def is_state(step_index: int) -> bool:
        """Return whether an action was taken at the step, or led to a new observation."""
        step, previous_step = (replay.steps[position % replay.capacity] for position in (step_index, step_index - 1))
        return bool(step["acted"] if state == "current" else previous_step["acted"] and not step["repeated"])

    def get_groups(step_index: int) -> NDArray[np.bool_]:
        mask = replay.steps["mask"][step_index % replay.capacity]
        group_mask = np.append(mask, mask.any())
        return group_mask[[-1]] if features.shape[1] == 1 else group_mask[: features.shape[1]]

    assert replay.features is not None
    features = replay.features.astype(np.float64)
    reserve = max(1, min(1024, replay.capacity // 64))
    oldest = 0 if horizon <= replay.capacity - reserve else horizon + reserve - replay.capacity + STACK - 1
    present = get_groups(index)
    distances: list[list[float]] = [[] for _ in range(features.shape[1] if combine == "marginal" else 1)]
    for other in range(oldest, horizon - 1):
        if other == index or not is_state(other):
            continue
        squared = ((features[index % replay.capacity] - features[other % replay.capacity]) ** 2).sum(1)
        common = present & get_groups(other)
        if combine == "joint" and common.any():
            distances[0].append(float(squared[common].sum() * present.sum() / common.sum()) ** 0.5)
        for group in np.flatnonzero(common) if combine == "marginal" else ():
            distances[group].append(float(squared[group]) ** 0.5)
    rows = [sorted(row)[:k] or [0.0] for row in distances]
    return np.array([row + [row[-1]] * (k - len(row)) for row in rows])


@pytest.mark.parametrize("shape", [(1, 5), (3, 5), (4, 5)])
@pytest.mark.parametrize("combine", ["marginal", "joint"])
@pytest.mark.parametrize("rewarded_state", ["current", "next"])
@pytest.mark.parametrize("steps", [60, 220])
def test_the_distances_of_a_batch_equal_a_brute_force_search(
    shape: FeatureShape, combine: Combine, rewarded_state: RewardedState, steps: int
) -> None:
    """The ring has wrapped or not, with absent views and repeated observations."""
    replay = make_filled_replay(steps=steps, shape=shape)
    k, horizon = 4, replay.inserted
    search = StoredNeighborSearch(groups=1, k=k, combine=combine, rewarded_state=rewarded_state)
    batch = make_sampler(replay, search).sample()
    indices = batch.indices if rewarded_state == "current" else batch.next_indices
    assert batch.neighbor_distances is not None
    assert batch.neighbor_distances.shape == (16, 1 if combine == "joint" else shape[0], k)
    expected = [
        search_brute_force(replay, int(i), k=k, combine=combine, horizon=horizon, state=rewarded_state) for i in indices
    ]
    torch.testing.assert_close(
        batch.neighbor_distances.double(), torch.from_numpy(np.stack(expected)), rtol=1e-5, atol=0
    )


def test_the_last_states_of_other_episodes_are_neighbors() -> None:
    """The last state of an episode has no action, but it is a next state."""
    views = [View("camera", 4, 4, 1, fill=(0,))]
    replay = ReplayBuffer(views, action_shape=(1,), capacity=2_000, frame_stack=1, feature_shape=(1, 1))
    gray_level = 0

    def get_feature(views: NDArray[np.uint8], mask: NDArray[np.bool_]) -> NDArray[np.float32]:  # noqa: ARG001
        return views[:, 0, 0, 0, 0].astype(np.float32).reshape(-1, 1, 1)

    def observe(value: int) -> Any:
        return {"camera": np.full((4, 4, 1), value, np.uint8), MASK: np.ones(1, np.int8)}

    replay.feature_fn = get_feature
    for _ in range(20):
        replay.start_episode(observe(0))
        for gray_level in (10, 20, 200):
            replay.add(np.zeros(1, np.float32), 0.0, gray_level == 200, observe(gray_level))
    search = StoredNeighborSearch(groups=1, k=3, rewarded_state="next")
    batch = make_sampler(replay, search).sample()
    assert batch.neighbor_distances is not None
    assert (batch.next_views == 200).all(-1).any(), "some rows end at the last state"
    assert (batch.neighbor_distances == 0).all()


def test_blocks_of_the_ring_are_searched_once_each_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyview.data.neighbors.BLOCK_STEPS", 30)
    replay = make_filled_replay()
    blocks = list(iter_neighbor_rows(replay, horizon=replay.inserted))
    indices = np.concatenate([block.indices for block in blocks])
    assert replay.inserted % 100 > 30, "the ring wraps inside the rows"
    assert len(blocks) == 4 + 1, "one block is cut where the ring wraps"
    assert np.array_equal(indices, np.arange(replay.inserted - 100 + 1 + STACK - 1, replay.inserted - 1))
    assert all(np.shares_memory(block.features, replay.features) for block in blocks if replay.features is not None)
    batch = make_sampler(replay, StoredNeighborSearch(groups=1, k=2)).sample()
    monkeypatch.undo()
    assert are_batches_equal(batch, make_sampler(replay, StoredNeighborSearch(groups=1, k=2)).sample())


@pytest.mark.parametrize(("clusters", "spread"), [(1, 1e-5), (1, 1e-3), (1, 1.0), (8, 3e-3), (8, 1e-2), (8, 1.0)])
def test_selection_in_float32_finds_near_duplicates(clusters: int, spread: float) -> None:
    """A robot at rest gives many, with the large norm of LayerNormed features."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.nn.functional.layer_norm(torch.randn(clusters, 50, generator=generator), (50,))
    points = centers.repeat(3000 // clusters, 1) + spread * torch.randn(1, 3000, 50, generator=generator)
    mask, indices = torch.ones(1, 3000, dtype=torch.bool), torch.arange(3000)
    blocks = (ReferenceSet(points[:, part], mask[:, part], indices[part]) for part in (slice(1000), slice(1000, 3000)))
    actual = search_neighbors(points[:, :64], 3, mask=mask[:, :64], indices=indices[:64], blocks=blocks)
    expected = np.sort(cdist(points[0, :64].double().numpy(), points[0].double().numpy()))[:, 1:4]
    np.testing.assert_allclose(actual[0].numpy(), expected, rtol=1e-4)


def test_too_few_neighbors_repeat_the_farthest_and_none_gives_zero() -> None:
    points, mask = torch.tensor([[[0.0], [1.0], [3.0]]]), torch.tensor([[True, True, False]])
    block = ReferenceSet(points, mask, torch.arange(3))
    actual = search_neighbors(points, 2, mask=mask, indices=torch.arange(3), blocks=[block])
    assert actual.tolist() == [[[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]]
    assert search_neighbors(points, 2, mask=mask, indices=torch.arange(3), blocks=[]).tolist() == [[[0.0] * 2] * 3]


def iter_batches(*, prefetch: bool, capacity: int, pauses: list[int]) -> Iterator[Batch]:
    """Yield a batch after every number of steps in `pauses`, from a ring that wraps."""
    env = wrap(NoiseEnv())
    replay = make_replay_buffer(env, capacity=capacity, frame_stack=STACK, feature_shape=(1, 4))
    env.action_space.seed(0)
    steps = play_steps(env, steps=10**6)
    sampler = make_sampler(replay, StoredNeighborSearch(groups=1, k=3), prefetch=prefetch)
    for pause in [40, *pauses]:
        for _ in range(pause):
            action, reward, terminated, observation, _ = next(steps)
            if action is None:
                replay.start_episode(observation)
            else:
                replay.add(action, reward, terminated, observation)
        yield sampler.sample()
    sampler.close()


@pytest.mark.parametrize("capacity", [30, 200])
def test_prefetching_does_not_change_neighbors(capacity: int) -> None:
    pauses = np.random.default_rng(capacity).choice([0, 1, 1, 2, 3, 8, 40], size=60).tolist()
    prefetched = iter_batches(prefetch=True, capacity=capacity, pauses=pauses)
    synchronous = iter_batches(prefetch=False, capacity=capacity, pauses=pauses)
    assert all(are_batches_equal(first, second) for first, second in zip(prefetched, synchronous, strict=True))


def test_steps_after_the_horizon_are_not_neighbors() -> None:
    """The newest step has no action in the first search, and one in the last."""
    replay = make_filled_replay(steps=60)
    indices, horizon, search = np.arange(10, 30), replay.inserted, StoredNeighborSearch(groups=1, k=3)
    distances = search(replay, indices, indices, horizon=horizon)
    record_steps(wrap(NoiseEnv(), frame_stack=STACK), replay, steps=1)
    assert replay.features is not None
    replay.features[horizon - 1 :] = replay.features[15]  # the nearest possible
    replay.steps["mask"][horizon - 1 :] = True
    replay.steps["acted"][horizon - 1] = True
    assert torch.equal(search(replay, indices, indices, horizon=horizon), distances)
    later_distances = search(replay, indices, indices, horizon=horizon + 1)
    assert not torch.equal(later_distances, distances)


def test_an_observation_that_a_split_stores_again_counts_once() -> None:
    env = wrap(NoiseEnv(max_steps=1000), frame_stack=STACK)
    split_replay, whole_replay = (
        make_replay_buffer(env, capacity=200, frame_stack=STACK, feature_shape=(1, 5)) for _ in range(2)
    )
    for action, reward, terminated, observation, _ in play_steps(wrap(NoiseEnv(max_steps=1000)), steps=60):
        for replay in (split_replay, whole_replay):
            if action is None:
                replay.start_episode(observation)
            else:
                replay.add(action, reward, terminated, observation)
        if whole_replay.inserted % 10 == 0:
            split_replay.split_episode()
    split_features, whole_features = (
        np.concatenate([rows.features[rows.mask[:, 0]] for rows in iter_rows(replay)])
        for replay in (split_replay, whole_replay)
    )
    assert len(whole_replay.steps) > split_replay.inserted > whole_replay.inserted
    assert np.array_equal(split_features, whole_features)


def iter_rows(replay: ReplayBuffer) -> Any:
    return iter_neighbor_rows(replay, horizon=replay.inserted)


def use_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build replay buffers with features and samplers with a search, as a bonus that needs them would."""

    def build_replay_buffer(config: Any, shapes: Any, bonus: Any) -> ReplayBuffer:  # noqa: ARG001
        shape = (len(shapes.views), 6)
        replay = ReplayBuffer(
            shapes.views,
            action_shape=(shapes.actions.size,),
            capacity=config.replay.capacity,
            frame_stack=shapes.frame_stack,
            feature_shape=shape,
        )
        replay.feature_fn = PixelProjection(shape)
        return replay

    def build_sampler(config: Any, replay: ReplayBuffer, bonus: Any) -> Sampler:  # noqa: ARG001
        rows = {"batch_size": config.replay.batch_size, "n_step": 3, "seed": config.seed}
        return Sampler(replay, discount=0.9, neighbor_search=StoredNeighborSearch(groups=1, k=2), **rows)

    monkeypatch.setattr(factory, "build_replay_buffer", build_replay_buffer)
    monkeypatch.setattr(factory, "build_sampler", build_sampler)


def test_shards_search_their_own_steps_and_resume_from_their_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_features(monkeypatch)
    config, shapes = make_config_and_shapes(actors=2)
    shards = [ReplayShard(config, shapes, index=index, count=2, key=KEY) for index in range(2)]
    for index, shard in enumerate(shards):
        shard.open_log(tmp_path, marker=tmp_path)
        assert not any(shard.insert(chunk).rejection for chunk in collect_chunks(config, shapes, actor=index, count=4))
    monkeypatch.setattr(ray_runtime.ray, "get", lambda results, **_: results)
    batch = BatchLoader([LocalShardHandle(shard) for shard in shards], torch.device("cpu"), shard_sizes=[1, 1]).sample()
    assert batch.neighbor_distances is not None
    assert (batch.next_indices % 2).equal(batch.indices % 2)
    for row, index in enumerate(batch.indices.tolist()):
        replay = shards[index % 2].replay
        expected = search_brute_force(replay, index // 2, k=2, combine="marginal", horizon=replay.inserted)
        np.testing.assert_allclose(batch.neighbor_distances[row].numpy(), expected, rtol=1e-4)
    restored, state = ReplayShard(config, shapes, index=1, count=2, key=KEY), shards[1].mark()
    restored.open_log(tmp_path, marker=tmp_path)
    restored.load_state(state)
    assert restored.load(wait_for_segments(shards[1], state)) == ""
    assert compare_trees(restored.sample(), shards[1].sample()) == []
    for shard in (*shards, restored):
        shard.close()


def test_a_search_for_zero_neighbors_is_refused() -> None:
    with pytest.raises(ValueError, match="k: expected at least 1"):
        StoredNeighborSearch(groups=1, k=0)


def test_a_search_without_features_is_refused() -> None:
    replay = make_replay_buffer(wrap(NoiseEnv(), frame_stack=STACK), capacity=100, frame_stack=STACK)
    record_steps(wrap(NoiseEnv(), frame_stack=STACK), replay, steps=40)
    with pytest.raises(ValueError, match="expected a replay buffer with a feature_shape, got one without"):
        make_sampler(replay, StoredNeighborSearch(groups=1, k=3)).sample()
