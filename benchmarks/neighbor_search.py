"""Time the search in stored features.

    python -m benchmarks.neighbor_search              # about a minute of CPU time
    python -m benchmarks.neighbor_search --rows 25000 # a smaller buffer

One thread, batch 256, 3 views of 50 features, k = 3. The search alternates with one update of `sac+mem` (3 views of 24
pixels, batch 256, the networks of the preset `minute`), and the median CPU time of each counts.
"""

import argparse
from collections.abc import Sequence
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyview.agents import SAC, SACConfig
from manyview.data import Batch, ReplayBuffer
from manyview.envs import View
from manyview.mem import MEMRepresentation, MEMRepresentationConfig
from manyview.mem.knn import Combine
from manyview.methods import MEMBonus, MEMBonusConfig
from manyview.methods.bonuses.stored_search import StoredNeighborSearch
from manyview.training.update_benchmark import time_alternating
from manyview.utils.resources import keep_freed_memory

BATCH, VIEWS, FEATURES, K = 256, 3, 50, 3
SIZE, CHANNELS, ACTIONS = 24, 6, 6
EPISODE_STEPS, STATE_DIM = 500, 6


def make_trajectory_features(rows: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Return features [N, V, P] of episodes of a smooth random walk, through one random network per view."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(-(-rows // EPISODE_STEPS), EPISODE_STEPS, STATE_DIM, generator=generator)
    velocity = torch.zeros_like(noise[:, 0])
    state = torch.randn(velocity.shape, generator=generator)
    states = torch.empty_like(noise)
    for step in range(EPISODE_STEPS):
        velocity = 0.95 * velocity + 0.03 * noise[:, step] - 0.01 * state
        state = state + velocity
        states[:, step] = state
    networks = [torch.randn(STATE_DIM, 256, generator=generator) for _ in range(VIEWS)]
    heads = [torch.randn(256, FEATURES, generator=generator) for _ in range(VIEWS)]
    flat = states.flatten(0, 1)[:rows]
    views = [torch.tanh(flat @ network / 2) @ head for network, head in zip(networks, heads, strict=True)]
    return nn.functional.layer_norm(torch.stack(views, dim=1), (FEATURES,)).numpy()


def make_replay(features: NDArray[np.float32]) -> ReplayBuffer:
    """Return a full replay buffer with these features, of frames of one pixel."""
    views = [View(f"camera{number}", 1, 1, 1, fill=(0,)) for number in range(VIEWS)]
    shape = (VIEWS, features.shape[2])
    replay = ReplayBuffer(views, action_shape=(1,), capacity=len(features), frame_stack=1, feature_shape=shape)
    assert replay.features is not None
    replay.features[:] = features
    replay.steps["mask"] = True
    replay.steps["acted"] = np.arange(len(features)) % EPISODE_STEPS < EPISODE_STEPS - 1
    replay.inserted = len(features)
    return replay


class Search:
    """Search of one batch of random steps; every call is the same one."""

    def __init__(self, replay: ReplayBuffer, *, combine: Combine, batch: int = BATCH) -> None:
        self._replay, self._search = replay, StoredNeighborSearch(groups=VIEWS, k=K, combine=combine)
        self._indices = np.random.default_rng(0).integers(replay.capacity // 2, replay.capacity - 1, batch)

    def __call__(self) -> Tensor:
        """Return the distance to the k-th neighbor [B], the mean over groups."""
        distances = self._search(self._replay, self._indices, self._indices, horizon=self._replay.inserted)
        return distances[..., -1].mean(1)


class Update:
    """Update of a small `sac+mem` on one random batch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        shape = (CHANNELS, SIZE, SIZE)
        config = MEMRepresentationConfig(trunk="tiny", latent_dim=32)
        mem = MEMRepresentation([f"camera{number}" for number in range(VIEWS)], shape, config)
        bonus = MEMBonus(mem, MEMBonusConfig())
        self._agent = SAC(mem, ACTIONS, SACConfig(hidden=256), bonus=bonus, beta=lambda _: 0.05)
        pixels = torch.randint(256, (2, BATCH, VIEWS, *shape), dtype=torch.uint8)
        mask, rows = torch.ones(BATCH, VIEWS, dtype=torch.bool), torch.arange(BATCH)
        action, ones = torch.rand(BATCH, ACTIONS) * 2 - 1, torch.ones(BATCH)
        self._batch = Batch(pixels[0], mask, action, ones, ones, pixels[1], mask, rows, rows + 1)

    def __call__(self) -> None:
        self._agent.update(self._batch, 0)


def print_times(sizes: Sequence[int], *, rounds: int) -> None:
    update = Update()
    print("\n| search | rows | ms | times an update |\n|---|---|---|---|")
    for size in sizes:
        replay = make_replay(make_trajectory_features(size))
        sides = {
            "marginal": Search(replay, combine="marginal"),
            "joint": Search(replay, combine="joint"),
            "marginal, of one step": Search(replay, combine="marginal", batch=1),
            f"marginal, of {1 + K} steps": Search(replay, combine="marginal", batch=1 + K),
        }
        update_s, *seconds = time_alternating(update, *sides.values(), rounds=rounds, clock=process_time)
        for label, taken_s in zip(sides, seconds, strict=True):
            print(f"| {label} | {size:,} | {1e3 * taken_s:.1f} | {taken_s / update_s:.2f} |", flush=True)
    print(f"\none update: {1e3 * update_s:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[25_000, 100_000, 500_000], help="sizes of the buffer")
    parser.add_argument("--rounds", type=int, default=5, help="searches of each side")
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    print_times(args.rows, rounds=args.rounds)


if __name__ == "__main__":
    main()
