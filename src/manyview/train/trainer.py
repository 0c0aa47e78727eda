"""Base class of the training algorithms, as `Runner` drives them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyview.agents import NonFiniteError, OffPolicyAgent, OnPolicyAgent
from manyview.config.schema import RunConfig
from manyview.data import AsyncWriter, NullLog, ReplayLog
from manyview.envs.vector import get_attr_values
from manyview.methods import HasDiagnostics
from manyview.train import factory
from manyview.train.compute import autocast, resolve_compute, resolve_device
from manyview.train.counters import Counters
from manyview.train.memory_estimate import estimate_update_bytes
from manyview.train.signals import EnvCallTracker

Metrics = dict[str, Tensor]


class EngineError(RuntimeError):
    """A process or service that the run needs is missing or failed; the same command resumes."""


class AdvanceResult(NamedTuple):
    """Result of one call of `Trainer.advance`."""

    metrics: Metrics | None
    """Metrics of the update; None without one."""
    episodes: Sequence[dict[str, Any]]
    """Return, steps and frames of each episode that ended."""
    warnings: Sequence[str] = ()
    """Texts for the run's warning records."""


class LastBatch(NamedTuple):
    """Batch of the last update, for diagnostics."""

    views: Tensor  # [B, V, C, H, W]
    mask: Tensor  # [B, V]
    action: Tensor  # [B] or [B, A]
    rows: Tensor | None  # [B], indices in the replay buffer; None on-policy


class Trainer(ABC):
    """An agent with its environments and its replay or rollout buffer.

    Args:
        config: Settings of the run.
        build_env: Makes the environment or vector environment.

    """

    agent: OffPolicyAgent | OnPolicyAgent

    def __init__(self, config: RunConfig, build_env: Callable[[RunConfig], Any]) -> None:
        self.config = config = replace(config, compute=resolve_compute(config.compute))
        self.env_calls = EnvCallTracker(config.task)
        self.env = build_env(config)
        self.shapes = factory.infer_shapes(config, self.env)
        self.device = resolve_device(config.compute)
        self.agent = factory.build_agent(config, self.shapes)
        self.update_bytes = estimate_update_bytes(self.agent, config, self.shapes)
        """Memory in bytes beside the buffer; None where the system does not report it."""
        self.counters = Counters()

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.agent.parameters())

    @property
    def is_done(self) -> bool:
        return self.counters.frames >= self.config.schedule.frames and self.can_checkpoint

    @property
    def beta(self) -> float:
        return self.agent.beta(self.counters.count(self.config.beta_unit))

    @property
    def can_checkpoint(self) -> bool:
        """True if the current state can be saved; on-policy only between two rollouts."""
        return True

    @property
    def checkpoint_frames(self) -> int:
        """Simulator frames of the state that `get_state` returns."""
        return self.counters.frames

    @property
    @abstractmethod
    def data_bytes(self) -> int:
        """Bytes of the replay or rollout buffer."""

    @property
    def num_inserted(self) -> int:
        """Number of steps added to the replay buffer, for the segment log."""
        return 0

    @property
    @abstractmethod
    def should_log(self) -> bool:
        """True if the metrics of the last update are to be logged."""

    @abstractmethod
    def advance(self) -> AdvanceResult:
        """Run one unit of work between two stop checks."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return the state at the last moment with `can_checkpoint`, without what the segment log holds."""

    @abstractmethod
    def load_state(self, state: dict[str, Any], fill_replay: Callable[[], None]) -> None:
        """Restore a state; `fill_replay` loads what the segment log holds."""

    def open_log(self, directory: Path, writer: AsyncWriter) -> ReplayLog:  # noqa: ARG002
        """Open the segment log of the steps that checkpoints refer to; on-policy there is none."""
        return NullLog()

    @property
    def renderer(self) -> str | None:
        """Name of the OpenGL renderer; None if the environments use none."""
        # A third-party environment may have another attribute of this name.
        return next((name for name in get_attr_values(self.env, "renderer") if isinstance(name, str)), None)

    @property
    def changed_views(self) -> list[str]:
        """Views whose image of the restored state differs from the image at the snapshot."""
        return sorted({name for names in get_attr_values(self.env, "changed_views") for name in names})

    @abstractmethod
    def get_last_batch(self) -> LastBatch | None:
        """Return the batch of the last update; None before the first."""

    @torch.no_grad()
    def compute_diagnostics(self) -> dict[str, Any]:
        """Return the meters of the agent and the diagnostics of its bonus or representation, on the last batch."""
        agent, batch = self.agent, self.get_last_batch()
        if batch is None:
            return {}
        meters = agent.compute_meters(batch.views, batch.mask, batch.action, batch.rows)
        values: dict[str, Any] = {name: meter.item() for name, meter in meters.items()}
        bonus: Any = agent.bonus
        part: Any = bonus if isinstance(bonus, HasDiagnostics) else agent.representation
        if not isinstance(part, HasDiagnostics):
            return values
        is_policy_input = part is agent.representation or bonus.shares_encoder
        views = agent.prepare_views(batch.views) if is_policy_input else batch.views
        diagnostics = part.diagnose(part.encode(views, batch.mask), beta=self.beta, indices=batch.rows)
        return {**values, **diagnostics.to_metrics(), "health": diagnostics.summarize()}

    @abstractmethod
    def close(self) -> None:
        """Close environments and threads."""

    def rollback(self, agent: dict[str, Any]) -> None:
        """Restore an earlier state of the agent after non-finite updates."""
        self.agent.rollback(agent)
        self.counters.rolled_back_at = self.counters.updates
        self.counters.skipped_in_a_row = 0

    def run_update(self, update: Callable[[], Metrics]) -> Metrics | None:
        """Run and count an update; return None if it was skipped because a loss or gradient was not finite."""
        try:
            with autocast(self.config.compute):
                metrics = update()
        except NonFiniteError:
            self.counters.skipped_updates += 1
            self.counters.skipped_in_a_row += 1
            return None
        self.counters.updates += 1
        self.counters.skipped_in_a_row = 0
        return metrics
