"""What an update takes in memory, by making one of a copy: activations are most of it, and no formula knows them."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch

from manyview.agents import PPO, OffPolicyAgent
from manyview.config.schema import RunConfig
from manyview.data import Batch, Minibatch
from manyview.train.compute import autocast, resolve_device
from manyview.train.factory import Shapes
from manyview.utils.distributed import no_sync
from manyview.utils.resources import trim_heap

PROC_STATUS, PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5)
HEAP_OVERHEAD = 1.22
"""What a run takes of the heap against what its second update had taken: measured 1.1 to 1.3, by size and threads."""


def estimate_update_bytes(agent: OffPolicyAgent | PPO, config: RunConfig, shapes: Shapes) -> int | None:
    """Memory of this process that updates need beside the replay or the frames, parameters and moments included.

    None where the system does not tell (it does on Linux). On an accelerator most of it lies there, and is not counted.
    """
    if not reset_peak_memory():
        return None
    before = read_resident_bytes("VmRSS")
    agent_copy = deepcopy(agent)
    update = _make_dummy_update(agent_copy, config, shapes)
    with autocast(config.machine), no_sync():
        for _ in range(2):  # moments appear with the first
            update()
    needed = max(0, int(HEAP_OVERHEAD * (read_resident_bytes("VmHWM") - before)))
    if isinstance(agent_copy, PPO):
        needed += estimate_rollout_state_bytes(agent_copy, config, shapes)
    del update, agent_copy
    trim_heap()
    return needed


def read_resident_bytes(field: str) -> int:
    """`VmRSS`, what the process holds now, or `VmHWM`, the most it has held."""
    line = next(line for line in PROC_STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def reset_peak_memory() -> bool:
    """Begin a new `VmHWM`; False where that cannot be done."""
    try:
        PROC_CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _make_dummy_update(agent: OffPolicyAgent | PPO, config: RunConfig, shapes: Shapes) -> Callable[[], object]:
    if isinstance(agent, PPO):
        minibatch = _make_dummy_minibatch(config, shapes)
        with torch.no_grad():
            later = agent.representation.encode(minibatch.views, minibatch.mask)
        return lambda: agent.update(minibatch._replace(next_features=later))
    batch = _make_dummy_batch(config, shapes)
    return lambda: agent.update(batch, 0)


@torch.no_grad()
def estimate_rollout_state_bytes(agent: PPO, config: RunConfig, shapes: Shapes) -> int:
    """What else a rollout keeps: features of all its steps, twice while they are put together, and the edge's state.

    It lies on the agent's device: 0 of this process if that is an accelerator.
    """
    if resolve_device(config.machine).type != "cpu":
        return 0
    state = agent.get_state()
    moments = [
        moment
        for optimizer_state in state["optimizers"].values()
        for parameter_state in optimizer_state.values()
        for moment in parameter_state.values()
    ]
    state_bytes: int = sum(tensor.nbytes for tensor in (*state["tensors"].values(), *moments))
    if agent.bonus is None:
        return state_bytes
    minibatch = _make_dummy_minibatch(config, shapes)
    features = agent.bonus.encode(minibatch.views[:1], minibatch.mask[:1])
    rows = (config.rollout.steps + 1) * config.rollout.envs
    return int(state_bytes + 2 * rows * sum(part.nbytes for part in features))


def _make_dummy_minibatch(config: RunConfig, shapes: Shapes) -> Minibatch:
    rows, device = config.ppo.batch_size, resolve_device(config.machine)
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
    )
    return batch.to(resolve_device(config.machine))
