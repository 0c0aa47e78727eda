"""Steps that actors have delivered and the learner has not come to yet."""

from collections import deque
from typing import Any

from manyview.utils.json_io import is_count


class PendingSteps:
    """Steps are taken one by one, with the frames they took, so that a learner goes on as if it had played them."""

    def __init__(self) -> None:
        self._chunks: deque[list[int]] = deque()  # steps, frames

    @property
    def steps(self) -> int:
        return sum(steps for steps, _ in self._chunks)

    @property
    def frames(self) -> int:
        return sum(frames for _, frames in self._chunks)

    def add(self, steps: int, frames: int) -> None:
        if steps:
            self._chunks.append([steps, frames])

    def pop(self) -> int:
        """One step; its frames. Those of a chunk are spread over its steps."""
        chunk = self._chunks[0]
        frames = chunk[1] // chunk[0]
        chunk[0], chunk[1] = chunk[0] - 1, chunk[1] - frames
        if not chunk[0]:
            self._chunks.popleft()
        return frames

    def get_state(self) -> dict[str, Any]:
        return {"chunks": [list(chunk) for chunk in self._chunks]}

    def load_state(self, state: dict[str, Any]) -> None:
        chunks = [[*chunk] for chunk in state["chunks"]]
        if not all(len(chunk) == 2 and is_count(chunk[0], min_value=1) and is_count(chunk[1]) for chunk in chunks):
            raise ValueError(f"a backlog is a list of steps and frames, got {chunks!r}")
        self._chunks = deque(chunks)
