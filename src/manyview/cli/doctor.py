"""`manyview doctor`: what is wrong with this installation, and the command that repairs it.

`examine` asks the real machine once; every check is a pure function of what it found, so a test can describe any
machine. Nothing is imported to learn its version, and a torch that does not import is a finding, not a traceback.
"""

import ctypes.util
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Annotated, Literal

import tyro

Status = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """One row of the report."""

    check: str
    status: Status
    found: str
    fix: str | None = None
    """The command that repairs it; None when all is well."""


@dataclass(frozen=True, kw_only=True)
class Torch:
    """What torch says of itself once imported."""

    threads: int
    built_for: str
    """`cpu`, `CUDA 12.8` or `ROCm 7.0`."""
    accelerator: str | None = None
    """The device it would train on, by name; None on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Machine:
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
    torch: Torch | str
    """torch, or the error that its import ended in."""


@dataclass(frozen=True, kw_only=True)
class Extra:
    """Packages that some of manyview needs."""

    name: str
    packages: tuple[str, ...]
    fix: str


EXTRAS = (
    Extra(name="gymnasium", packages=("gymnasium",), fix="pip install gymnasium"),
    Extra(name="extra dmc", packages=("dm-control", "mujoco"), fix='pip install "manyview[dmc]"'),
    Extra(name="extra procgen", packages=("envpool",), fix='pip install "manyview[procgen]"'),
    Extra(name="extra plots", packages=("matplotlib",), fix='pip install "manyview[plots]"'),
)


@dataclass(frozen=True, kw_only=True)
class KnownBad:
    """Versions that install together without complaint and then fail."""

    versions: Mapping[str, str]
    """The packages that must all be there, each in such versions; nothing means any."""
    reason: str
    fix: str


DMC_PIN = 'pip install "dm-control==1.0.49" "mujoco==3.16.0"'

# In order of importance: of several that the same command repairs, the first is reported.
KNOWN_BAD = (
    KnownBad(
        versions={"mujoco": ">=4", "dm-control": ""},
        reason="every suite.load fails on a field that mujoco 4 no longer has",
        fix=DMC_PIN,
    ),
    KnownBad(
        versions={"mujoco": "==3.17.*"},
        reason="closing one Renderer makes another return garbage images, silently",
        fix=DMC_PIN,
    ),
    KnownBad(
        versions={"mujoco": "!=3.16.*", "dm-control": "==1.0.49"},
        reason="this dm-control reads every field of mujoco 3.16 and no other",
        fix=DMC_PIN,
    ),
)


def python(machine: Machine) -> list[Finding]:
    """The two versions that a report of a problem has to name."""
    return [Finding("python", "ok", f"Python {machine.python}, manyview {machine.versions.get('manyview', 'unknown')}")]


def core_packages(machine: Machine) -> list[Finding]:
    """Every dependency is there, in a version we can use; numpy is named even where nothing requires it."""
    shown = [f"{name} {machine.versions[name]}" for name in (*machine.required, "numpy") if name in machine.versions]
    found = ", ".join(dict.fromkeys(shown))
    wrong = [
        f"{name}{wanted}"
        for name, wanted in machine.required.items()
        if name not in machine.versions or not matches(machine.versions[name], wanted)
    ]
    if not wrong:
        return [Finding("core packages", "ok", found)]
    fix = " ".join(("pip install", *(f'"{requirement}"' for requirement in wrong)))
    return [Finding("core packages", "bad", f"{found or 'none'}; needed: {' and '.join(wrong)}", fix)]


def extras(machine: Machine) -> list[Finding]:
    """Which of the optional parts can be used."""
    findings = []
    for extra in EXTRAS:
        if all(name in machine.required for name in extra.packages):
            continue  # it has become a core package
        there = ", ".join(f"{name} {machine.versions[name]}" for name in extra.packages if name in machine.versions)
        missing = [name for name in extra.packages if name not in machine.versions]
        if missing:
            absent = f"{' and '.join(missing)} not installed"
            findings.append(Finding(extra.name, "note", f"{there}; {absent}" if there else absent, extra.fix))
        else:
            findings.append(Finding(extra.name, "ok", there))
    return findings


def known_bad(machine: Machine) -> list[Finding]:
    """Versions that pip lets pass although they do not work."""
    findings: dict[str, Finding] = {}
    for bad in KNOWN_BAD:
        if all(name in machine.versions and matches(machine.versions[name], v) for name, v in bad.versions.items()):
            found = " with ".join(f"{name} {machine.versions[name]}" for name in bad.versions)
            finding = Finding(" with ".join(bad.versions), "bad", f"{found}: {bad.reason}", bad.fix)
            findings.setdefault(bad.fix, finding)
    return list(findings.values()) or [Finding("version pairs", "ok", "none that is known to fail")]


def threads(machine: Machine) -> list[Finding]:
    """More threads than cores make every update slower, and several runs on one machine slow each other."""
    setting = machine.environment.get("OMP_NUM_THREADS", "")
    found = f"{_count(machine.cores, 'core')}, OMP_NUM_THREADS {setting or 'unset'}"
    if isinstance(machine.torch, str):
        return [Finding("threads", "ok", found)]
    found = f"{_count(machine.torch.threads, 'torch thread')} on {found}"
    if machine.torch.threads > machine.cores:
        return [Finding("threads", "note", found, f"export OMP_NUM_THREADS={machine.cores}")]
    return [Finding("threads", "ok", found)]


def accelerator(machine: Machine) -> list[Finding]:
    """What torch would train on, and whether bf16 pays there."""
    torch = machine.torch
    if isinstance(torch, str):
        if "torch" not in machine.versions:
            return []  # a finding of `core_packages`
        return [Finding("import torch", "bad", torch, "pip uninstall -y torch && pip install torch")]
    if torch.accelerator is not None:
        return [Finding("accelerator", "ok", f"{torch.accelerator}, torch built for {torch.built_for}")]
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    if machine.nvidia and torch.built_for == "cpu":
        found = "an NVIDIA device is visible, but this torch is built for CPUs only"
        return [Finding("accelerator", "bad", found, "pip uninstall -y torch && pip install torch")]
    if machine.nvidia and not hidden:
        found = f"torch built for {torch.built_for} finds no device: an old driver, or no GPU given to this process"
        return [Finding("accelerator", "note", found, "nvidia-smi")]
    return [Finding("accelerator", "ok", f"none, torch runs on the CPU; {_bf16(machine.cpu_flags)}")]


def rendering(machine: Machine) -> list[Finding]:
    """MuJoCo opens a window unless told otherwise, and dies where there is none."""
    setting = machine.environment.get("MUJOCO_GL", "").strip().lower()
    display = machine.environment.get("DISPLAY") or machine.environment.get("WAYLAND_DISPLAY")
    found = ", ".join(
        (
            f"MUJOCO_GL {setting or 'unset'}",
            f"display {display}" if display else "no display",
            *(f"lib{name} {'found' if name in machine.libraries else 'not found'}" for name in ("EGL", "OSMesa")),
        )
    )
    if machine.system != "Linux":
        return [Finding("rendering", "ok", f"the window system of {machine.system}")]
    failing: Status = "bad" if {"mujoco", "dm-control"} & machine.versions.keys() else "note"
    findings = []
    if setting not in ("egl", "osmesa") and not display:
        only_osmesa = machine.libraries == {"OSMesa"}
        findings.append(Finding("rendering", failing, found, f"export MUJOCO_GL={'osmesa' if only_osmesa else 'egl'}"))
        setting = "osmesa" if only_osmesa else "egl"
    if setting == "egl" and "EGL" not in machine.libraries:
        findings.append(
            Finding("libEGL", failing, "not found; MUJOCO_GL=egl renders through it", "apt-get install libegl1 libgl1")
        )
    if setting == "osmesa" and "OSMesa" not in machine.libraries:
        fix = "export MUJOCO_GL=egl" if "EGL" in machine.libraries else "apt-get install libosmesa6"
        findings.append(Finding("libOSMesa", failing, "not found; MUJOCO_GL=osmesa renders through it", fix))
    return findings or [Finding("rendering", "ok", found)]


CHECKS = (python, core_packages, extras, known_bad, threads, accelerator, rendering)


def diagnose(machine: Machine) -> list[Finding]:
    """All findings, in the order in which they are shown."""
    return [finding for check in CHECKS for finding in check(machine)]


def exit_status(findings: Sequence[Finding]) -> int:
    """1 if anything is bad, else 0: a note does not stop a script."""
    return int(any(finding.status == "bad" for finding in findings))


JsonFlag = Annotated[
    bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="json", help="Print the findings as a JSON list.")
]


def doctor(*, as_json: JsonFlag = False) -> int:
    """Check this installation; name the command that repairs it.

    The exit status is 1 if something is bad.
    A note tells of a part that is missing and may stay so.
    """
    findings = diagnose(examine())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print_table(findings)
    return exit_status(findings)


def print_table(findings: Sequence[Finding]) -> None:
    """A table with each fix on a line of its own, short enough to be copied from 80 columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    style = {"ok": "green", "note": "yellow", "bad": "bold red"}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("check", max_width=len("core packages"))
    table.add_column("status")
    table.add_column("found")
    for finding in findings:
        found = Text(finding.found)  # never markup: "manyview[dmc]" would lose its extra
        if finding.fix is not None:
            found.append("\nfix: ", style="dim").append(finding.fix, style="bold")
        table.add_row(finding.check, Text(finding.status, style=style[finding.status]), found)
    console = Console()
    console.print(table)
    bad, notes = (sum(finding.status == status for finding in findings) for status in ("bad", "note"))
    console.print(f"\n{bad or 'Nothing'} bad, {_count(notes, 'note') if notes else 'no notes'}.", highlight=False)


def examine() -> Machine:
    """The facts of this machine."""
    required = _requirements(importlib.metadata.requires("manyview") or [])
    optional = (name for extra in EXTRAS for name in extra.packages)
    versions = {}
    for name in ("manyview", "numpy", *required, *optional):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Machine(
        system=platform.system(),
        python=platform.python_version(),
        versions=versions,
        required=required,
        environment=dict(os.environ),
        cores=_cores(),
        cpu_flags=_cpu_flags(Path("/proc/cpuinfo")),
        nvidia=Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None,
        libraries=frozenset(name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)),
        torch=_torch(),
    )


COMPARISONS = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}


def matches(version: str, wanted: str) -> bool:
    """Whether a version is as `wanted`: `>=4`, `>=2,<3`, `==1.0.49`, `!=3.16.*`; only its leading numbers count."""
    return all(_compare(version, *clause) for clause in re.findall(r"(>=|<=|==|!=|<|>)\s*([\d.*]+)", wanted))


def cores_of_quota(cpu_max: str) -> int | None:
    """The cores that a container's `cpu.max` grants, rounded up; None without a limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    return None if quota == "max" else math.ceil(int(quota) / int(period))


def _compare(version: str, operator: str, wanted: str) -> bool:
    have, want = _numbers(version), _numbers(wanted)
    length = len(want) if wanted.endswith(".*") else max(len(have), len(want))
    have, want = ((*numbers, *[0] * length)[:length] for numbers in (have, want))
    return bool(COMPARISONS[operator](have, want))


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading.group().split("."))) if leading else ()


def _requirements(lines: Sequence[str]) -> dict[str, str]:
    """Name and versions of each requirement that belongs to no extra."""
    parsed = (re.match(r"([\w.-]+)(?:\[.*\])?\s*([^;]*)", line) for line in lines if "extra ==" not in line)
    return {match[1].lower(): match[2].strip() for match in parsed if match}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _bf16(flags: frozenset[str] | None) -> str:
    if flags is None:
        return "whether bf16 is native is unknown"
    native = sorted(flags & {"amx_bf16", "avx512_bf16", "bf16"})
    if native:
        return f"bf16 is native ({', '.join(native)}), so autocast to it pays"
    return "bf16 is emulated, so autocast to it does not pay"


def _cores() -> int:
    # Python 3.13 has os.process_cpu_count, which does not know of a container's quota either.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota = cores_of_quota(Path("/sys/fs/cgroup/cpu.max").read_text())
    except (OSError, ValueError):
        quota = None
    return min(cores, quota or cores)


def _cpu_flags(cpuinfo: Path) -> frozenset[str] | None:
    try:
        listed = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return frozenset(listed[1].split()) if listed else None


def _torch() -> Torch | str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch warns of here, the checks say with a fix
            return _ask_torch()
    except Exception as error:  # a broken torch raises ImportError, OSError, RuntimeError ...
        return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def _ask_torch() -> Torch:
    import torch

    built_for = "cpu"
    if torch.version.cuda is not None:
        built_for = f"CUDA {torch.version.cuda}"
    elif torch.version.hip is not None:
        built_for = f"ROCm {torch.version.hip}"
    return Torch(threads=torch.get_num_threads(), built_for=built_for, accelerator=_accelerator_name())


def _accelerator_name() -> str | None:
    import torch

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return None
    names = {"cuda": torch.cuda.get_device_name, "xpu": torch.xpu.get_device_name}
    name = f"{device.type} {names[device.type]()}" if device.type in names else device.type
    count = torch.accelerator.device_count()
    return f"{count} x {name}" if count > 1 else name
