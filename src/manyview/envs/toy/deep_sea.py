"""Deep Sea as two views: one camera sees the depth, the other the column."""

from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from manyview.envs.toy.toy import SIZE, Toy, bars
from manyview.envs.views import Image

Actions = Literal["discrete", "continuous"]


class DeepSea(Toy):
    """A square sea of `size` x `size` cells; each step sinks by one and drifts a column left or right.

    Treasure of 1 lies in the last column of the ground. Drifting right costs 0.01 / size, so all nearby reward says
    left, and of all action sequences one in 2^size finds the treasure. Which action means right is drawn for each cell
    from `mapping_seed` (None: always the second), so that no habit of acting finds it either. With continuous actions
    the sign decides. The two views are complementary: neither knows the state, and a state that is new as a pair can
    be common in both.
    """

    terminal = True

    def __init__(self, size: int = 10, *, actions: Actions = "discrete", mapping_seed: int | None = 0) -> None:
        if not 2 <= size < SIZE:
            raise ValueError(f"size must be from 2 to {SIZE - 1} (a bar needs a pixel), got {size}")
        space = spaces.Discrete(2) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,), np.float32)
        super().__init__(("depth", "column"), space, episode_steps=size)
        self.size, self._discrete = size, actions == "discrete"
        draws = None if mapping_seed is None else np.random.default_rng(mapping_seed).integers(2, size=(size, size))
        self._right = np.ones((size, size), int) if draws is None else draws
        # One bar more than rows: the ground, where the episode ends, looks like no row.
        self._depths, self._columns = bars(size + 1, upright=False), bars(size, upright=True)

    def begin(self) -> dict[str, int]:
        return {"row": 0, "column": 0}

    def act(self, action: Any) -> tuple[float, dict[str, Any]]:
        row, column = self._numbers["row"], self._numbers["column"]
        chosen = int(action) if self._discrete else int(action[0] > 0)
        right = chosen == self._right[row, column]
        self._numbers["row"] = row + 1
        self._numbers["column"] = min(column + 1, self.size - 1) if right else max(column - 1, 0)
        found = right and row == self.size - 1 and column == self.size - 1
        return float(found) - (0.01 / self.size if right else 0.0), {"success": bool(found)}

    def pictures(self) -> dict[str, Image]:
        return {"depth": self._depths[self._numbers["row"]], "column": self._columns[self._numbers["column"]]}
