"""What a session asks of a training loop, whichever algorithm it is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyview.agents import PPO, NonFiniteError, OffPolicyAgent
from manyview.config.schema import RunConfig
from manyview.data import AsyncWriter, NullLog, ReplayLog
from manyview.envs.vector import attribute_of_each
from manyview.methods import HasDiagnostics
from manyview.train import factory
from manyview.train.compute import autocast, resolve_device, resolve_machine
from manyview.train.counters import Counters
from manyview.train.memory_estimate import estimate_update_bytes
from manyview.train.signals import EnvCallTracker

Metrics = dict[str, Tensor]


class EngineError(RuntimeError):
    """What a run needs besides its own process is gone, or never came. The same command goes on."""


class AdvanceResult(NamedTuple):
    """What came of one call of `advance`."""

    metrics: Metrics | None
    """Of the update, if there was one."""
    episodes: Sequence[dict[str, Any]]
    """Of those that ended: return, steps and frames."""
    warnings: Sequence[str] = ()
    """What people should hear of."""


class LastBatch(NamedTuple):
    """What the last update was made of, for health meters."""

    views: Tensor  # [B, V, C, H, W]
    mask: Tensor  # [B, V]
    rows: Tensor | None  # [B], places in a replay


class Trainer(ABC):
    """An agent, what it acts in and what it learns from."""

    agent: OffPolicyAgent | PPO

    def __init__(self, config: RunConfig, build_env: Callable[[RunConfig], Any]) -> None:
        self.config = config = replace(config, machine=resolve_machine(config.machine))
        self.env_calls = EnvCallTracker(config.task)
        self.env = build_env(config)
        self.shapes = factory.infer_shapes(config, self.env)
        self.device = resolve_device(config.machine)
        self.agent = factory.build_agent(config, self.shapes)
        self.update_bytes = estimate_update_bytes(self.agent, config, self.shapes)
        """Memory beside the data; None where the system does not tell."""
        self.counters = Counters()

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.agent.parameters())

    @property
    def is_done(self) -> bool:
        return self.counters.frames >= self.config.schedule.frames and self.can_checkpoint

    @property
    def beta(self) -> float:
        return self.agent.beta(self.counters.count(self.config.bonus.unit))

    @property
    def can_checkpoint(self) -> bool:
        """Whether a state can be taken of this moment. On-policy only between two rollouts."""
        return True

    @property
    def checkpoint_frames(self) -> int:
        """Of the last such moment."""
        return self.counters.frames

    @property
    @abstractmethod
    def data_bytes(self) -> int:
        """Of replay or rollout."""

    @property
    def num_inserted(self) -> int:
        """Steps that a log may have to hold."""
        return 0

    @property
    @abstractmethod
    def should_log(self) -> bool:
        """Whether the last update is one of those whose figures are kept."""

    @abstractmethod
    def advance(self) -> AdvanceResult:
        """The least that is done between two looks at whether to stop."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """All that the rest of the run depends on, at the last edge, but for what a log has."""

    @abstractmethod
    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        """Go on from a state. `fill_replay` puts back what a log has."""

    def open_log(self, directory: Path, writer: AsyncWriter) -> ReplayLog:  # noqa: ARG002
        """Where steps are kept that a checkpoint refers to."""
        return NullLog()

    @property
    def renderer(self) -> str | None:
        """What draws through OpenGL; None where nothing does."""
        # An environment from outside may have something else of this name.
        return next((name for name in attribute_of_each(self.env, "renderer") if isinstance(name, str)), None)

    @property
    def list_changed_views(self) -> list[str]:
        """Views that show another picture of the state that was loaded than when it was taken."""
        return sorted({name for names in attribute_of_each(self.env, "changed_views") for name in names})

    @abstractmethod
    def get_last_batch(self) -> LastBatch | None: ...

    @torch.no_grad()
    def compute_diagnostics(self) -> dict[str, Any]:
        """Return the diagnostics of the representation on the last batch, or {} if it has none."""
        representation, batch = self.agent.representation, self.get_last_batch()
        if not isinstance(representation, HasDiagnostics) or batch is None:
            return {}
        features = representation.encode(batch.views, batch.mask)
        diagnostics = representation.diagnose(features, beta=self.beta, indices=batch.rows)
        return {**diagnostics.to_metrics(), "health": diagnostics.summarize()}

    @abstractmethod
    def close(self) -> None: ...

    def rollback(self, agent: dict[str, Any]) -> None:
        """To an earlier state of the agent, after updates that were not finite."""
        self.agent.rollback(agent)
        self.counters.rolled_back_at = self.counters.updates
        self.counters.skipped_in_a_row = 0

    def run_update(self, update: Callable[[], Metrics]) -> Metrics | None:
        """Make an update and count it. One whose loss or gradient is not finite is not made, and counted too."""
        try:
            with autocast(self.config.machine):
                metrics = update()
        except NonFiniteError:
            self.counters.skipped_updates += 1
            self.counters.skipped_in_a_row += 1
            return None
        self.counters.updates += 1
        self.counters.skipped_in_a_row = 0
        return metrics
