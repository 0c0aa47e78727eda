"""Short forms of methods name exactly three parts."""

import subprocess
import sys
from itertools import product

import pytest

from manyview.config.method import format_method, parse_method
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS
from manyview.training import make_config

BUILT_IN = {
    "agent": ("drqv2", "ppo", "sac"),
    "representation": ("curl", "drac", "mad", "mem", "pixel", "ucb_drac"),
    "bonus": ("apt", "icm", "mem", "none", "re3", "ride", "rnd", "vcse"),
}
COMBINATIONS = list(product(*BUILT_IN.values()))
ON_POLICY_PARTS, OFF_POLICY_PARTS = {"ride", "drac", "ucb_drac"}, {"mad", "vcse"}
METHODS = [
    format_method(*names)
    for names in COMBINATIONS
    if not (OFF_POLICY_PARTS if names[0] == "ppo" else ON_POLICY_PARTS) & {*names}
]
"""All methods of built-in parts that fit together."""


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_every_combination_is_parsed_from_its_short_and_long_form(names: tuple[str, str, str]) -> None:
    assert parse_method(format_method(*names)) == names
    assert parse_method("+".join(names)) == names


def test_no_two_combinations_have_the_same_form() -> None:
    assert len({format_method(*names) for names in COMBINATIONS}) == len(COMBINATIONS)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("sac+mem", ("sac", "mem", "mem")),
        ("sac+none", ("sac", "pixel", "none")),
        ("sac+pixel", ("sac", "pixel", "none")),
        ("drqv2+re3", ("drqv2", "pixel", "re3")),
        ("drqv2+curl", ("drqv2", "curl", "none")),
        ("ppo+ride", ("ppo", "pixel", "ride")),
        ("drqv2+curl+re3", ("drqv2", "curl", "re3")),
        ("sac+pixel+mem", ("sac", "pixel", "mem")),
        ("sac+mem+none", ("sac", "mem", "none")),
    ],
)
def test_a_short_form_names_three_parts(method: str, names: tuple[str, str, str]) -> None:
    assert parse_method(method) == names
    expected = "sac+none" if method == "sac+pixel" else method
    assert format_method(*names) == expected == make_config("toy/identity", method=method).method


def test_methods_of_parts_that_are_not_installed_are_formatted() -> None:
    assert format_method("sac", "pixel", "nope") == "sac+nope"
    assert format_method("nope", "mem", "nope2") == "nope+mem+nope2"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("drqv2", r"invalid method 'drqv2': expected <agent>\+<representation>\+<bonus>"),
        ("", "invalid method ''"),
        ("drqv2+mem+re3+ride", "invalid method"),
        ("dqn+mem", "unknown agent 'dqn': expected one of drqv2, ppo, sac"),
        ("drqv3+mem", r"did you mean drqv2\?"),
        ("sac+mme", r"got 'mme'; did you mean sac\+mem\?"),
        ("drqv2+rnd2", "expected a representation or bonus of apt, curl, drac, dribo, icm, .*, got 'rnd2'"),
        ("drqv2+", "expected a representation or bonus of .*, got ''"),
        ("drqv2+re3+curl", "unknown representation 're3'"),
        ("drqv2+mem+curl", "unknown bonus 'curl'"),
        ("mem+drqv2", "expected a representation or bonus"),
    ],
)
def test_an_unknown_method_is_refused(method: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(method)


def test_the_built_in_parts_are_registered() -> None:
    for registry, names in zip((AGENTS, REPRESENTATIONS, BONUSES), BUILT_IN.values(), strict=True):
        assert {*names} <= {*registry.list_names()}


def test_mem_and_the_plain_agent_are_formatted_without_torch() -> None:
    code = """
import sys
from manyview.config.method import format_method
assert (format_method("sac", "mem", "mem"), format_method("sac", "pixel", "none")) == ("sac+mem", "sac+none")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
