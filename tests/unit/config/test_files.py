"""Config files: formats, validation and descriptions of settings."""

import json
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from manyview.config.files import format_toml, read_config_file
from manyview.config.method import parse_method
from manyview.config.overrides import apply_overrides, to_plain
from manyview.config.presets import BUILT_IN_PRESETS, load_preset
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS, BonusConfig
from manyview.training import RunConfig, RunDir, make_config
from manyview.utils.docstrings import read_class_doc, read_field_docs
from tests.unit.config.test_method import METHODS

TASK = "dmc/cheetah_run"


def write_and_read(file: Path, text: str) -> RunConfig:
    """Write a config file and return the config read from it."""
    file.write_text(text)
    return read_config_file(file)


@pytest.mark.parametrize("preset", BUILT_IN_PRESETS)
def test_every_method_with_every_preset_survives_a_round_trip(preset: str, tmp_path: Path) -> None:
    for method in METHODS:
        if preset == "drqv2" and "pixel" not in parse_method(method):
            continue  # the published structure has no other representation
        task = "procgen/bigfish" if method.startswith("ppo") else TASK
        config = load_preset(preset, task=task, method=method, seed=5)
        assert write_and_read(tmp_path / "config.toml", format_toml(config)) == config
        assert write_and_read(tmp_path / "config.json", json.dumps(to_plain(config))) == config


def test_every_kind_of_value_survives_a_round_trip(tmp_path: Path) -> None:
    changes = {
        "task": 'module:"quoted"\\\n\t\x00\x7f\u2028 β 🤖',
        "env": {"views": ["a", '"b"', ""], "step_deadline_s": 1e-300},
        "replay": {"capacity": 10**15, "directory": "", "prefetch": True, "discount": 0.1 + 0.2},
        "scale": {"reward_low": float("-inf"), "reward_high": 1e22},
        "seed": 2**64 - 1,
    }
    config = apply_overrides(make_config(TASK, method="sac+mem"), changes)
    assert write_and_read(tmp_path / "config.toml", format_toml(config)) == config
    config_without_views = apply_overrides(config, {"env": {"views": []}})
    assert write_and_read(tmp_path / "config.toml", format_toml(config_without_views)).env.views == ()


def test_none_is_the_default_wherever_it_is_allowed() -> None:
    """TOML cannot express None, so a file leaves out such a setting."""
    parts = [config for registry in (AGENTS, REPRESENTATIONS, BONUSES) for config in registry.iter_configs()]
    config = make_config(TASK, method="drqv2+pixel+mem")
    groups = [type(getattr(config, field.name)) for field in fields(RunConfig)]
    for config_class in {*parts, *groups, type(config.bonus.encoder)} - {str, int}:
        for field in fields(config_class):
            if "None" in str(field.type):
                assert field.default in (None, MISSING), field


def test_a_none_that_toml_cannot_express_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class OddConfig(BonusConfig):
        limit: int | None = 3

    monkeypatch.setattr(BONUSES, "_parts", dict(BONUSES._parts))
    BONUSES.register("odd", OddConfig)(lambda config, context: None)  # noqa: ARG005
    config = replace(make_config(TASK, method="sac+odd"), bonus=OddConfig(limit=None))
    with pytest.raises(ValueError, match=r"TOML cannot express bonus\.limit=None: expected a value\. Use JSON"):
        format_toml(config)


def test_a_file_may_hold_some_settings_only(tmp_path: Path) -> None:
    text = '[agent]\nname = "sac"\nlr = 0.5\n'
    (tmp_path / "config.toml").write_text(text)
    config = read_config_file(tmp_path / "config.toml", task=TASK, seed=3)
    assert (config.task, config.seed, config.agent) == (TASK, 3, AGENTS["sac"].config(lr=0.5))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.toml", "seed = 3", "missing setting task"),
        ("config.toml", "seed = ", "Invalid value"),
        ("config.toml", 'task = "a"\nseed = 1979-05-27', "seed must be int, got datetime.date"),
        ("config.toml", 'task = "a"\n[bonus]\nname = "nope"', "unknown bonus 'nope'"),
        ("config.json", '{"seed": 3}', "missing setting task"),
        ("config.json", "[]", "expected an object, got list"),
        ("config.json", '{"task": "a", "replay": {"batch_size": 0}}', "replay.batch_size: expected at least 1, got 0"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name_once(name: str, text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as exc_info:
        read_config_file(file)
    assert str(exc_info.value).count(str(file)) == 1
    assert str(exc_info.value).startswith(f"{file}: ")


def test_a_run_directory_reads_its_config_the_same_way(tmp_path: Path) -> None:
    config = make_config(TASK, method="ppo+ride")
    RunDir(tmp_path).initialize(config, {})
    assert RunDir(tmp_path).read_config() == config == read_config_file(tmp_path / "config.json")


def test_descriptions_are_the_docstrings_below_fields_of_a_class_and_its_bases() -> None:
    @dataclass
    class Base:
        """A base.

        More of it.
        """

        first: int = 1
        """First
        line."""
        second: int = 2

    @dataclass
    class Derived(Base):
        third: int = 3
        """Third."""
        first: int = 4
        """Other first."""

    assert read_field_docs(Base) == {"first": "First line."}
    assert read_field_docs(Derived) == {"first": "Other first.", "third": "Third."}
    assert (read_class_doc(Base), read_class_doc(Derived)) == ("A base.", "")


def test_a_class_without_source_has_no_descriptions() -> None:
    namespace: dict[str, Any] = {"dataclass": dataclass, "__name__": "nowhere"}
    exec("@dataclass\nclass Config:\n    k: int = 1\n    'A count.'", namespace)
    assert read_field_docs(namespace["Config"]) == {}


def test_every_setting_has_a_description() -> None:
    parts = [config for registry in (AGENTS, REPRESENTATIONS, BONUSES) for config in registry.iter_configs()]
    config = make_config(TASK, method="drqv2+pixel+mem")
    groups = [type(getattr(config, name)) for name in ("env", "schedule", "replay", "rollout", "evaluation", "logging")]
    for config_class in (*parts, *groups, type(config.compute), type(config.scale), type(config.bonus.encoder)):
        assert {field.name for field in fields(config_class)} == read_field_docs(config_class).keys() & {
            field.name for field in fields(config_class)
        }, config_class
        assert read_class_doc(config_class), config_class


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.toml does not exist: expected a TOML or JSON file"):
        read_config_file(tmp_path / "nothing.toml")


def test_a_removed_setting_without_an_effect_is_dropped_and_any_other_refused(tmp_path: Path) -> None:
    config = load_preset("minute", task=TASK, method="sac+none", seed=1)
    plain = to_plain(config)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(plain | {"agent": plain["agent"] | {"critic": "scalar", "noise_color": "white"}}))
    assert read_config_file(file) == config
    file.write_text(json.dumps(plain | {"agent": plain["agent"] | {"critic": "two_hot"}}))
    with pytest.raises(ValueError, match=r"unknown setting agent\.critic"):
        read_config_file(file)
