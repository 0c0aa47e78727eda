"""Registries of agents, representations and bonuses, also of installed packages."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import manyview.agents  # noqa: F401  # registers the agents
from manyview.config.overrides import apply_overrides
from manyview.config.presets import make_config
from manyview.data.action_spec import ActionSpec
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS, BonusConfig, BuildContext, register_bonus
from manyview.methods.registry import Registry
from manyview.utils import entry_points

PACKAGE, MODULE = "curious-robots", "curious_robots_bonus"
PLUGIN_SOURCE = """
from dataclasses import dataclass
from manyview.methods import BonusConfig, register_bonus

@dataclass(frozen=True, kw_only=True)
class Config(BonusConfig):
    reach: float = 2.5

@register_bonus("surprise", Config)
def build(config, context):
    return (config.reach, context.seed)
"""
Install = Callable[..., None]


@dataclass(frozen=True)
class FirstConfig:
    size: int = 1


@dataclass(frozen=True)
class SecondConfig:
    size: int = 2


@dataclass
class MutableConfig:
    size: int = 3


def build(config: Any, context: BuildContext) -> tuple[int, int]:
    return config.size, context.seed


def make_context(seed: int = 0) -> BuildContext:
    return BuildContext(
        view_names=("a",), image_shape=(3, 20, 20), frame_stack=1, actions=ActionSpec(2, discrete=False), seed=seed
    )


@pytest.fixture
def parts() -> Registry:
    """Return a registry that finds no installed package."""
    registry = Registry("part", "manyview.tests_without_packages")
    registry.register("first", FirstConfig)(build)
    return registry


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a package with an entry point.

    The registries and modules are restored after the test.
    """

    def install_package(source: str, name: str = "surprise", group: str = "bonuses") -> None:
        (tmp_path / f"{MODULE}.py").write_text(source)
        metadata = tmp_path / f"{MODULE}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[manyview.{group}]\n{name} = {MODULE}\n")
        monkeypatch.syspath_prepend(tmp_path)
        entry_points._read_entry_points.cache_clear()

    for registry in (AGENTS, REPRESENTATIONS, BONUSES):
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    yield install_package
    sys.modules.pop(MODULE, None)
    monkeypatch.undo()
    entry_points._read_entry_points.cache_clear()


def test_a_registered_part_is_found_by_name_and_by_config(parts: Registry) -> None:
    assert parts.register("second-part", SecondConfig, data=("rollout",))(build) is build
    part = parts["second-part"]
    assert (part.name, part.config, part.data) == ("second-part", SecondConfig, ("rollout",))
    assert part.build(SecondConfig(), make_context(seed=7)) == (2, 7)
    assert parts["first"].data == ("replay", "rollout"), "by default a part learns from both"
    assert parts.find_name(SecondConfig(size=9)) == "second-part"
    assert parts.list_names() == ["first", "second-part"]
    assert "second-part" in parts
    assert "third" not in parts


@pytest.mark.parametrize(("name", "config"), [("first", SecondConfig), ("second", FirstConfig)])
def test_a_name_or_config_that_is_taken_is_refused_and_the_first_part_stays(
    parts: Registry, name: str, config: type[Any]
) -> None:
    with pytest.raises(ValueError, match=f"cannot register part '{name}': 'first' has the same name or config class"):
        parts.register(name, config)
    assert parts.list_names() == ["first"]
    assert parts["first"].config is FirstConfig


@pytest.mark.parametrize(("name", "config"), [("two words", SecondConfig), ("third", MutableConfig), ("third", dict)])
def test_a_part_needs_an_identifier_and_a_frozen_dataclass(parts: Registry, name: str, config: type[Any]) -> None:
    with pytest.raises(ValueError, match=f"'{name}': expected an identifier and a frozen dataclass, got <class"):
        parts.register(name, config)
    assert parts.list_names() == ["first"]


def test_an_unknown_name_is_an_error_with_the_closest_name(parts: Registry) -> None:
    with pytest.raises(ValueError, match=r"unknown part 'fisrt': expected one of first; did you mean first\?"):
        parts["fisrt"]
    with pytest.raises(ValueError, match=r"unknown part 'x': .* [Ii]nstall the package that provides it"):
        parts["x"]
    with pytest.raises(ValueError, match="not the config of a registered part: SecondConfig"):
        parts.find_name(SecondConfig())


def test_a_subclass_of_a_config_is_not_that_part(parts: Registry) -> None:
    @dataclass(frozen=True)
    class Wider(FirstConfig):
        more: int = 0

    with pytest.raises(ValueError, match="not the config of a registered part: Wider"):
        parts.find_name(Wider())


def test_a_package_that_cannot_be_loaded_does_not_hide_a_misspelled_setting(install: Install) -> None:
    install("raise RuntimeError('broken')")
    config = make_config("toy/hidden_goal_continuous", method="sac+mem")
    with pytest.raises(ValueError, match=r"unknown setting replay\.batchsize: .*did you mean replay\.batch_size\?"):
        apply_overrides(config, {"replay": {"batchsize": 3}})


def test_the_parts_of_this_package_are_registered() -> None:
    assert {"drqv2", "sac", "ppo"} <= set(AGENTS.list_names())
    assert {"pixel", "mem", "curl", "dribo"} <= set(REPRESENTATIONS.list_names())
    assert {"none", "mem", "re3", "ride"} <= set(BONUSES.list_names())
    assert [AGENTS[name].data for name in ("drqv2", "ppo")] == [("replay",), ("rollout",)]
    assert AGENTS["sac"].data == ("replay", "sequences")
    assert REPRESENTATIONS["dribo"].data == ("sequences",)
    assert BONUSES["ride"].data == ("rollout",)


def test_a_bonus_of_an_installed_package_is_built_like_a_built_in_bonus(install: Install) -> None:
    install(PLUGIN_SOURCE)
    assert "surprise" in BONUSES
    assert "surprise" in BONUSES.list_names()
    assert "surprise" not in REPRESENTATIONS
    assert MODULE not in sys.modules, "names are listed without importing other packages"
    part = BONUSES["surprise"]
    assert BonusConfig in part.config.__mro__
    assert part.build(part.config(reach=4.0), make_context(seed=7)) == (4.0, 7)
    assert BONUSES.find_name(part.config()) == "surprise"


def test_a_package_that_cannot_be_imported_is_named_with_the_reason(install: Install) -> None:
    install("import a_module_that_is_not_installed")
    with pytest.raises(
        ValueError,
        match=rf"manyview.bonuses 'surprise' \({MODULE}\) of package {PACKAGE} cannot be loaded: ModuleNotFoundError: "
        "No module named 'a_module_that_is_not_installed'",
    ):
        BONUSES["surprise"]
    assert BONUSES["re3"].name == "re3", "the others are not affected"


def test_a_package_that_registers_something_else_is_named(install: Install) -> None:
    install(PLUGIN_SOURCE, name="wonder")
    with pytest.raises(ValueError, match=f"'wonder' .* of package {PACKAGE} does not register it"):
        BONUSES["wonder"]


def test_a_package_with_the_name_of_a_built_in_bonus_does_not_replace_it(install: Install) -> None:
    built_in = BONUSES["re3"]
    install(PLUGIN_SOURCE.replace("surprise", "re3"), name="re3")
    assert BONUSES["re3"] is built_in
    assert MODULE not in sys.modules


def test_a_misspelled_name_suggests_an_installed_part(install: Install) -> None:
    install(PLUGIN_SOURCE)
    with pytest.raises(ValueError, match=r"did you mean surprise\?"):
        BONUSES["suprise"]


def test_the_decorators_fill_the_registries(install: Install) -> None:  # noqa: ARG001
    register_bonus("second", SecondConfig)(build)
    assert BONUSES["second"].build(SecondConfig(), make_context()) == (2, 0)
