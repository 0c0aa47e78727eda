"""Manifest of a run: machine, time, software and sizes."""

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
from manyview.envs.registration import SUITE_GROUP
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS
from manyview.training import checkpoint
from manyview.training.compute import (
    compute_fingerprint,
    read_numeric_environment,
    resolve_device,
)
from manyview.training.policy_spec import build_policy_spec
from manyview.training.resume import ResumeInfo
from manyview.training.run_dir import RunDir, format_now
from manyview.training.trainer import Trainer
from manyview.utils.entry_points import find_package

SIMULATORS = ("dm-control", "mujoco", "envpool", "metaworld", "gymnasium-robotics")
PACKAGES = ("manyview", "torch", "numpy", "gymnasium", "safetensors", *SIMULATORS)


def create_manifest(config: RunConfig, *, renderer: str | None, **extra: Any) -> dict[str, Any]:
    """Return the manifest of this process; `renderer` names the OpenGL renderer, None if there is none."""
    return {
        "id": secrets.token_hex(4),
        "started": format_now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: number for name in list_packages(config) if (number := _find_version(name)) is not None},
        "commit": describe_commit(),
        "seed": config.seed,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": config.compute.device,
        "threads": torch.get_num_threads(),
        "dtype": config.compute.precision,
        "numerics": compute_fingerprint(resolve_device(config.compute)),
        "renderer": renderer,
        "environment": read_numeric_environment(with_opengl=renderer is not None),
        **extra,
    }


def list_packages(config: RunConfig) -> list[str]:
    """Return the packages whose version can change a result: ours, and those of the run's parts and task."""
    used = (
        (AGENTS.group, config.agent_name),
        (REPRESENTATIONS.group, config.representation_name),
        (BONUSES.group, config.bonus_name),
        (SUITE_GROUP, config.task.split("/")[0]),
    )
    packages = (find_package(group, name) for group, name in used)
    return [*dict.fromkeys((*PACKAGES, *filter(None, packages)))]


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_commit() -> str | None:
    """Return the commit of the sources if they are a checkout, with `-dirty` if they were changed."""
    # `git describe --dirty` would write the index, and a run killed meanwhile would leave its lock.
    git = ["git", "-C", str(Path(__file__).parent), "--no-optional-locks"]
    arguments = ("describe", "--always", "--abbrev=12", "--exclude=*"), ("status", "--porcelain", "-uno")
    try:
        commit, changes = (
            subprocess.run([*git, *args], capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
            for args in arguments
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changes else commit


def build_manifest(trainer: Trainer) -> dict[str, Any]:
    """Return the manifest of this process with the views, settings and sizes of a trainer."""
    settings, sha256 = trainer.env.metadata.get("settings"), trainer.demonstrations_sha256
    if settings is not None:  # the replay buffer stacks frames, not the environment
        settings = replace(settings, frame_stack=trainer.shapes.frame_stack)
    return create_manifest(
        trainer.config,
        renderer=trainer.renderer,
        views=[view.name for view in trainer.shapes.views],
        settings=None if settings is None else to_plain(settings),
        policy=build_policy_spec(trainer.shapes, trainer.env).to_plain(),
        parameters=trainer.parameter_count,
        replay_bytes=trainer.data_bytes,
        **({} if sha256 is None else {"demonstrations": sha256}),
    )


def rebuild_manifest(run_dir: RunDir, resume_info: ResumeInfo) -> ResumeInfo:
    """Write the run's manifest from the one in its checkpoint; return `resume_info` with a note of it."""
    run_dir.write_manifest(checkpoint.read_checkpoint_manifest(resume_info.checkpoint_dir))
    text = f"{run_dir.manifest_file.name} was missing: rebuilt from checkpoint {resume_info.checkpoint_dir.name}"
    return replace(resume_info, changes=[*resume_info.changes, text])


def extend_manifest(
    run_dir: RunDir, manifest: dict[str, Any], resume_info: ResumeInfo | None, trainer: Trainer
) -> dict[str, Any]:
    """Return the manifest of this process with the history of the processes before it."""
    if resume_info is None:
        return manifest
    previous = run_dir.read_manifest()
    earlier = {name: previous[name] for name in ("started", "host", "pid", "commit", "resumed_at") if name in previous}
    resumed_at = {"frames": trainer.counters.frames, "resume_mode": resume_info.resume_mode}
    carried_over = {"id": previous.get("id", manifest["id"]), "earlier": [*previous.get("earlier", []), earlier]}
    return {**manifest, **carried_over, "resumed_at": resumed_at}
