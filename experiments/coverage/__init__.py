"""Measure which states a run has visited; see PLAN.md.

The state vectors of a run's replay buffer are the simulator's positions and velocities.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.tables import RESULTS, TableRun, Value, format_mean

STUDY = "coverage"
Array = NDArray[np.float64]
NUM_BINS, NUM_PARTS = 60, 10
NUM_STATES, K = 600, 3
"""States of the k-NN entropy, and its neighbor."""
MIN_DISTANCE = 1e-6
FILM_FRAMES, FILM_STRIDE = 15, 2
"""Images of a film, and agent steps between two."""
STATES_FILE = "states.npz"
NONE = "unrewarded_sac+no_images"
ARMS = {"random actions": ("random", NONE), "no bonus": ("", NONE)} | {
    title: ("", f"{NONE}+{bonus}")
    for title, bonus in {"RE3": "re3", "RND": "rnd", "MEM": "mem", "untrained MEM": "untrained_mem"}.items()
}
"""Variant and method of each arm."""


@dataclass(frozen=True)
class Space:
    """Coordinates of a task's state."""

    axes: tuple[tuple[str, float, float], ...]
    """Name and range of both axes of the grid."""
    select_axes: Callable[[Array], Array]
    """Both coordinates [N, 2] of state vectors [N, D]."""
    spreads: tuple[float, ...]
    """Divisors of all coordinates in the k-NN entropy."""
    unwrap: Callable[[Array], Array] = lambda states: states
    """Coordinates in which equal poses are equal."""


def _select_pole(states: Array) -> Array:
    return np.stack([np.arctan2(states[:, 1], states[:, 0]), states[:, 2]], axis=1)  # 0 is upright


def _select_ball(states: Array) -> Array:
    return states[:, 2:4]


def _select_torso(states: Array) -> Array:
    return np.stack([states[:, 0], _wrap(states[:, 1])], axis=1)


def _replace_pitch(states: Array) -> Array:
    pitch = states[:, 1:2]
    return np.concatenate([states[:, :1], np.cos(pitch), np.sin(pitch), states[:, 2:]], axis=1)


def _wrap(angle: Array) -> Array:
    wrapped: Array = np.mod(angle + np.pi, 2 * np.pi) - np.pi
    return wrapped


SPACES = {
    "dmc/pendulum_swingup": Space(
        (("angle from upright", -np.pi, np.pi), ("angular velocity", -12, 12)), _select_pole, (1, 1, 5)
    ),
    "dmc/ball_in_cup_catch": Space(
        (("ball, sideways", -0.5, 0.5), ("ball, upward", -0.3, 0.6)), _select_ball, (*[0.2] * 4, *[2.0] * 4)
    ),
    "dmc/hopper_stand": Space(
        (("height", -1.0, 0.2), ("pitch", -np.pi, np.pi)),
        _select_torso,
        (0.2, *[1.0] * 6, 1, 1, *[5.0] * 5),
        _replace_pitch,
    ),
}


def count_visits(states: Array, space: Space) -> NDArray[np.int64]:
    """Return the visits [NUM_BINS, NUM_BINS] of the grid's cells; what lies beyond counts in the outermost ones."""
    cells = []
    for coordinate, (_, low, high) in zip(space.select_axes(states).T, space.axes, strict=True):
        cells.append(np.clip(((coordinate - low) / (high - low) * NUM_BINS).astype(np.int64), 0, NUM_BINS - 1))
    visits = np.bincount(cells[0] * NUM_BINS + cells[1], minlength=NUM_BINS**2)
    return visits.reshape(NUM_BINS, NUM_BINS)


def get_map_path(task: str, variant: str, method: str, seed: int) -> Path:
    """Return the file with the visits of each cell of a run and its film, which the figures show."""
    return RESULTS / STUDY / "maps" / f"{task.replace('/', '-')}_{variant or method}_seed{seed}.npz"


def compute_log_distance(states: Array, space: Space) -> float:
    """Return the mean log distance to the third nearest of evenly spaced states, in units of the spreads."""
    rows = np.linspace(0, len(states) - 1, min(NUM_STATES, len(states))).astype(np.int64)
    scaled = torch.from_numpy(space.unwrap(states[rows]) / np.array(space.spreads))
    # By differences: the distance of close states from products of large numbers would be rounded away.
    distances = torch.cdist(scaled, scaled, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.kthvalue(K + 1, dim=1).values  # the first one is the state itself
    return float(nearest.clamp(min=MIN_DISTANCE).log().mean())


def measure_states(states: Array, space: Space, frames: int) -> Iterator[Value]:
    """Yield the share of visited cells and the log distance after each tenth of a run's states."""
    for part in range(1, NUM_PARTS + 1):
        visited, at = states[: len(states) * part // NUM_PARTS], frames * part / NUM_PARTS
        yield at, None, "visited_cells", float((count_visits(visited, space) > 0).mean())
        yield at, None, "log_distance", compute_log_distance(visited, space)


HEAD = ("task", "arm", "seeds", "visited cells, each seed", "mean", "log distance")


def list_rows(runs: Iterable[TableRun]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each task and arm."""
    cells: dict[tuple[str, str, str], list[TableRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        cells.setdefault((run.task, run.variant, run.method), []).append(run)
    for task in SPACES:
        for arm, (variant, method) in ARMS.items():
            if seeds := cells.get((task, variant, method)):
                visited = [100 * run.last("visited_cells") for run in seeds]
                yield (
                    f"`{task}`",
                    arm,
                    str(len(seeds)),
                    ", ".join(f"{share:.1f}%" for share in visited),
                    f"{np.mean(visited):.1f}%",
                    format_mean([run.last("log_distance") for run in seeds], digits=2),
                )
