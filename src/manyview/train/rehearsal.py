"""What an update takes in memory, by making one of a copy: activations are most of it, and no formula knows them."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch

from manyview.agents import PPO, OffPolicyAgent
from manyview.data import Batch, Minibatch
from manyview.mem.ranks import on_its_own
from manyview.train.build import Shapes
from manyview.train.config import RunConfig
from manyview.train.machine import autocast, device_of
from manyview.train.memory import give_back

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
CLEAR_PEAK = "5"  # proc(5)
HEAP = 1.22
"""What a run takes of the heap against what its second update had taken: measured 1.1 to 1.3, by size and threads."""


def update_bytes(agent: OffPolicyAgent | PPO, config: RunConfig, shapes: Shapes) -> int | None:
    """Memory of this process that updates need beside the replay or the frames, parameters and moments included.

    None where the system does not tell (it does on Linux). On an accelerator most of it lies there, and is not counted.
    """
    if not forget_peak():
        return None
    before = resident_bytes("VmRSS")
    rehearsing = deepcopy(agent)
    update = _made_up_update(rehearsing, config, shapes)
    with autocast(config.machine), on_its_own():
        for _ in range(2):  # moments appear with the first
            update()
    needed = max(0, int(HEAP * (resident_bytes("VmHWM") - before)))
    if isinstance(rehearsing, PPO):
        needed += kept_bytes(rehearsing, config, shapes)
    del update, rehearsing
    give_back()
    return needed


def resident_bytes(field: str) -> int:
    """`VmRSS`, what the process holds now, or `VmHWM`, the most it has held."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> bool:
    """Begin a new `VmHWM`; False where that cannot be done."""
    try:
        CLEAR.write_text(CLEAR_PEAK)
    except OSError:
        return False
    return True


def _made_up_update(agent: OffPolicyAgent | PPO, config: RunConfig, shapes: Shapes) -> Callable[[], object]:
    if isinstance(agent, PPO):
        minibatch = _made_up_minibatch(config, shapes)
        with torch.no_grad():
            later = agent.representation.encode(minibatch.views, minibatch.mask)
        return lambda: agent.update(minibatch._replace(later=later))
    batch = _made_up_batch(config, shapes)
    return lambda: agent.update(batch, 0)


@torch.no_grad()
def kept_bytes(agent: PPO, config: RunConfig, shapes: Shapes) -> int:
    """What else a rollout keeps: features of all its steps, twice while they are put together, and the edge's state.

    It lies on the agent's device: 0 of this process if that is an accelerator.
    """
    if device_of(config.machine).type != "cpu":
        return 0
    state = agent.state()
    moments = [moment for each in state["optimizers"].values() for kept in each.values() for moment in kept.values()]
    edge: int = sum(tensor.nbytes for tensor in (*state["tensors"].values(), *moments))
    if agent.intrinsic is None:
        return edge
    one = _made_up_minibatch(config, shapes)
    features = agent.intrinsic.encode(one.views[:1], one.mask[:1])
    rows = (config.rollout.steps + 1) * config.rollout.envs
    return int(edge + 2 * rows * sum(part.nbytes for part in features))


def _made_up_minibatch(config: RunConfig, shapes: Shapes) -> Minibatch:
    rows, device = config.ppo.batch_size, device_of(config.machine)
    pictures = torch.randint(256, (2, rows, len(shapes.views), *shapes.image), dtype=torch.uint8, device=device)
    mask, one = torch.ones(rows, len(shapes.views), dtype=torch.bool, device=device), torch.rand(rows, device=device)
    return Minibatch(
        views=pictures[0],
        mask=mask,
        action=torch.zeros(rows, *shapes.actions.shape, dtype=shapes.actions.dtype, device=device),
        log_prob=-one,
        value=one,
        advantage=one,
        returns=one,
        later=None,
        next_views=pictures[1],
        next_mask=mask,
        follows=mask[:, 0],
    )


def _made_up_batch(config: RunConfig, shapes: Shapes) -> Batch:
    rows, views = config.replay.batch_size, len(shapes.views)
    pictures = torch.randint(256, (2, rows, views, *shapes.image), dtype=torch.uint8)
    mask, ones = torch.ones(rows, views, dtype=torch.bool), torch.ones(rows)
    batch = Batch(
        views=pictures[0],
        mask=mask,
        action=torch.zeros(rows, shapes.actions.count),
        reward_ext=ones,
        discount=ones,
        next_views=pictures[1],
        next_mask=mask,
        rows=torch.arange(rows),
    )
    return batch.to(device_of(config.machine))
