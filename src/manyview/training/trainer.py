"""Base class of the training algorithms, as `Runner` drives them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from warnings import warn

import torch
from torch import Tensor

from manyview.agents import NonFiniteError, OffPolicyAgent, OnPolicyAgent
from manyview.agents.base import compute_in_float32
from manyview.config.schema import RunConfig
from manyview.data import AsyncWriter, Batch, Minibatch, NullLog, ReplayLog
from manyview.data.batch import get_rewarded_vectors
from manyview.envs.vector import get_attr_values
from manyview.envs.views import ViewWarning
from manyview.methods import HasDiagnostics, get_rewarded_views
from manyview.training import factory
from manyview.training.compute import autocast, resolve_compute, resolve_device
from manyview.training.counters import Counters
from manyview.training.memory_estimate import estimate_update_bytes
from manyview.training.signals import EnvCallTracker

Metrics = dict[str, Tensor]
LARGE_VIEW_PIXELS = 128 * 128
"""Pixels of a view above which a run warns: published agents learn from 64 to 100 a side."""


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
        warn_of_large_views(self.shapes)
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
    def demonstrations_sha256(self) -> str | None:
        """SHA-256 of the demonstrations; None without any."""
        return None

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

    def load_agent(self, state: dict[str, Any]) -> None:
        """Start from the agent of another run; call it before the first `advance`."""
        self.agent.load_learned_state(state)

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
    def get_last_batch(self) -> Batch | Minibatch | None:
        """Return the batch of the last update; None before the first."""

    def search_neighbors(self, features: Tensor, mask: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return the distances of the bonus's search in the replay buffer; None if it is not in this process."""
        return None

    @torch.no_grad()
    def compute_diagnostics(self) -> dict[str, Any]:
        """Return the meters of the agent and the diagnostics of its bonus or representation, on the last batch."""
        batch = self.get_last_batch()
        if batch is None:
            return {}
        with autocast(self.config.compute):
            return self._compute_diagnostics(batch)

    def _compute_diagnostics(self, batch: Any) -> dict[str, Any]:
        agent: Any = self.agent
        values: dict[str, Any] = {name: meter.item() for name, meter in agent.compute_meters(batch).items()}
        if isinstance(agent.bonus, HasDiagnostics):
            diagnostics = self._diagnose_bonus(agent.bonus, batch)
        elif isinstance(agent.representation, HasDiagnostics):
            views, mask, indices = get_rewarded_views(batch, "current")
            features = agent.representation.encode(agent.prepare_views(views), mask)
            with compute_in_float32(mask):
                diagnostics = agent.representation.diagnose(features, beta=self.beta, indices=indices)
        else:
            return values
        return {**values, **diagnostics.to_metrics(), "health": diagnostics.summarize()}

    def _diagnose_bonus(self, bonus: Any, batch: Batch | Minibatch) -> Any:
        """Diagnose a bonus on the features and the search that it pays by."""
        views, mask, indices = get_rewarded_views(batch, bonus.config.rewarded_state)
        features = self.agent.encode_for_bonus(views, mask, bonus.feature_source or bonus.stored_feature_source)
        distances = getattr(batch, "neighbor_distances", None)
        further = {} if distances is None else {"neighbor_distances": distances}
        if getattr(bonus, "uses_state_vectors", False):
            further["vectors"] = get_rewarded_vectors(batch, bonus.config.rewarded_state)
        with compute_in_float32(mask):
            if features is None:
                features = bonus.encode(self.agent.prepare_views(views) if bonus.shares_encoder else views, mask)
            return bonus.diagnose(features, beta=self.beta, indices=indices, **further)

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


def warn_of_large_views(shapes: factory.Shapes) -> None:
    """Warn before the first update if the images are larger than those that agents of this kind learn from."""
    _, height, width = shapes.image_shape
    if height * width > LARGE_VIEW_PIXELS:
        warn(
            f"the agent learns from views of {height} x {width} pixels: updates take long, and need much memory. "
            "Set env.image_size, such as --env.image-size 64",
            ViewWarning,
            stacklevel=2,
        )
