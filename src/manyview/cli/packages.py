"""Checks of what is installed. Nothing is imported to learn its version."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from manyview.cli.finding import Finding
from manyview.cli.machine import Machine


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
