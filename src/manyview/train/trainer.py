"""What a session asks of a training loop, whichever algorithm it is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from manyview.agents import PPO, NonFiniteError, OffPolicyAgent
from manyview.data import Log, NoLog, Scribe
from manyview.envs.many import attribute_of_each
from manyview.train import build
from manyview.train.clock import Clock
from manyview.train.config import RunConfig
from manyview.train.machine import autocast, device_of, resolved
from manyview.train.rehearsal import update_bytes
from manyview.train.stopping import EnvCalls

Metrics = dict[str, Tensor]


class EngineError(RuntimeError):
    """What a run needs besides its own process is gone, or never came. The same command goes on."""


class Advance(NamedTuple):
    """What came of one call of `advance`."""

    metrics: Metrics | None
    """Of the update, if there was one."""
    episodes: Sequence[dict[str, Any]]
    """Of those that ended: return, steps and frames."""
    news: Sequence[str] = ()
    """What people should hear of."""


class Looked(NamedTuple):
    """What the last update was made of, for health meters."""

    views: Tensor  # [B, V, C, H, W]
    mask: Tensor  # [B, V]
    rows: Tensor | None  # [B], places in a replay


class Trainer(ABC):
    """An agent, what it acts in and what it learns from."""

    agent: OffPolicyAgent | PPO

    def __init__(self, config: RunConfig, build_env: Callable[[RunConfig], Any]) -> None:
        self.config = config = replace(config, machine=resolved(config.machine))
        self.env_calls = EnvCalls(config.task)
        self.env = build_env(config)
        self.shapes = build.shapes_of(config, self.env)
        self.device = device_of(config.machine)
        self.agent = build.agent(config, self.shapes)
        self.update_bytes = update_bytes(self.agent, config, self.shapes)
        """Memory beside the data; None where the system does not tell."""
        self.clock = Clock()

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.agent.parameters())

    @property
    def done(self) -> bool:
        return self.clock.frames >= self.config.schedule.frames and self.at_edge

    @property
    def beta(self) -> float:
        return self.agent.beta(self.clock.elapsed(self.config.bonus.unit))

    @property
    def at_edge(self) -> bool:
        """Whether a state can be taken of this moment. On-policy only between two rollouts."""
        return True

    @property
    def edge_frames(self) -> int:
        """Of the last such moment."""
        return self.clock.frames

    @property
    @abstractmethod
    def data_bytes(self) -> int:
        """Of replay or rollout."""

    @property
    def inserted(self) -> int:
        """Steps that a log may have to hold."""
        return 0

    @property
    @abstractmethod
    def record_is_due(self) -> bool:
        """Whether the last update is one of those whose figures are kept."""

    @abstractmethod
    def advance(self) -> Advance:
        """The least that is done between two looks at whether to stop."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All that the rest of the run depends on, at the last edge, but for what a log has."""

    @abstractmethod
    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        """Go on from a state. `fill_replay` puts back what a log has."""

    def log(self, folder: Path, scribe: Scribe) -> Log:  # noqa: ARG002
        """Where steps are kept that a checkpoint refers to."""
        return NoLog()

    @property
    def renderer(self) -> str | None:
        """What draws through OpenGL; None where nothing does."""
        # An environment from outside may have something else of this name.
        return next((name for name in attribute_of_each(self.env, "renderer") if isinstance(name, str)), None)

    @property
    def changed_views(self) -> list[str]:
        """Views that show another picture of the state that was loaded than when it was taken."""
        return sorted({name for names in attribute_of_each(self.env, "changed_views") for name in names})

    @abstractmethod
    def looked_at(self) -> Looked | None: ...

    @abstractmethod
    def close(self) -> None: ...

    def go_back(self, agent: dict[str, Any]) -> None:
        """To an earlier state of the agent, after updates that were not finite."""
        self.agent.go_back(agent)
        self.clock.went_back_at = self.clock.updates
        self.clock.skipped_in_a_row = 0

    def counted(self, update: Callable[[], Metrics]) -> Metrics | None:
        """Make an update and count it. One whose loss or gradient is not finite is not made, and counted too."""
        try:
            with autocast(self.config.machine):
                metrics = update()
        except NonFiniteError:
            self.clock.skipped_updates += 1
            self.clock.skipped_in_a_row += 1
            return None
        self.clock.updates += 1
        self.clock.skipped_in_a_row = 0
        return metrics
