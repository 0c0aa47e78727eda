"""The manifest of a run: where, when and with what it ran."""

import os
import platform
import secrets
import socket
import subprocess
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from manyview.config.overrides import to_plain
from manyview.config.schema import RunConfig
from manyview.train import checkpoint
from manyview.train.compute import (
    compute_fingerprint,
    read_numeric_environment,
    resolve_device,
)
from manyview.train.resume import ResumeInfo
from manyview.train.run_dir import RunDir, format_now
from manyview.train.trainer import Trainer

PACKAGES = ("manyview", "torch", "numpy", "gymnasium", "safetensors", "dm-control", "mujoco", "envpool", "metaworld")


def create_manifest(config: RunConfig, *, renderer: str | None, **extra: Any) -> dict[str, Any]:
    """Where and with what a run begins; `renderer` is what draws through OpenGL, if something does."""
    return {
        "id": secrets.token_hex(4),
        "started": format_now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: found for name in PACKAGES if (found := _find_version(name)) is not None},
        "commit": _describe_commit(),
        "seed": config.seed,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": config.machine.device,
        "threads": torch.get_num_threads(),
        "dtype": config.machine.precision,
        "numerics": compute_fingerprint(resolve_device(config.machine)),
        "renderer": renderer,
        "environment": read_numeric_environment(draws=renderer is not None),
        **extra,
    }


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _describe_commit() -> str | None:
    """Of the sources, if they are a checkout; with a mark if they have been changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None


def build_manifest(trainer: Trainer) -> dict[str, Any]:
    settings = trainer.env.metadata.get("settings")
    if settings is not None:  # the replay buffer stacks frames, not the environment
        settings = replace(settings, frame_stack=trainer.shapes.frame_stack)
    return create_manifest(
        trainer.config,
        renderer=trainer.renderer,
        views=[view.name for view in trainer.shapes.views],
        settings=None if settings is None else to_plain(settings),
        parameters=trainer.parameter_count,
        replay_bytes=trainer.data_bytes,
    )


def rebuild_manifest(folder: RunDir, resumed: ResumeInfo) -> ResumeInfo:
    """Write the run's manifest anew from the one in its checkpoint, and say so."""
    folder.write_manifest(checkpoint.read_checkpoint_manifest(resumed.checkpoint_dir))
    text = f"{folder.manifest_file.name} was missing: rebuilt from checkpoint {resumed.checkpoint_dir.name}"
    return replace(resumed, changes=[*resumed.changes, text])


def extend_manifest(
    run_dir: RunDir, manifest: dict[str, Any], resume_info: ResumeInfo | None, trainer: Trainer
) -> dict[str, Any]:
    """The manifest of this process, and of those before it."""
    if resume_info is None:
        return manifest
    previous = run_dir.read_manifest()
    earlier = {name: previous[name] for name in ("started", "host", "pid", "commit", "resumed_at") if name in previous}
    resumed_at = {"frames": trainer.counters.frames, "resume_mode": resume_info.resume_mode}
    carried_over = {"id": previous.get("id", manifest["id"]), "earlier": [*previous.get("earlier", []), earlier]}
    return {**manifest, **carried_over, "resumed_at": resumed_at}
