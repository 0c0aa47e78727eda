"""`manyview doctor`: what is wrong with this installation, and the command that repairs it.

Every check is a pure function of a `Machine`, so a test can describe any. Nothing is imported to learn its version, and
a torch that does not import is a finding, not a traceback.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Literal

from manyview.cli.arguments import JsonFlag
from manyview.cli.machine import Machine, examine

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


def doctor(*, as_json: JsonFlag = False) -> int:
    """Check this installation; name the command that repairs it.

    The exit status is 1 if something is bad.
    A note tells of a part that is missing and may stay so.
    """
    findings = diagnose(examine(name for extra in EXTRAS for name in extra.packages))
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


COMPARISONS = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}


def matches(version: str, wanted: str) -> bool:
    """Whether a version is as `wanted`: `>=4`, `>=2,<3`, `==1.0.49`, `!=3.16.*`; only its leading numbers count."""
    return all(_compare(version, *clause) for clause in re.findall(r"(>=|<=|==|!=|<|>)\s*([\d.*]+)", wanted))


def _compare(version: str, operator: str, wanted: str) -> bool:
    have, want = _numbers(version), _numbers(wanted)
    length = len(want) if wanted.endswith(".*") else max(len(have), len(want))
    have, want = ((*numbers, *[0] * length)[:length] for numbers in (have, want))
    return bool(COMPARISONS[operator](have, want))


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading.group().split("."))) if leading else ()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _bf16(flags: frozenset[str] | None) -> str:
    if flags is None:
        return "whether bf16 is native is unknown"
    native = sorted(flags & {"amx_bf16", "avx512_bf16", "bf16"})
    if native:
        return f"bf16 is native ({', '.join(native)}), so autocast to it pays"
    return "bf16 is emulated, so autocast to it does not pay"
