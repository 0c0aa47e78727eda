"""Rules about what the project installs and what its workflows run."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SEPARATE = {"metaworld", "rllib", "trackio"}
"""Extras with an environment of their own: another mujoco or gymnasium than the gate's."""


def pins() -> dict[str, Version]:
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    split = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in split}


def gate_requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for name in sorted(extras.keys() - SEPARATE) for text in extras[name])]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_and_says_its_version(workflow: Path) -> None:
    used = re.findall(r"uses: *(.+)", workflow.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_every_core_dependency_has_an_upper_bound(requirement: str) -> None:
    assert any(bound.operator == "<" for bound in Requirement(requirement).specifier)


@pytest.mark.parametrize("requirement", gate_requirements(), ids=lambda requirement: requirement.name)
def test_the_gate_installs_a_pinned_version_within_the_bounds(requirement: Requirement) -> None:
    pinned = pins().get(canonicalize_name(requirement.name))
    assert pinned is not None, f"{requirement.name} is not in .ci/constraints.txt: run `bash .ci/lock`"
    assert requirement.specifier.contains(pinned)


def list_dependencies(requirement: Requirement) -> list[Requirement]:
    """Return what an installed distribution asks for on this machine; nothing for one that is not installed."""
    try:
        texts = requires(requirement.name) or []
    except PackageNotFoundError:
        return []
    extras = ["", *requirement.extras]
    return [
        needed
        for needed in map(Requirement, texts)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def test_the_dependencies_of_what_the_gate_installs_are_pinned() -> None:
    waiting, seen = gate_requirements(), set[str]()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) not in seen:
            seen.add(str(requirement))
            waiting += list_dependencies(requirement)
    names = {canonicalize_name(Requirement(text).name) for text in seen}
    unpinned = names - pins().keys() - {"manyview", "pip", "setuptools", "wheel"}  # `pip freeze` leaves them out
    assert not unpinned, f"not in .ci/constraints.txt: {', '.join(sorted(unpinned))}. Run `bash .ci/lock`"
