"""Toy environments: base class, deep sea, hidden goal, identity, cue and told goal.

All views are small gray images of a bar whose position encodes a number.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from manyview.envs.views import Image, MultiViewEnv, Observation, State, StateVector, Vector, View
from manyview.utils.seeding import get_rng_state, restore_rng

IMAGE_SIZE = 20
"""Height and width in pixels; the paper's four convolutions need at least 15."""
MAX_SIZE = 100
"""Largest Deep Sea."""

ActionKind = Literal["discrete", "continuous"]


def draw_bars(count: int, *, upright: bool, size: int = IMAGE_SIZE) -> list[Image]:
    """Draw `count` images of a white bar at different positions.

    The images [size, size, 1] are read-only.
    """
    edges = np.linspace(0, size, count + 1).round().astype(int)
    images = []
    for start, end in pairwise(edges):
        image = np.zeros((size, size, 1), np.uint8)
        image[(slice(None), slice(start, end)) if upright else (slice(start, end), slice(None))] = 255
        image.flags.writeable = False
        images.append(image)
    return images


class ToyEnv(MultiViewEnv):
    """Base class of the toys; the complete state is a dict of integers."""

    terminal = False
    """True if the last step terminates the episode, False if it truncates it."""

    def __init__(
        self,
        names: Sequence[str],
        action_space: spaces.Space[Any],
        *,
        episode_steps: int,
        image_size: int = IMAGE_SIZE,
        state_vectors: Sequence[StateVector] = (),
    ) -> None:
        views = [View(name, image_size, image_size, 1, fill=(0,)) for name in names]
        super().__init__(views, action_space, state_vectors=state_vectors)
        self.episode_steps = episode_steps
        self._state: dict[str, int] = {}
        """State variables by name."""

    @abstractmethod
    def sample_initial_state(self) -> dict[str, int]:
        """Return the initial state of an episode."""

    @abstractmethod
    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        """Update the state and return the reward and the info of the step."""

    @abstractmethod
    def render_views(self) -> dict[str, Image]:
        """Return the image of each view for the current state."""

    def compute_vectors(self) -> dict[str, Vector]:
        """Return the state vectors for the current state by name."""
        return {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._state = {"step": 0, **self.sample_initial_state()}
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reward, info = self.apply_action(action)
        self._state["step"] += 1
        last = self._state["step"] >= self.episode_steps
        return self._observe(), reward, last and self.terminal, last and not self.terminal, info

    def _observe(self) -> Observation:
        images = {name: image.copy() for name, image in self.render_views().items()}
        return self.observe(images, self.compute_vectors())

    def snapshot(self) -> State:
        return {"values": dict(self._state), "rng": get_rng_state(self.np_random)}

    def restore(self, state: State) -> Observation:
        self._state = {name: int(number) for name, number in state["values"].items()}
        self.np_random = restore_rng(state["rng"])
        return self._observe()


class DeepSea(ToyEnv):
    """Deep sea exploration on a grid of `size` x `size` cells.

    Each step goes down one row and one column left or right. The treasure, reward 1, is right of the last cell of the
    diagonal. Every move right costs 0.01 / size, so the immediate reward favors left, and one of 2^size action
    sequences reaches the treasure. The action that moves right is drawn for each cell from `mapping_seed` (None: always
    the second), so that repeating an action does not reach it. For continuous actions the sign decides. The two views
    are complementary: neither shows the full state, and a state that is novel as a pair can be common in each view.
    """

    terminal = True

    def __init__(self, size: int = 10, *, actions: ActionKind = "discrete", mapping_seed: int | None = 0) -> None:
        if not 2 <= size <= MAX_SIZE:
            raise ValueError(f"invalid size: expected 2 to {MAX_SIZE}, got {size}")
        image_size = max(IMAGE_SIZE, size + 1)  # bars of at least one pixel, and one for the ground
        space = spaces.Discrete(2) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(("depth", "column"), space, episode_steps=size, image_size=image_size)
        self.size, self._discrete = size, actions == "discrete"
        draws = None if mapping_seed is None else np.random.default_rng(mapping_seed).integers(2, size=(size, size))
        self._right_actions = np.ones((size, size), int) if draws is None else draws
        # One bar more than rows: the ground, where the episode ends, differs from all rows.
        self._depths = draw_bars(size + 1, upright=False, size=image_size)
        self._columns = draw_bars(size, upright=True, size=image_size)

    def sample_initial_state(self) -> dict[str, int]:
        return {"row": 0, "column": 0}

    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        row, column = self._state["row"], self._state["column"]
        chosen = int(action) if self._discrete else int(action[0] > 0)
        moves_right = chosen == self._right_actions[row, column]
        self._state["row"] = row + 1
        self._state["column"] = min(column + 1, self.size - 1) if moves_right else max(column - 1, 0)
        found_treasure = moves_right and row == self.size - 1 and column == self.size - 1
        return float(found_treasure) - (0.01 / self.size if moves_right else 0.0), {"success": bool(found_treasure)}

    def render_views(self) -> dict[str, Image]:
        return {"depth": self._depths[self._state["row"]], "column": self._columns[self._state["column"]]}


class HiddenGoal(ToyEnv):
    """A goal on a grid of `cells` x `cells`; each view shows one coordinate.

    The first view shows the column, the second the row. An action selects a cell (continuous: a point of the square
    [-1, 1]²) and gives reward 1 if it is the goal. The goal changes at every step. With both views every step can be
    rewarded; with one view the success rate of every policy is at most 1 / `cells`.
    """

    def __init__(self, cells: int = 3, *, actions: ActionKind = "discrete", episode_steps: int = 10) -> None:
        self.cells, self._discrete = cells, actions == "discrete"
        space = spaces.Discrete(cells**2) if self._discrete else spaces.Box(-1.0, 1.0, (2,), np.float32)
        super().__init__(("column", "row"), space, episode_steps=episode_steps)
        self._columns, self._rows = draw_bars(cells, upright=True), draw_bars(cells, upright=False)

    @property
    def max_success_single_view(self) -> float:
        """The best success rate of a policy that sees one view only."""
        return 1 / self.cells

    def sample_initial_state(self) -> dict[str, int]:
        column, row = self.np_random.integers(self.cells, size=2)
        return {"column": int(column), "row": int(row)}

    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        reached = self._to_cell(action) == (self._state["column"], self._state["row"])
        self._state.update(self.sample_initial_state())
        return float(reached), {"success": reached}

    def _to_cell(self, action: Any) -> tuple[int, int]:
        if self._discrete:
            return int(action) % self.cells, int(action) // self.cells
        column, row = np.clip((np.asarray(action) + 1) / 2 * self.cells, 0, self.cells - 1).astype(int).tolist()
        return column, row

    def render_views(self) -> dict[str, Image]:
        return {"column": self._columns[self._state["column"]], "row": self._rows[self._state["row"]]}


class Identity(ToyEnv):
    """Both views show the same one of `targets` targets.

    One view shows it as a vertical bar, the other as a horizontal bar. Discrete: reward 1 for the index of the target.
    Continuous: 1 minus the distance to its position, both in [-1, 1], and at least 0. The target changes at every step,
    so the optimal return is the number of steps.
    """

    def __init__(self, targets: int = 4, *, actions: ActionKind = "discrete", episode_steps: int = 10) -> None:
        space = spaces.Discrete(targets) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(("upright", "lying"), space, episode_steps=episode_steps)
        self._discrete, self._positions = actions == "discrete", np.linspace(-1, 1, targets)
        self._upright, self._lying = draw_bars(targets, upright=True), draw_bars(targets, upright=False)

    def sample_initial_state(self) -> dict[str, int]:
        return {"target": int(self.np_random.integers(len(self._positions)))}

    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        target = self._state["target"]
        distance = float(action != target) if self._discrete else abs(float(action[0]) - float(self._positions[target]))
        self._state.update(self.sample_initial_state())
        return max(0.0, 1.0 - distance), {}

    def render_views(self) -> dict[str, Image]:
        target = self._state["target"]
        return {"upright": self._upright[target], "lying": self._lying[target]}


class Cue(ToyEnv):
    """A cue on the left or right, shown in the first frame only; the last action must name it.

    The frames in between are black. The last step gives reward 1 for the side of the cue (continuous: the sign of the
    action), all others give 0. With a memory the optimal return is 1; a policy without one, whose frame stack does not
    reach back to the first frame, gets 0.5 on average.
    """

    terminal = True

    def __init__(self, *, actions: ActionKind = "discrete", episode_steps: int = 4) -> None:
        space = spaces.Discrete(2) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(("screen",), space, episode_steps=episode_steps)
        self._discrete, self._sides = actions == "discrete", draw_bars(2, upright=True)
        self._black = np.zeros_like(self._sides[0])

    def sample_initial_state(self) -> dict[str, int]:
        return {"side": int(self.np_random.integers(2))}

    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        chosen = int(action) if self._discrete else int(action[0] > 0)
        is_last, correct = self._state["step"] == self.episode_steps - 1, chosen == self._state["side"]
        return float(is_last and correct), {"success": bool(is_last and correct)}

    def render_views(self) -> dict[str, Image]:
        return {"screen": self._black if self._state["step"] else self._sides[self._state["side"]]}


class ToldGoal(ToyEnv):
    """A goal that no view shows: the state vector `goal` tells its position, in its own unit.

    Discrete: reward 1 for the index of the goal, one of `targets`. Continuous: 1 minus the distance to its position,
    both in [-1, 1], and at least 0. The goal changes at every step. The view shows a bar that moves at random. The
    vector `clock` has the steps taken and the steps left. Without the vector `goal` the best mean reward is
    `max_reward_without_state`; with it, 1.
    """

    GOAL_OFFSET, GOAL_SCALE = 300.0, 40.0
    """Unit of the vector `goal`, far from mean 0 and standard deviation 1."""

    def __init__(self, targets: int = 5, *, actions: ActionKind = "discrete", episode_steps: int = 10) -> None:
        space = spaces.Discrete(targets) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        vectors = (StateVector("goal", 1), StateVector("clock", 2))
        super().__init__(("screen",), space, episode_steps=episode_steps, state_vectors=vectors)
        self._discrete, self._positions = actions == "discrete", np.linspace(-1, 1, targets)
        self._bars = draw_bars(targets, upright=True)

    @property
    def max_reward_without_state(self) -> float:
        """The best mean reward of a policy that does not see the goal: that of the middle."""
        if self._discrete:
            return 1 / len(self._positions)
        return float(np.maximum(0.0, 1.0 - np.abs(self._positions)).mean())

    def sample_initial_state(self) -> dict[str, int]:
        goal, bar = self.np_random.integers(len(self._positions), size=2)
        return {"goal": int(goal), "bar": int(bar)}

    def apply_action(self, action: Any) -> tuple[float, dict[str, Any]]:
        goal = self._state["goal"]
        distance = float(action != goal) if self._discrete else abs(float(action[0]) - float(self._positions[goal]))
        self._state.update(self.sample_initial_state())
        return max(0.0, 1.0 - distance), {}

    def render_views(self) -> dict[str, Image]:
        return {"screen": self._bars[self._state["bar"]]}

    def compute_vectors(self) -> dict[str, Vector]:
        goal, step = float(self._positions[self._state["goal"]]), self._state["step"]
        return {
            "goal": np.array([self.GOAL_OFFSET + self.GOAL_SCALE * goal], np.float32),
            "clock": np.array([step, self.episode_steps - step], np.float32),
        }
