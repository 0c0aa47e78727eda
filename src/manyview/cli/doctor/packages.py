"""Checks of what is installed. Nothing is imported to learn its version."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from manyview.cli.doctor.machine import Finding, MachineInfo


@dataclass(frozen=True, kw_only=True)
class Extra:
    """Packages that some of manyview needs."""

    name: str
    packages: tuple[str, ...]
    fix: str


EXTRAS = (
    Extra(name="extra dmc", packages=("dm-control", "mujoco"), fix='pip install "manyview[dmc]"'),
    Extra(name="extra procgen", packages=("envpool",), fix='pip install "manyview[procgen]"'),
    Extra(name="extra plots", packages=("matplotlib", "pillow"), fix='pip install "manyview[plots]"'),
    Extra(name="extra video", packages=("imageio", "imageio-ffmpeg"), fix='pip install "manyview[video]"'),
)


@dataclass(frozen=True, kw_only=True)
class KnownBadVersions:
    """Versions that install together without complaint and then fail."""

    versions: Mapping[str, str]
    """The packages that must all be there, each in such versions; nothing means any."""
    reason: str
    fix: str


DMC_PIN = 'pip install "dm-control==1.0.49" "mujoco==3.16.0"'

# In order of importance: of several that the same command repairs, the first is reported.
KNOWN_BAD = (
    KnownBadVersions(
        versions={"mujoco": ">=4", "dm-control": ""},
        reason="every suite.load fails on a field that mujoco 4 no longer has",
        fix=DMC_PIN,
    ),
    KnownBadVersions(
        versions={"mujoco": "==3.17.*"},
        reason="closing one Renderer makes another return garbage images, silently",
        fix=DMC_PIN,
    ),
    KnownBadVersions(
        versions={"mujoco": "!=3.16.*", "dm-control": "==1.0.49"},
        reason="this dm-control reads every field of mujoco 3.16 and no other",
        fix=DMC_PIN,
    ),
)


def check_core_packages(machine: MachineInfo) -> list[Finding]:
    """Every dependency is there, in a version we can use; numpy is named even where nothing requires it."""
    installed = [
        f"{name} {machine.versions[name]}" for name in (*machine.required, "numpy") if name in machine.versions
    ]
    found = ", ".join(dict.fromkeys(installed))
    wrong = [
        f"{name}{specifier}"
        for name, specifier in machine.required.items()
        if name not in machine.versions or not is_matching_version(machine.versions[name], specifier)
    ]
    if not wrong:
        return [Finding("core packages", "ok", found)]
    fix = " ".join(("pip install", *(f'"{requirement}"' for requirement in wrong)))
    return [Finding("core packages", "bad", f"{found or 'none'}; needed: {' and '.join(wrong)}", fix)]


def check_extras(machine: MachineInfo) -> list[Finding]:
    """Which of the optional parts can be used."""
    findings = []
    for extra in EXTRAS:
        installed = ", ".join(f"{name} {machine.versions[name]}" for name in extra.packages if name in machine.versions)
        missing = [name for name in extra.packages if name not in machine.versions]
        if missing:
            absent = f"{' and '.join(missing)} not installed"
            findings.append(Finding(extra.name, "note", f"{installed}; {absent}" if installed else absent, extra.fix))
        else:
            findings.append(Finding(extra.name, "ok", installed))
    return findings


def check_known_bad(machine: MachineInfo) -> list[Finding]:
    """Versions that pip lets pass although they do not work."""
    findings: dict[str, Finding] = {}
    for bad in KNOWN_BAD:
        if all(
            name in machine.versions and is_matching_version(machine.versions[name], v)
            for name, v in bad.versions.items()
        ):
            found = " with ".join(f"{name} {machine.versions[name]}" for name in bad.versions)
            finding = Finding(" with ".join(bad.versions), "bad", f"{found}: {bad.reason}", bad.fix)
            findings.setdefault(bad.fix, finding)
    return list(findings.values()) or [Finding("version pairs", "ok", "none that is known to fail")]


COMPARISONS = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}


def is_matching_version(version: str, specifier: str) -> bool:
    """Whether a version is as `wanted`: `>=4`, `>=2,<3`, `==1.0.49`, `!=3.16.*`; only its leading numbers count."""
    return all(_compare(version, *clause) for clause in re.findall(r"(>=|<=|==|!=|<|>)\s*([\d.*]+)", specifier))


def _compare(version: str, operator: str, specifier: str) -> bool:
    installed, required = _parse_release(version), _parse_release(specifier)
    length = len(required) if specifier.endswith(".*") else max(len(installed), len(required))
    installed, required = ((*numbers, *[0] * length)[:length] for numbers in (installed, required))
    return bool(COMPARISONS[operator](installed, required))


def _parse_release(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading.group().split("."))) if leading else ()
