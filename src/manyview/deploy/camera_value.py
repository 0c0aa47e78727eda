"""Value of each camera to a trained policy.

The policy plays the same episodes with every subset of its cameras. The Shapley value of a camera is the return that it
adds, averaged over all orders in which the cameras could be added; the values sum to the return with all cameras minus
that of random actions, which stand for no camera.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manyview.envs import Fault
from manyview.envs.wrappers.faults import FaultKind
from manyview.report.policy_rollout import RunPlayer
from manyview.training import RunConfig, factory
from manyview.training.factory import Shapes

MAX_ALL_SUBSETS = 4
"""Cameras up to which all subsets are played; with more, each camera alone and each camera missing."""
FAULT_KINDS: tuple[FaultKind, ...] = ("black", "frozen", "noise", "late")
"""Faults of a camera whose images still arrive; a camera that is gone is a subset."""
TIMED_CALLS = 50

Cameras = tuple[str, ...]
Returns = NDArray[np.float64]
"""Returns [episodes]; equal indices start from equal states."""


@dataclass(frozen=True, kw_only=True)
class CameraReport:
    """Returns of a policy by the cameras that it sees."""

    task: str
    method: str
    frames: int
    """Simulator frames of training."""
    cameras: Cameras
    returns: Mapping[Cameras, Returns]
    """Returns with each subset of the cameras; without any camera, those of random actions."""
    fault_returns: Mapping[tuple[str, FaultKind], Returns]
    """Returns with one faulty camera."""
    act_ms: float
    """Median time of an action with all cameras."""
    act_ms_without: Mapping[str, float]
    """The same for a policy that is built without a camera."""

    @property
    def shapley_values(self) -> dict[str, Returns] | None:
        """Shapley value of each camera in each episode; None if not all subsets were played."""
        return compute_shapley_values(self.returns, self.cameras) if len(self.cameras) <= MAX_ALL_SUBSETS else None

    def get_losses(self, camera: str) -> Returns:
        """Return what each episode loses without the camera."""
        return self.returns[self.cameras] - self.returns[tuple(c for c in self.cameras if c != camera)]


def measure_cameras(
    player: RunPlayer, *, episodes: int, with_faults: bool = True, log: Callable[[str], None] = lambda _: None
) -> CameraReport:
    """Play `episodes` with each subset of the cameras and, `with_faults`, with each fault of each camera.

    `log` gets a line before each of them.
    """
    cameras, returns, fault_returns = player.cameras, dict[Cameras, Returns](), dict[tuple[str, FaultKind], Returns]()
    for subset in list_subsets(cameras):
        log(f"{', '.join(subset) or 'no camera'}: {episodes} episodes")
        returns[subset] = np.array(player.play(episodes=episodes, cameras=subset).evaluation.returns)
    faults = [(camera, kind) for camera in cameras for kind in FAULT_KINDS] if with_faults else []
    for camera, kind in faults:
        log(f"{camera} {kind}: {episodes} episodes")
        fault = Fault(view=camera, kind=kind, lasts="episode", at_step=0)
        fault_returns[camera, kind] = np.array(player.play(episodes=episodes, faults=[fault]).evaluation.returns)
    act_ms, act_ms_without = time_actions(player.config, player.agent, player.shapes)
    return CameraReport(
        task=player.config.task,
        method=player.config.method,
        frames=player.counters.frames,
        cameras=cameras,
        returns=returns,
        fault_returns=fault_returns,
        act_ms=act_ms,
        act_ms_without=act_ms_without,
    )


def list_subsets(cameras: Sequence[str]) -> list[Cameras]:
    """Return the subsets to play: all, or with many cameras none, single ones, all but one and all."""
    count = len(cameras)
    sizes = range(count + 1) if count <= MAX_ALL_SUBSETS else (0, 1, count - 1, count)
    return [subset for size in sizes for subset in combinations(cameras, size)]


def compute_shapley_values(returns: Mapping[Cameras, Returns], cameras: Sequence[str]) -> dict[str, Returns]:
    """Return the Shapley value of each camera in each episode.

    `returns` has all subsets, each in the order of `cameras`.
    """
    count, values = len(cameras), {}
    for camera in cameras:
        others = [other for other in cameras if other != camera]
        gains = [
            (returns[tuple(c for c in cameras if c == camera or c in subset)] - returns[subset])
            / (count * comb(count - 1, size))
            for size in range(count)
            for subset in combinations(others, size)
        ]
        values[camera] = np.sum(gains, axis=0)
    return values


def time_actions(config: RunConfig, agent: Any, shapes: Shapes) -> tuple[float, dict[str, float]]:
    """Return the median time in milliseconds of an action, and by camera that of a policy built without it.

    The policies take turns, so that a busy machine slows all of them. Without figures by camera for a single one, or if
    a setting needs each.
    """
    act = [_make_act(agent, shapes)]
    without = _list_smaller_shapes(config, shapes)
    act += [_make_act(factory.build_agent(config, smaller), smaller) for smaller in without.values()]
    times_s: list[list[float]] = [[] for _ in act]
    for _ in range(TIMED_CALLS):
        for choose_action, times in zip(act, times_s, strict=True):
            start_s = perf_counter()
            choose_action()
            times.append(perf_counter() - start_s)
    first, *rest = (1_000 * median(times) for times in times_s)
    return first, dict(zip(without, rest, strict=True))


def _list_smaller_shapes(config: RunConfig, shapes: Shapes) -> dict[str, Shapes]:
    """Return the shapes without each camera; none for one camera, or if a setting needs each."""
    cameras = [view.name for view in shapes.cameras if view.derived_from is None]
    if len(cameras) < 2 or shapes.derived_views.augmentations or getattr(config.bonus, "views", None) is not None:
        return {}
    return {
        camera: replace(
            shapes, cameras=tuple(view for view in shapes.cameras if camera not in (view.name, view.derived_from))
        )
        for camera in cameras
    }


def _make_act(agent: Any, shapes: Shapes) -> Callable[[], None]:
    """Return a function that chooses an action for one black observation."""
    device = next(agent.parameters()).device
    views = torch.zeros(1, len(shapes.views), *shapes.image_shape, dtype=torch.uint8, device=device)
    mask = torch.ones(1, len(shapes.views), dtype=torch.bool, device=device)
    vectors = [torch.zeros(1, shapes.vector_size, device=device)] if shapes.vector_size else []

    @torch.no_grad()
    def act() -> None:
        agent.act(views, mask, *vectors, step=0, explore=False).cpu()  # waits for the device

    return act
