"""Progress of a run in frames, agent steps, updates, episodes and rollouts."""

from dataclasses import asdict, dataclass

from manyview.mem.reward import BetaUnit
from manyview.utils.json_io import is_count


@dataclass
class Counters:
    """Counts of one run; its checkpoints contain them."""

    frames: int = 0
    """Simulator frames, including repeated actions."""
    steps: int = 0
    """Agent steps."""
    updates: int = 0
    episodes: int = 0
    """Episodes started."""
    rollouts: int = 0
    """Rollouts trained on."""
    skipped_updates: int = 0
    """Updates skipped because a loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    rolled_back_at: int = -1
    """Value of `updates` at the last rollback of the agent; -1 if there was none."""

    def get_state(self) -> dict[str, int]:
        """Return all counts by name."""
        return asdict(self)

    def load_state(self, state: dict[str, int]) -> None:
        """Restore all counts; `ValueError` for one that is missing or no integer of at least its initial value."""
        for name, initial in asdict(Counters()).items():
            value = state.get(name)
            if not is_count(value, min_value=initial):
                raise ValueError(f"invalid counter `{name}`: expected an integer of at least {initial}, got {value!r}")
            setattr(self, name, value)

    def count(self, unit: BetaUnit) -> int:
        """Return the progress in the unit of the β schedule."""
        count: int = getattr(self, {"agent_steps": "steps"}.get(unit, unit))
        return count

    def to_record(self) -> dict[str, int]:
        """Return the counts that every record has."""
        return {"frames": self.frames, "steps": self.steps, "updates": self.updates}
