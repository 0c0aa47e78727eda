"""What `manyview doctor` knows of the machine: asked once, so that its checks are pure functions of the answer."""

import ctypes
import ctypes.util
import importlib.metadata
import os
import platform
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from manyview.cli.doctor.render_test import RenderTest, render_in_subprocess
from manyview.utils.resources import count_usable_cores


@dataclass(frozen=True, kw_only=True)
class TorchInfo:
    """What torch says of itself once imported."""

    threads: int
    built_for: str
    """`cpu`, `CUDA 12.8` or `ROCm 7.0`."""
    accelerator: str | None = None
    """The device it would train on, by name; None on a CPU."""


@dataclass(frozen=True, kw_only=True)
class MachineInfo:
    """The facts that the checks judge."""

    system: str
    """As `platform.system()` says it: Linux, Darwin, Windows."""
    python: str
    versions: Mapping[str, str]
    """Installed packages; one that is missing has no entry."""
    required: Mapping[str, str]
    """What manyview itself depends on, and in which versions: `>=2,<3`, or nothing for any."""
    environment: Mapping[str, str]
    cores: int
    """CPU cores this process may use."""
    cpu_flags: frozenset[str] | None
    """Instruction set extensions; None where the system does not list them."""
    nvidia: bool
    """An NVIDIA device or its driver's tools are visible."""
    libraries: frozenset[str]
    """Which of EGL and OSMesa are installed."""
    torch: TorchInfo | str
    """torch, or the error that its import ended in."""
    render_test: RenderTest | str | None
    """A simulated scene drawn here, or the error that this ended in; None where dm-control is not installed."""
    qt_error: str | None
    """Why the library does not load that EnvPool draws Procgen with; None where it does, or where EnvPool is not."""


def inspect_machine(optional: Iterable[str]) -> MachineInfo:
    """The facts of this machine, with the versions of these optional packages."""
    required = _parse_requirements(importlib.metadata.requires("manyview") or [])
    versions = {}
    for name in ("manyview", "numpy", *required, *optional):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return MachineInfo(
        system=platform.system(),
        python=platform.python_version(),
        versions=versions,
        required=required,
        environment=dict(os.environ),
        cores=count_usable_cores(),
        cpu_flags=_read_cpu_flags(Path("/proc/cpuinfo")),
        nvidia=Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None,
        libraries=frozenset(name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)),
        torch=_inspect_torch(),
        render_test=render_in_subprocess() if {"dm-control", "mujoco"} <= versions.keys() else None,
        qt_error=_try_load("libQt5Gui.so.5") if platform.system() == "Linux" and "envpool" in versions else None,
    )


def _parse_requirements(lines: Sequence[str]) -> dict[str, str]:
    """Name and versions of each requirement that belongs to no extra."""
    parsed = (re.match(r"([\w.-]+)(?:\[.*\])?\s*([^;]*)", line) for line in lines if "extra ==" not in line)
    return {match[1].lower(): match[2].strip() for match in parsed if match}


def _read_cpu_flags(cpuinfo: Path) -> frozenset[str] | None:
    try:
        listed = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return frozenset(listed[1].split()) if listed else None


def _try_load(library: str) -> str | None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


def _inspect_torch() -> TorchInfo | str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch warns of here, the checks say with a fix
            return _query_torch()
    except Exception as error:  # a broken torch raises ImportError, OSError, RuntimeError ...
        return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def _query_torch() -> TorchInfo:
    import torch

    built_for = "cpu"
    if torch.version.cuda is not None:
        built_for = f"CUDA {torch.version.cuda}"
    elif torch.version.hip is not None:
        built_for = f"ROCm {torch.version.hip}"
    return TorchInfo(threads=torch.get_num_threads(), built_for=built_for, accelerator=_format_accelerator())


def _format_accelerator() -> str | None:
    import torch

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return None
    names = {"cuda": torch.cuda.get_device_name, "xpu": torch.xpu.get_device_name}
    name = f"{device.type} {names[device.type]()}" if device.type in names else device.type
    count = torch.accelerator.device_count()
    return f"{count} x {name}" if count > 1 else name


Status = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """One row of the report."""

    check: str
    status: Status
    found: str
    fix: str | None = None
    """The command that repairs it; None when all is well."""
