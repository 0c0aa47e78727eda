"""Checks of installed packages by their metadata, without importing them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from manyview.cli.doctor.machine import Extra, Finding, MachineInfo


@dataclass(frozen=True, kw_only=True)
class KnownBadVersions:
    """Versions that pip installs together although they fail at runtime."""

    versions: Mapping[str, str]
    """Version specifiers by package, all of which must match; an empty specifier matches any version."""
    reason: str
    fix: str


DMC_PIN = 'pip install "dm-control==1.0.49" "mujoco==3.16.0"'

# What packages of an extra pin themselves, so that `pip` replaces the installed version.
REPLACED = {"rllib": ("gymnasium", "==1.2.2")}

COMPARISONS = {">=": ge, "<=": le, "==": eq, "!=": ne, "<": lt, ">": gt}

# In order of importance: of several with the same fix, only the first is reported.
KNOWN_BAD = (
    KnownBadVersions(
        versions={"mujoco": ">=4", "dm-control": ""},
        reason="every suite.load fails on a field that mujoco 4 removed",
        fix=DMC_PIN,
    ),
    KnownBadVersions(
        versions={"mujoco": "==3.17.*"},
        reason="closing one Renderer makes another return garbage images, silently",
        fix=DMC_PIN,
    ),
    KnownBadVersions(
        versions={"mujoco": "!=3.16.*", "dm-control": "==1.0.49"},
        reason="this dm-control version works only with mujoco 3.16",
        fix=DMC_PIN,
    ),
)


def check_core_packages(machine: MachineInfo) -> list[Finding]:
    """Check that every dependency is installed in a supported version; numpy is always listed."""
    installed = [
        f"{name} {machine.versions[name]}" for name in (*machine.required, "numpy") if name in machine.versions
    ]
    found = ", ".join(dict.fromkeys(installed))
    unmet = [
        f"{name}{specifier}" for name, specifier in machine.required.items() if not _fits(name, specifier, machine)
    ]
    if not unmet:
        return [Finding("core packages", "ok", found)]
    fix = " ".join(("pip install", *(f'"{requirement}"' for requirement in unmet)))
    return [Finding("core packages", "bad", f"{found or 'none'}; needed: {' and '.join(unmet)}", fix)]


def check_extras(machine: MachineInfo) -> list[Finding]:
    """Report which extras are installed, with the packages that are missing or of another version."""
    return [_check_extra(name, extra, machine) for name, extra in machine.extras.items()]


def _check_extra(name: str, extra: Extra, machine: MachineInfo) -> Finding:
    packages = {**dict.fromkeys(extra.parts, ""), **extra.required}
    versions = {package: machine.versions[package] for package in packages if package in machine.versions}
    missing = [package for package in packages if package not in versions]
    unfit = [f"{package}{packages[package]}" for package in versions if not _fits(package, packages[package], machine)]
    problems = [f"{' and '.join(missing)} not installed"] if missing else []
    problems += [f"needed: {' and '.join(unfit)}"] if unfit else []
    installed = ", ".join(f"{package} {versions[package]}" for package in extra.required if package in versions)
    found = "; ".join(filter(None, (installed, *problems)))
    if not problems:
        return Finding(f"extra {name}", "ok", found)
    if _is_in_conflict(extra, machine):
        return Finding(f"extra {name}", "note", f"{found}. Use another virtual environment for it")
    package, specifier = REPLACED.get(name, ("", ""))
    if package in machine.versions and not _fits(package, specifier, machine):
        found += f". It replaces {package} {machine.versions[package]} by {specifier.removeprefix('==')}: prefer "
        found += "another virtual environment"
        return Finding(f"extra {name}", "note", found)
    return Finding(f"extra {name}", "note", found, f'pip install "manyview[{name}]"')


def _is_in_conflict(extra: Extra, machine: MachineInfo) -> bool:
    """Return whether an installed extra holds a package at a version that this one cannot use."""
    unfit = {package for package, specifier in extra.required.items() if not _fits(package, specifier, machine)}
    return any(
        any(required.get(package) for package in unfit & machine.versions.keys())
        and all(_fits(package, specifier, machine) for package, specifier in required.items())
        for required in (other.required for other in machine.extras.values())
    )


def _fits(package: str, specifier: str, machine: MachineInfo) -> bool:
    return package in machine.versions and is_matching_version(machine.versions[package], specifier)


def check_known_bad(machine: MachineInfo) -> list[Finding]:
    """Check for combinations of versions that are known to fail."""
    findings: dict[str, Finding] = {}
    for bad in KNOWN_BAD:
        if all(
            name in machine.versions and is_matching_version(machine.versions[name], v)
            for name, v in bad.versions.items()
        ):
            found = " with ".join(f"{name} {machine.versions[name]}" for name in bad.versions)
            finding = Finding(" with ".join(bad.versions), "bad", f"{found}: {bad.reason}", bad.fix)
            findings.setdefault(bad.fix, finding)
    return list(findings.values()) or [Finding("bad versions", "ok", "no combination known to fail")]


def is_matching_version(version: str, specifier: str) -> bool:
    """Return whether a version matches a specifier such as `>=4`, `>=2,<3`, `==1.0.49` or `!=3.16.*`.

    Only the leading numbers of the version count.
    """
    return all(_compare(version, *clause) for clause in re.findall(r"(>=|<=|==|!=|<|>)\s*([\d.*]+)", specifier))


def _compare(version: str, operator: str, specifier: str) -> bool:
    installed, required = _parse_release(version), _parse_release(specifier)
    length = len(required) if specifier.endswith(".*") else max(len(installed), len(required))
    installed, required = ((*numbers, *[0] * length)[:length] for numbers in (installed, required))
    return bool(COMPARISONS[operator](installed, required))


def _parse_release(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading.group().split("."))) if leading else ()
