"""How far a run has come, in every unit that somebody may mean by a step."""

from dataclasses import asdict, dataclass

from manyview.mem.reward import BetaUnit
from manyview.utils.json_io import is_count

OPTIONAL_COUNTS = {"rollouts"}
"""Counts that the first checkpoints did not have."""


@dataclass
class Counters:
    frames: int = 0
    """Of the simulator, action repeat counted."""
    steps: int = 0
    """Of the agent."""
    updates: int = 0
    episodes: int = 0
    """That have begun."""
    rollouts: int = 0
    """That have been learned from."""
    skipped_updates: int = 0
    """Because a loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    rolled_back_at: int = -1
    """Updates made when the agent last went back to a checkpoint."""

    def get_state(self) -> dict[str, int]:
        return asdict(self)

    def load_state(self, state: dict[str, int]) -> None:
        for name, now in asdict(self).items():
            value = state.get(name, now) if name in OPTIONAL_COUNTS else state[name]
            if not is_count(value, min_value=-1):
                raise ValueError(f"{name} must be a whole number, got {value!r}")
            setattr(self, name, value)

    def count(self, unit: BetaUnit) -> int:
        """In the unit that β is counted in."""
        count: int = getattr(self, {"agent_steps": "steps"}.get(unit, unit))
        return count

    def to_record(self) -> dict[str, int]:
        """What every record carries."""
        return {"frames": self.frames, "steps": self.steps, "updates": self.updates}
