"""Facts about the machine that the checks of `manyview doctor` judge, and the findings that they return."""

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

Status = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """One row of the report."""

    check: str
    """Name of the check."""
    status: Status
    found: str
    """Description of the state that the check found."""
    fix: str | None = None
    """Command that repairs it; None if nothing needs repair."""


@dataclass(frozen=True, kw_only=True)
class TorchInfo:
    """Facts about an imported torch."""

    threads: int
    """Number of CPU threads that torch uses."""
    built_for: str
    """`cpu`, `CUDA 12.8` or `ROCm 7.0`."""
    accelerator: str | None = None
    """Name of the device torch would train on; None for the CPU."""


@dataclass(frozen=True, kw_only=True)
class MachineInfo:
    """Facts that the checks judge, collected once so that the checks are pure functions."""

    system: str
    """Operating system by `platform.system()`: Linux, Darwin, Windows."""
    python: str
    versions: Mapping[str, str]
    """Versions of installed packages by name; missing packages have no entry."""
    required: Mapping[str, str]
    """Version specifiers of manyview's dependencies by name, such as `>=2,<3`; empty for any version."""
    environment: Mapping[str, str]
    """Environment variables."""
    cores: int
    """CPU cores that this process may use."""
    cpu_flags: frozenset[str] | None
    """Instruction set extensions of the CPU; None if the system does not list them."""
    nvidia: bool
    """True if an NVIDIA device or the tools of its driver are visible."""
    libraries: frozenset[str]
    """Installed libraries among EGL and OSMesa."""
    torch: TorchInfo | str
    """Facts about torch, or the error of its import."""
    render_test: RenderTest | str | None
    """Result of the render test, or its error; None if dm-control is not installed."""
    qt_error: str | None
    """Error of loading the Qt library with which EnvPool renders Procgen; None if it loads or EnvPool is missing."""


def inspect_machine(optional: Iterable[str]) -> MachineInfo:
    """Collect the facts about this machine, with the versions of these optional packages."""
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
    """Return the version specifiers by package of all requirements that belong to no extra."""
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
            warnings.simplefilter("ignore")  # the checks report these problems with a fix
            return _query_torch()
    except Exception as error:  # a broken torch raises ImportError, OSError, RuntimeError and others
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
