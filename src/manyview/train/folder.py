"""The folder of a run. Everything in it can be read without manyview.

config.json       every setting, as it was resolved
manifest.json     where and with what it ran: versions, commit, device, threads, views, parameters
metrics.jsonl     a record a line: kind, frames, steps, updates, seconds and figures
videos/           the first episode of each evaluation
checkpoints/      safetensors and JSON, named by frames
tensorboard/      the records once more
"""

import json
import os
import platform
import socket
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from manyview.train.config import RunConfig
from manyview.train.tree import from_plain, to_plain

PACKAGES = ("manyview", "torch", "numpy", "gymnasium", "safetensors", "dm-control", "mujoco", "envpool", "metaworld")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def manifest_file(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def named(self, parent: Path, frames: int, suffix: str = "") -> Path:
        return parent / f"{frames:09d}{suffix}"

    def refuse_if_taken(self) -> None:
        if self.config_file.exists():
            raise FileExistsError(f"{self.path} already holds a run: give another folder with --out, or remove it")

    def begin(self, config: RunConfig, manifest: dict[str, Any]) -> None:
        """Take the folder for a run."""
        self.refuse_if_taken()
        self.path.mkdir(parents=True, exist_ok=True)
        _write_json(self.config_file, to_plain(config))
        _write_json(self.manifest_file, manifest)

    def config(self) -> RunConfig:
        if not self.config_file.is_file():
            raise FileNotFoundError(f"{self.path} holds no run: there is no {self.config_file.name}")
        return from_plain(RunConfig, json.loads(self.config_file.read_text(encoding="utf-8")))

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.manifest_file.read_text(encoding="utf-8"))
        return found


def default_folder(config: RunConfig) -> Path:
    return Path("runs") / config.task.replace("/", "-").replace(":", "-") / config.method / f"seed{config.seed}"


def manifest_of(config: RunConfig, **further: Any) -> dict[str, Any]:
    """Where and with what a run begins."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "commit": _commit(),
        "seed": config.seed,
        "device": config.machine.device,
        "threads": torch.get_num_threads(),
        "dtype": config.machine.precision,
        **further,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the sources, if they are a checkout; with a mark if they have been changed since."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
