"""Run directories written without training, and settings of tiny real runs."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import manyview.training  # noqa: F401 - registers the parts of a method
from manyview.config.method import parse_method
from manyview.report.runs import CONFIG_FILE, MANIFEST_FILE, METRICS_FILE

TASK = "toy/identity_continuous"


def write_run_dir(
    path: Path,
    returns: Sequence[float] = (),
    *,
    task: str = TASK,
    method: str = "drqv2+mem",
    seed: int = 1,
    every_frames: int = 1000,
    end: str | None = "finished",
    manifest: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> Path:
    """Write a run directory without checkpoints and return its path.

    Its metrics have an evaluation every `every_frames`, and training records between them.
    """
    path.mkdir(parents=True)
    schedule = {"frames": 100_000, **sections.pop("schedule", {})}
    kinds = zip(("agent", "representation", "bonus"), parse_method(method), strict=True)
    parts = {kind: {"name": name, **sections.pop(kind, {})} for kind, name in kinds}
    config = {"task": task, "seed": seed, "schedule": schedule, **parts, **sections}
    (path / CONFIG_FILE).write_text(json.dumps(config))
    default_manifest = {"started": datetime.now(UTC).isoformat(), "host": socket.gethostname(), "pid": os.getpid()}
    (path / MANIFEST_FILE).write_text(json.dumps(default_manifest if manifest is None else dict(manifest)))
    lines = [format_record("start", 0)]
    for number, value in enumerate(returns):
        lines += [
            format_record("evaluation", number * every_frames, **{"return": value}),
            format_record("train", number * every_frames + 10),
        ]
    if end is not None:
        lines.append(format_record("end", (len(returns) - 1) * every_frames, state=end))
    (path / METRICS_FILE).write_text("".join(lines))
    return path


def format_record(kind: str, frames: int, **metrics: Any) -> str:
    """Return a line of the metrics file."""
    counters = {"frames": frames, "steps": frames // 4, "updates": frames // 8, "seconds": frames / 100}
    return json.dumps({"kind": kind, **counters, **metrics}) + "\n"


TINY_RUN: dict[str, Any] = {
    "schedule": {"frames": 120, "random_steps": 60, "seed_frames": 60},
    "evaluation": {"every_frames": 60, "episodes": 3, "video": False},
    "logging": {"every_steps": 20, "checkpoint_every_frames": 60, "tensorboard": False},
    "replay": {"capacity": 200, "batch_size": 8},
}
"""Changes to the preset `minute` for a run of a few seconds."""
