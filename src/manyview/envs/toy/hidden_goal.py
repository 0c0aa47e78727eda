"""Two cameras, each of which hides one coordinate of the goal: only an agent that uses both can reach it."""

from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.toy.deep_sea import ActionKind
from manyview.envs.toy.toy import ToyEnv, draw_bars
from manyview.envs.views import Image


class HiddenGoal(ToyEnv):
    """A goal on a grid of `cells` x `cells`; the first camera sees its column, the second its row.

    An action names a cell (continuous: a point of the square [-1, 1]²) and pays 1 if it is the goal. The goal
    changes at every step. With both views every step can be paid; with one alone no policy gets more than 1 in `cells`.
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
