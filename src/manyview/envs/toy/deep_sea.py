"""Deep Sea as two views: one camera sees the depth, the other the column."""

from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from manyview.envs.toy.toy import IMAGE_SIZE, ToyEnv, draw_bars
from manyview.envs.views import Image

ActionKind = Literal["discrete", "continuous"]


class DeepSea(ToyEnv):
    """A square sea of `size` x `size` cells; each step sinks by one and drifts a column left or right.

    Treasure of 1 lies in the last column of the ground. Drifting right costs 0.01 / size, so all nearby reward says
    left, and of all action sequences one in 2^size finds the treasure. Which action means right is drawn for each cell
    from `mapping_seed` (None: always the second), so that no habit of acting finds it either. With continuous actions
    the sign decides. The two views are complementary: neither knows the state, and a state that is new as a pair can
    be common in both.
    """

    terminal = True

    def __init__(self, size: int = 10, *, actions: ActionKind = "discrete", mapping_seed: int | None = 0) -> None:
        if not 2 <= size < IMAGE_SIZE:
            raise ValueError(f"size must be from 2 to {IMAGE_SIZE - 1} (a bar needs a pixel), got {size}")
        space = spaces.Discrete(2) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(("depth", "column"), space, episode_steps=size)
        self.size, self._discrete = size, actions == "discrete"
        draws = None if mapping_seed is None else np.random.default_rng(mapping_seed).integers(2, size=(size, size))
        self._right_actions = np.ones((size, size), int) if draws is None else draws
        # One bar more than rows: the ground, where the episode ends, looks like no row.
        self._depths, self._columns = draw_bars(size + 1, upright=False), draw_bars(size, upright=True)

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
