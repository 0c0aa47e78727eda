"""Facts about the machine that the checks of `manyview doctor` judge, and the findings that they return."""

import ctypes
import ctypes.util
import importlib.metadata
import os
import platform
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from manyview.cli.doctor.render_test import RenderTest, render_in_subprocess
from manyview.utils.resources import count_usable_cores

Status = Literal["ok", "note", "bad"]
DEVELOPER_EXTRAS = ("dev", "docs")
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[(?P<parts>[^\]]*)\])?\s*\(?(?P<specifier>[^;()]*)\)?\s*"
    r"(?:;\s*extra\s*==\s*[\"'](?P<extra>[\w.-]+)[\"']\s*)?"
)
"""Requirement in the metadata of a package; other conditions than an extra do not match."""


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


@dataclass(frozen=True)
class Extra:
    """Optional packages that a part of manyview needs."""

    required: Mapping[str, str]
    """Version specifiers by package."""
    parts: tuple[str, ...] = ()
    """Further packages, by extras of the required ones: `imageio-ffmpeg` of `imageio[ffmpeg]`."""


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
    extras: Mapping[str, Extra]
    """manyview's extras by name, without those of its developers."""
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


def inspect_machine() -> MachineInfo:
    """Collect the facts about this machine."""
    requirements = importlib.metadata.requires("manyview") or []
    required, extras = parse_requirements(requirements), parse_extras(requirements)
    optional = chain.from_iterable((*extra.required, *extra.parts) for extra in extras.values())
    versions = {}
    for name in ("manyview", "numpy", *required, *optional):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return MachineInfo(
        system=platform.system(),
        python=platform.python_version(),
        versions=versions,
        required=required,
        extras=extras,
        environment=dict(os.environ),
        cores=count_usable_cores(),
        cpu_flags=_read_cpu_flags(Path("/proc/cpuinfo")),
        nvidia=Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None,
        libraries=frozenset(name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)),
        torch=_inspect_torch(),
        render_test=render_in_subprocess() if {"dm-control", "mujoco"} <= versions.keys() else None,
        qt_error=_try_load("libQt5Gui.so.5") if platform.system() == "Linux" and "envpool" in versions else None,
    )


def parse_requirements(lines: Sequence[str], extra: str | None = None) -> dict[str, str]:
    """Return the version specifiers by package of the requirements of an extra, or of those that belong to none.

    Requirements for some systems or versions of Python only are left out.
    """
    parsed = (match for line in lines if (match := REQUIREMENT.fullmatch(line)) and match["extra"] == extra)
    return {match["name"].lower(): match["specifier"].strip() for match in parsed}


def parse_extras(lines: Sequence[str]) -> dict[str, Extra]:
    """Return all extras that the requirement lines name, but `DEVELOPER_EXTRAS`, in their order."""
    names = dict.fromkeys(match["extra"] for line in lines if (match := REQUIREMENT.fullmatch(line)) and match["extra"])
    return {
        name: Extra(parse_requirements(lines, name), tuple(dict.fromkeys(_iter_parts(lines, name))))
        for name in names
        if name not in DEVELOPER_EXTRAS
    }


def _iter_parts(lines: Sequence[str], extra: str) -> Iterator[str]:
    """Yield the packages that extras of an extra's packages add; none of a package that is not installed."""
    for line in lines:
        match = REQUIREMENT.fullmatch(line)
        if match is None or match["extra"] != extra or match["parts"] is None:
            continue
        with suppress(importlib.metadata.PackageNotFoundError):
            further = importlib.metadata.requires(match["name"]) or []
            for part in match["parts"].split(","):
                yield from parse_requirements(further, part.strip())


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
