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
SEPARATE_EXTRAS = {"metaworld", "rllib", "trackio"}
"""Extras with their own environment: they need another mujoco or gymnasium than the gate."""


def read_pins() -> dict[str, Version]:
    """Return the pinned versions of the gate's packages."""
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def list_gate_requirements() -> list[Requirement]:
    """Return the requirements of the package and of the extras in the gate."""
    extras = PROJECT["optional-dependencies"]
    texts = [
        *PROJECT["dependencies"],
        *(text for name in sorted(extras.keys() - SEPARATE_EXTRAS) for text in extras[name]),
    ]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_and_says_its_version(workflow: Path) -> None:
    actions = re.findall(r"uses: *(.+)", workflow.read_text())
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_every_core_dependency_has_an_upper_bound(requirement: str) -> None:
    assert any(bound.operator == "<" for bound in Requirement(requirement).specifier)


@pytest.mark.parametrize("requirement", list_gate_requirements(), ids=lambda requirement: requirement.name)
def test_the_gate_installs_a_pinned_version_within_the_bounds(requirement: Requirement) -> None:
    version = read_pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} is not in .ci/constraints.txt: run `bash .ci/lock`"
    assert requirement.specifier.contains(version)


def list_dependencies(requirement: Requirement) -> list[Requirement]:
    """Return the requirements of a distribution on this machine, [] if it is not installed."""
    try:
        texts = requires(requirement.name) or []
    except PackageNotFoundError:
        return []
    extras = ["", *requirement.extras]
    return [
        dependency
        for dependency in map(Requirement, texts)
        if dependency.marker is None or any(dependency.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def test_the_dependencies_of_what_the_gate_installs_are_pinned() -> None:
    queue, visited = list_gate_requirements(), set[str]()
    while queue:
        requirement = queue.pop()
        if str(requirement) not in visited:
            visited.add(str(requirement))
            queue += list_dependencies(requirement)
    names = {canonicalize_name(Requirement(text).name) for text in visited}
    unpinned = names - read_pins().keys() - {"manyview", "pip", "setuptools", "wheel"}  # `pip freeze` leaves them out
    assert not unpinned, f"not in .ci/constraints.txt: {', '.join(sorted(unpinned))}. Run `bash .ci/lock`"
