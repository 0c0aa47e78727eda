"""How far a run has come, in every unit that somebody may mean by a step."""

from dataclasses import asdict, dataclass


@dataclass
class Clock:
    frames: int = 0
    """Of the simulator, action repeat counted."""
    steps: int = 0
    """Of the agent."""
    updates: int = 0
    episodes: int = 0
    """That have begun."""
    skipped_updates: int = 0
    """Because a loss or gradient was not finite."""
    skipped_in_a_row: int = 0

    def state(self) -> dict[str, int]:
        return asdict(self)

    def times(self) -> dict[str, int]:
        """What every record carries."""
        return {"frames": self.frames, "steps": self.steps, "updates": self.updates}
