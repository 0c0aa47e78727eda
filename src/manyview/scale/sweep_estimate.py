"""Estimate hours and memory of many runs from one trial per method."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from manyview.scale.sweep import PlannedRun
from manyview.training import RunDir
from manyview.training.dry_run import RunEstimate, estimate_run
from manyview.utils.text import format_bytes

SECONDS_PER_HOUR = 3600.0
HEADINGS = ("method", "measured on", "runs", "hours each", "total", "memory each")


@dataclass(frozen=True)
class GroupEstimate:
    """Costs of the runs of one method in one suite, measured on the first of them."""

    name: str
    """Method, and the variant if there are several."""
    task: str
    """Task of the measured run."""
    runs: int
    """Number of unfinished runs."""
    hours: float | None = None
    """Duration of a run; None if it could not be measured."""
    cores: int = 0
    """CPU cores of a run; 0 on an accelerator."""
    memory_bytes: int | None = None
    """Data and an update of a run; None where the system does not report it."""
    reason: str = ""
    """Reason why there is no estimate."""

    @property
    def total_hours(self) -> float:
        """Core-hours of all runs, or GPU-hours on an accelerator."""
        return (self.hours or 0.0) * max(1, self.cores) * self.runs

    def format_cells(self) -> tuple[str, ...]:
        """Return the cells of a table, one per heading."""
        if self.hours is None:
            return self.name, self.task, str(self.runs), "unknown", "unknown", self.reason
        unit = "core-hours" if self.cores else "GPU-hours"
        total, memory = f"{self.total_hours:,.1f} {unit}", format_bytes(self.memory_bytes)
        return self.name, self.task, str(self.runs), f"{self.hours:,.2f}", total, memory


def estimate_groups(
    runs: Iterable[PlannedRun], known: dict[str, GroupEstimate] | None = None
) -> Iterator[GroupEstimate]:
    """Yield an estimate for the unfinished runs of each suite, method and variant, measured on the first of them.

    Runs of a group differ in task and seed, so that updates cost the same. `known` keeps the measurements of equal
    settings for further calls.
    """
    known = {} if known is None else known
    unfinished = sorted((run for run in runs if not RunDir(run.run_dir).is_finished), key=_get_group)  # a stable sort
    for _, group in groupby(unfinished, key=_get_group):
        members = list(group)
        first = members[0].config
        settings = repr(replace(first, seed=1, task=first.task.split("/")[0]))
        if settings not in known:
            known[settings] = _measure(members[0])
        yield replace(known[settings], runs=len(members))


def _get_group(run: PlannedRun) -> tuple[str, str, str]:
    task = run.config.task
    return (task.split("/")[0], run.config.method, run.variant)


def _measure(run: PlannedRun) -> GroupEstimate:
    name, task = " ".join(filter(None, (run.config.method, run.variant))), run.config.task
    try:
        estimate = estimate_run(run.config)
    except (ValueError, TypeError, ImportError, OSError, RuntimeError, MemoryError) as error:
        return GroupEstimate(name, task, 1, reason=str(error) or type(error).__name__)
    return GroupEstimate(
        name,
        task,
        1,
        hours=estimate.seconds / SECONDS_PER_HOUR,
        cores=torch.get_num_threads() if estimate.config.compute.device == "cpu" else 0,
        memory_bytes=_sum_memory(estimate),
    )


def _sum_memory(estimate: RunEstimate) -> int | None:
    data_bytes = 0 if estimate.config.replay.directory is not None else estimate.data_bytes
    return None if estimate.update_bytes is None else data_bytes + estimate.update_bytes


def format_total(groups: Sequence[GroupEstimate]) -> str:
    """Return runs, hours and largest memory of all groups as one line."""
    hours = {
        unit: sum(group.total_hours for group in groups if bool(group.cores) == on_cpu)
        for unit, on_cpu in (("core-hours", True), ("GPU-hours", False))
    }
    memory: list[Any] = [group.memory_bytes for group in groups if group.memory_bytes is not None]
    return ", ".join(
        (
            f"{sum(group.runs for group in groups)} runs",
            *(f"{total:,.1f} {unit}" for unit, total in hours.items() if total),
            *([f"at most {format_bytes(max(memory))} each"] if memory else []),
        )
    )
