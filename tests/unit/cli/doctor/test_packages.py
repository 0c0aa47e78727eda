"""Checks of installed packages on machine descriptions."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from manyview.cli.doctor.machine import DEVELOPER_EXTRAS, Extra, parse_extras, parse_requirements
from manyview.cli.doctor.packages import (
    DMC_PIN,
    check_core_packages,
    check_extras,
    check_known_bad,
    is_matching_version,
)
from tests.support.machines import HEALTHY_MACHINE, change_versions, get_only_finding


def test_a_missing_core_package_is_bad_and_the_fix_names_its_least_version() -> None:
    finding = get_only_finding(check_core_packages(change_versions(torch=None)))
    assert (finding.status, finding.fix) == ("bad", 'pip install "torch>=2.10"')
    assert "needed: torch>=2.10" in finding.found


def test_a_core_package_that_is_too_old_is_bad() -> None:
    finding = get_only_finding(check_core_packages(change_versions(torch="2.9.1+cu128", tyro="0.9.9")))
    assert (finding.status, finding.fix) == ("bad", 'pip install "torch>=2.10" "tyro>=1.0"')


def test_a_core_package_that_is_too_new_is_bad_and_the_fix_keeps_the_upper_bound() -> None:
    machine = replace(change_versions(numpy="3.0.0"), required={"numpy": "<3,>=2", "rich": ""})
    finding = get_only_finding(check_core_packages(machine))
    assert (finding.status, finding.fix) == ("bad", 'pip install "numpy<3,>=2"')


def test_numpy_is_listed_if_installed_and_otherwise_optional() -> None:
    assert "numpy 2.4.6" in get_only_finding(check_core_packages(HEALTHY_MACHINE)).found
    finding = get_only_finding(check_core_packages(change_versions(numpy=None)))
    assert finding.status == "ok"
    assert "numpy" not in finding.found


@pytest.mark.parametrize("extra", ["dmc", "procgen", "plots", "video"])
def test_a_missing_optional_package_is_a_note_with_its_pip_line(extra: str) -> None:
    package = next(iter(HEALTHY_MACHINE.extras[extra].required))
    finding = get_only_finding(
        [f for f in check_extras(change_versions(**{package.replace("-", "_"): None})) if f.status != "ok"]
    )
    assert (finding.check, finding.status) == (f"extra {extra}", "note")
    assert finding.fix == f'pip install "manyview[{extra}]"'
    assert finding.found.endswith(f"{package} not installed")


def test_an_extra_without_its_part_is_a_note() -> None:
    finding = get_only_finding([f for f in check_extras(change_versions(imageio_ffmpeg=None)) if f.status != "ok"])
    assert finding.found == "imageio 2.38.1, pillow 13.0.0; imageio-ffmpeg not installed"


def test_an_extra_of_another_version_names_the_one_needed() -> None:
    finding = get_only_finding([f for f in check_extras(change_versions(matplotlib="3.8.1")) if f.status != "ok"])
    assert (finding.check, finding.fix) == ("extra plots", 'pip install "manyview[plots]"')
    assert finding.found == "matplotlib 3.8.1, pillow 13.0.0; needed: matplotlib>=3.9"


def test_an_extra_in_conflict_with_an_installed_one_needs_another_environment() -> None:
    metaworld = Extra({"metaworld": "==3.1.1", "mujoco": "==3.3.0"})
    machine = replace(HEALTHY_MACHINE, extras={**HEALTHY_MACHINE.extras, "metaworld": metaworld})
    finding = get_only_finding([f for f in check_extras(machine) if f.status != "ok"])
    expected = "mujoco 3.16.0; metaworld not installed; needed: mujoco==3.3.0"
    assert (finding.found, finding.fix) == (f"{expected}. Use another virtual environment for it", None)


def test_an_extra_that_replaces_an_installed_version_is_reported() -> None:
    machine = replace(HEALTHY_MACHINE, extras={"rllib": Extra({"ray": ">=2.60"})})
    (finding,) = check_extras(replace(machine, versions={"gymnasium": "1.4.0"}))
    assert finding.fix is None
    assert finding.found == (
        "ray not installed. It replaces gymnasium 1.4.0 by 1.2.2: prefer another virtual environment"
    )
    (finding,) = check_extras(replace(machine, versions={"gymnasium": "1.2.2"}))
    assert (finding.found, finding.fix) == ("ray not installed", 'pip install "manyview[rllib]"')


def test_the_extras_are_those_of_the_metadata() -> None:
    """A new extra in pyproject.toml has a row without a change of the command."""
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    optional_dependencies = project["optional-dependencies"]
    lines = [
        f"{line}; extra == '{name}'" for name, requirements in optional_dependencies.items() for line in requirements
    ]
    extras = parse_extras([*project["dependencies"], *lines])
    assert list(extras) == [name for name in optional_dependencies if name not in DEVELOPER_EXTRAS]
    assert extras["dmc"] == HEALTHY_MACHINE.extras["dmc"]
    assert extras["video"].required == HEALTHY_MACHINE.extras["video"].required
    assert "imageio-ffmpeg" in extras["video"].parts
    assert extras["hub"].required == {"huggingface_hub": ">=2.4,<3"}
    assert "matplotlib" not in parse_requirements([*project["dependencies"], *lines])


@pytest.mark.parametrize(
    ("line", "extra", "expected"),
    [
        ("Torch<3,>=2.10", None, {"torch": "<3,>=2.10"}),
        ("rich (>=13.7)", None, {"rich": ">=13.7"}),
        ('imageio-ffmpeg ; extra == "ffmpeg"', "ffmpeg", {"imageio-ffmpeg": ""}),
        ("ray[default,tune]<2.61,>=2.60; extra == 'scale'", "scale", {"ray": "<2.61,>=2.60"}),
        ("av; extra == 'pyav'", "ffmpeg", {}),
        ('psutil; extra == "ffmpeg" and sys_platform == "win32"', "ffmpeg", {}),
        ('tomli; python_version < "3.11"', None, {}),
    ],
)
def test_requirement_lines_are_parsed(line: str, extra: str | None, expected: dict[str, str]) -> None:
    assert parse_requirements([line], extra) == expected


def test_a_partly_installed_extra_names_the_missing_package() -> None:
    finding = get_only_finding(
        [finding for finding in check_extras(change_versions(mujoco=None)) if finding.status != "ok"]
    )
    assert finding.found == "dm-control 1.0.49; mujoco not installed"


# Known-bad versions


def test_mujoco_4_with_dm_control_is_bad_and_names_the_fix() -> None:
    finding = get_only_finding(check_known_bad(change_versions(mujoco="4.0.0")))
    assert (finding.check, finding.status) == ("mujoco with dm-control", "bad")
    assert finding.found.startswith("mujoco 4.0.0 with dm-control 1.0.49: every suite.load fails")
    assert finding.fix == DMC_PIN == 'pip install "dm-control==1.0.49" "mujoco==3.16.0"'


def test_mujoco_4_is_bad_with_any_dm_control_and_fine_without_one() -> None:
    assert get_only_finding(check_known_bad(change_versions(mujoco="4.1.0", dm_control="1.0.50"))).status == "bad"
    assert get_only_finding(check_known_bad(change_versions(mujoco="4.0.0", dm_control=None))).status == "ok"


@pytest.mark.parametrize("dm_control", ["1.0.50", "1.0.49", None])
def test_mujoco_3_17_is_bad_with_any_dm_control(dm_control: str | None) -> None:
    finding = get_only_finding(check_known_bad(change_versions(mujoco="3.17.1", dm_control=dm_control)))
    assert (finding.check, finding.status, finding.fix) == ("mujoco", "bad", DMC_PIN)
    assert "garbage images" in finding.found


@pytest.mark.parametrize("mujoco", ["3.15.0", "3.18.0", "3.3.0"])
def test_dm_control_1_0_49_is_bad_with_another_mujoco_than_3_16(mujoco: str) -> None:
    finding = get_only_finding(check_known_bad(change_versions(mujoco=mujoco)))
    assert (finding.check, finding.status, finding.fix) == ("mujoco with dm-control", "bad", DMC_PIN)


def test_an_older_matching_pair_is_ok() -> None:
    assert get_only_finding(check_known_bad(change_versions(mujoco="3.3.0", dm_control="1.0.28"))).status == "ok"


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("4.0.0", ">=4", True),
        ("4", ">=4.0.0", True),
        ("4.0.0rc1", ">=4", True),
        ("3.16.0", ">=4", False),
        ("10.0", ">=9.1", True),
        ("2.13.0+cpu", ">=2.10", True),
        ("2.9.1", ">=2.10", False),
        ("3.17.0", "==3.17.*", True),
        ("3.17", "==3.17.*", True),
        ("3.1.7", "==3.17.*", False),
        ("3.16.1", "!=3.16.*", False),
        ("3", "!=3.16.*", True),
        ("1.0.49", "==1.0.49", True),
        ("1.0.49.0", "==1.0.49", True),
        ("1.0.490", "==1.0.49", False),
        ("2.4.6", "<3,>=2", True),
        ("3.0.0", "<3,>=2", False),
        ("0.1.0.dev0", "", True),
    ],
)
def test_versions_compare_by_number(version: str, specifier: str, expected: bool) -> None:
    assert is_matching_version(version, specifier) is expected
