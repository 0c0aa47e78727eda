"""Estimate peak memory of an update by running one on dummy data.

Activations dominate it, and no formula predicts them.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyview.agents import OffPolicyAgent, OnPolicyAgent
from manyview.config.schema import RunConfig
from manyview.data import Batch, Minibatch, ReplayBuffer
from manyview.data.neighbors import BLOCK_STEPS
from manyview.envs import View
from manyview.training.compute import autocast, resolve_device
from manyview.training.factory import Shapes
from manyview.utils.distributed import no_sync
from manyview.utils.resources import trim_heap

PROC_STATUS, PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5)
HEAP_OVERHEAD = 1.22
"""Heap of a long run over that of its second update: measured 1.1 to 1.3, by size and threads."""


def estimate_update_bytes(agent: OffPolicyAgent | OnPolicyAgent, config: RunConfig, shapes: Shapes) -> int | None:
    """Return the bytes of process memory that updates need, parameters and moments included.

    The replay buffer or the rollout's frames are not included. None where the system does not report it (Linux does).
    On an accelerator most of the memory is there, and is not counted.
    """
    if not reset_peak_memory():
        return None
    search = _make_dummy_search(agent, config, shapes)
    before = read_resident_bytes("VmRSS")
    agent_copy = deepcopy(agent)
    update = _make_dummy_update(agent_copy, config, shapes, search)
    with autocast(config.compute), no_sync():
        for _ in range(2):  # the first update allocates the moments
            update()
    needed_bytes = max(0, int(HEAP_OVERHEAD * (read_resident_bytes("VmHWM") - before)))
    if isinstance(agent_copy, OnPolicyAgent):
        needed_bytes += estimate_rollout_state_bytes(agent_copy, config, shapes)
    del update, agent_copy, search
    trim_heap()
    return needed_bytes


def read_resident_bytes(field: str) -> int:
    """Return resident memory of this process: `VmRSS` is the current value, `VmHWM` the peak."""
    line = next(line for line in PROC_STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def reset_peak_memory() -> bool:
    """Reset `VmHWM` to the current value; return False if the system cannot."""
    try:
        PROC_CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _make_dummy_update(
    agent: OffPolicyAgent | OnPolicyAgent, config: RunConfig, shapes: Shapes, search: Callable[[], Tensor] | None
) -> Callable[[], object]:
    if isinstance(agent, OnPolicyAgent):
        minibatch = _make_dummy_minibatch(config, shapes)
        with torch.no_grad():
            next_features = agent.representation.encode(minibatch.views, minibatch.mask)
        return lambda: agent.update(minibatch._replace(next_features=next_features))
    batch = _make_dummy_batch(config, shapes)
    if search is None:
        return lambda: agent.update(batch, 0)
    return lambda: agent.update(batch._replace(neighbor_distances=search().to(batch.action.device)), 0)


def _make_dummy_search(
    agent: OffPolicyAgent | OnPolicyAgent, config: RunConfig, shapes: Shapes
) -> Callable[[], Tensor] | None:
    """Return a search of two blocks of stored features; None if the agent searches none."""
    if not isinstance(agent, OffPolicyAgent) or agent.neighbor_search is None:
        return None
    rows = 2 * BLOCK_STEPS
    return make_search(agent, make_feature_replay(agent, shapes, rows=rows), batch_size=config.replay.batch_size)


def make_feature_replay(agent: OffPolicyAgent, shapes: Shapes, *, rows: int) -> ReplayBuffer:
    """Return a full replay buffer of `rows` single pixels with random features, as the agent's bonus stores them."""
    bonus: Any = agent.bonus
    views = [View(view.name, 1, 1, 1, fill=(0,)) for view in shapes.views]
    replay = ReplayBuffer(views, action_shape=(1,), capacity=rows, frame_stack=1, feature_shape=bonus.feature_shape)
    np.random.default_rng(0).standard_normal(dtype=np.float32, out=replay.features)
    replay.steps["mask"] = replay.steps["acted"] = True
    replay.inserted = rows
    return replay


def make_search(agent: OffPolicyAgent, replay: ReplayBuffer, *, batch_size: int) -> Callable[[], Tensor]:
    """Return a search of a batch of random steps of a full replay buffer, as the sampler runs it."""
    search: Any = agent.neighbor_search
    horizon = replay.inserted
    indices = np.random.default_rng(0).integers(horizon // 2, horizon - 1, batch_size)
    return lambda: search(replay, indices, indices, horizon=horizon)


@torch.no_grad()
def estimate_rollout_state_bytes(agent: OnPolicyAgent, config: RunConfig, shapes: Shapes) -> int:
    """Return the bytes of a rollout's features and of the state for the next checkpoint.

    Features of all steps count twice, since they exist twice while they are concatenated; those of the bonus follow
    the representation's. The memory is on the agent's device: 0 if that is an accelerator.
    """
    if resolve_device(config.compute).type != "cpu":
        return 0
    state = agent.get_state()
    moments = [
        moment
        for optimizer_state in state["optimizers"].values()
        for parameter_state in optimizer_state.values()
        for moment in parameter_state.values()
    ]
    state_bytes: int = sum(tensor.nbytes for tensor in (*state["tensors"].values(), *moments))
    minibatch = _make_dummy_minibatch(config, shapes)

    def count_bytes(encoder: Any) -> int:
        return sum(part.nbytes for part in encoder.encode(minibatch.views[:1], minibatch.mask[:1]))

    stored_bytes = count_bytes(agent.representation) if agent.stores_features else 0
    uses_own = getattr(agent.bonus, "feature_source", None) is None and hasattr(agent.bonus, "encode")
    own_bytes = count_bytes(agent.bonus) if uses_own else 0
    rows = (config.rollout.steps + 1) * config.rollout.envs
    return int(state_bytes + rows * max(2 * stored_bytes, stored_bytes + 2 * own_bytes))


def _make_dummy_minibatch(config: RunConfig, shapes: Shapes) -> Minibatch:
    rows, device = config.agent.batch_size, resolve_device(config.compute)
    images = torch.randint(256, (2, rows, len(shapes.views), *shapes.image_shape), dtype=torch.uint8, device=device)
    mask, random_values = (
        torch.ones(rows, len(shapes.views), dtype=torch.bool, device=device),
        torch.rand(rows, device=device),
    )
    return Minibatch(
        views=images[0],
        mask=mask,
        action=torch.zeros(rows, *shapes.actions.shape, dtype=shapes.actions.dtype, device=device),
        log_prob=-random_values,
        value=random_values,
        advantage=random_values,
        returns=random_values,
        next_features=None,
        next_views=images[1],
        next_mask=mask,
        has_next=mask[:, 0],
        vectors=_make_dummy_vectors(rows, shapes, device),
    )


def _make_dummy_batch(config: RunConfig, shapes: Shapes) -> Batch:
    rows, views = config.replay.batch_size, len(shapes.views)
    images = torch.randint(256, (2, rows, views, *shapes.image_shape), dtype=torch.uint8)
    mask, ones = torch.ones(rows, views, dtype=torch.bool), torch.ones(rows)
    batch = Batch(
        views=images[0],
        mask=mask,
        action=torch.zeros(rows, shapes.actions.size),
        reward_ext=ones,
        discount=ones,
        next_views=images[1],
        next_mask=mask,
        indices=torch.arange(rows),
        next_indices=torch.arange(rows),
        positions=_make_dummy_positions(rows, config.sequence_length),
        vectors=_make_dummy_vectors(rows, shapes),
        next_vectors=_make_dummy_vectors(rows, shapes),
    )
    return batch.to(resolve_device(config.compute))


def _make_dummy_positions(rows: int, sequence_length: int | None) -> Tensor | None:
    """Return the places of rows in sequences of full length; None for independent transitions."""
    if sequence_length is None:
        return None
    position = torch.arange(rows) % (sequence_length - 1)
    return torch.stack([position, position + 1], 1)


def _make_dummy_vectors(rows: int, shapes: Shapes, device: torch.device | None = None) -> Tensor | None:
    return torch.zeros(rows, shapes.vector_size, device=device) if shapes.vector_size else None
