"""Overrides of configs, and their conversion to plain values and back."""

import json
from typing import Any

import pytest

from manyview.config.overrides import (
    apply_overrides,
    check_overrides,
    from_plain,
    merge_overrides,
    nest_overrides,
    to_plain,
)
from manyview.methods import MEMBonusConfig, RE3Config
from manyview.training import RunConfig
from manyview.utils.validation import SettingError
from tests.support.runs import make_short_config


def test_a_config_survives_a_round_trip_through_json() -> None:
    config = apply_overrides(make_short_config("sac+curl"), {"env": {"views": ("row", "column")}})
    assert from_plain(RunConfig, json.loads(json.dumps(to_plain(config)))) == config


def test_overrides_change_only_the_named_settings() -> None:
    config = make_short_config()
    changed_config = apply_overrides(
        config, nest_overrides([("replay.n_step", 2), ("replay.discount", 0.5), ("seed", 9)])
    )
    assert (changed_config.replay.n_step, changed_config.replay.discount, changed_config.seed) == (2, 0.5, 9)
    assert changed_config.replay.batch_size == config.replay.batch_size
    assert (changed_config.agent, changed_config.bonus) == (config.agent, config.bonus)


def test_the_later_override_of_a_setting_wins() -> None:
    assert merge_overrides({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay": {"batchsize": 3}}, r"unknown setting replay.batchsize: .*did you mean replay.batch_size\?"),
        ({"bonus": {"margin": 3}}, "unknown setting bonus.margin: expected one of "),
        ({"agent": {"name": "dqn"}}, "unknown agent 'dqn': expected one of drqv2, ppo, sac"),
        ({"bonus": {"name": 3}}, "unknown bonus '3'"),
        ({"bonus": "re3"}, "invalid bonus: expected a group of settings, got 're3'"),
        ({"replay": 3}, "invalid replay: expected a group of settings, got 3"),
        ({"seed": {"a": 3}}, "seed must be int, got {'a': 3}"),
    ],
)
def test_unknown_settings_and_parts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_overrides(make_short_config(), changes)


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("replay", "batch_size", "many"),
        ("replay", "batch_size", 2.5),
        ("replay", "batch_size", True),
        ("replay", "batch_size", None),
        ("representation", "trunk", "huge"),
        ("env", "views", 1.5),
        ("env", "views", ["row", None]),
        ("env", "views", ["row", ["column"]]),
        ("env", "views", [True]),
        ("compute", "precision", "float16"),
    ],
)
def test_values_of_a_wrong_type_are_named(group: str, name: str, value: object) -> None:
    plain = to_plain(make_short_config())
    plain[group][name] = value
    with pytest.raises(ValueError, match=f"{group}.{name} must be"):
        from_plain(RunConfig, plain)


def test_a_whole_number_may_be_written_as_1e6() -> None:
    assert apply_overrides(make_short_config(), {"schedule": {"frames": 1e6}}).schedule.frames == 1_000_000


@pytest.mark.parametrize("views", ["row", ["row"], ("row",)])
def test_a_single_view_needs_no_list(views: object) -> None:
    assert apply_overrides(make_short_config(), {"env": {"views": views}}).env.views == ("row",)


def test_cameras_may_be_numbers() -> None:
    assert apply_overrides(make_short_config(), {"env": {"views": [0, "side"]}}).env.views == ("0", "side")
    assert apply_overrides(make_short_config(), {"env": {"views": 3}}).env.views == ("3",)


def test_settings_of_another_version_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown setting replay\.colour: expected one of augmentation, "):
        from_plain(RunConfig, merge_overrides(to_plain(make_short_config()), {"replay": {"colour": 1}}))


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ValueError, match="missing setting task: expected a value, got none"):
        from_plain(RunConfig, {"seed": 3})


@pytest.mark.parametrize("part", [3, {}, {"name": None}, {"k": 3}])
def test_the_plain_form_of_a_part_needs_its_name(part: object) -> None:
    with pytest.raises(ValueError, match="invalid bonus: expected the settings of a bonus with its name, got "):
        from_plain(RunConfig, {**to_plain(make_short_config()), "bonus": part})


def test_a_name_selects_a_part_with_its_defaults() -> None:
    config = apply_overrides(make_short_config("sac+mem"), {"bonus": {"name": "re3", "k": 9}})
    assert config.bonus == RE3Config(k=9)
    assert config.method == "sac+mem+re3"
    assert config.representation == make_short_config("sac+mem").representation


def test_the_name_of_the_present_part_keeps_its_settings() -> None:
    config = apply_overrides(make_short_config("sac+re3"), {"bonus": {"k": 9}})
    assert apply_overrides(config, {"bonus": {"name": "re3", "beta0": 0.5}}).bonus.k == 9


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"replay": {"batch_size": 0}}, "replay.batch_size: expected at least 1, got 0"),
        ({"agent": {"lr": -1}}, "agent.lr: expected more than 0, got -1"),
        ({"bonus": {"encoder": {"lr": 0}}}, "bonus.encoder.lr: expected more than 0, got 0"),
    ],
)
def test_an_invalid_value_is_named_with_its_group(overrides: dict[str, Any], message: str) -> None:
    config = make_short_config("drqv2+pixel+mem")
    with pytest.raises(SettingError, match=message):
        apply_overrides(config, overrides)
    with pytest.raises(SettingError, match=message):
        from_plain(RunConfig, merge_overrides(to_plain(config), overrides))


def test_overrides_are_checked_without_a_config() -> None:
    check_overrides(MEMBonusConfig, {"k": 3, "encoder": {"lr": 1e-3}})
    for overrides, message in (
        ({"encoder": {"lrr": 3}}, r"unknown setting x\.encoder\.lrr"),
        ({"encoder": 3}, r"invalid x\.encoder: expected a group"),
        ({"encoder": {"lr": "a"}}, r"x\.encoder\.lr must be float"),
        ({"k": [3]}, r"x\.k must be int"),
    ):
        with pytest.raises(ValueError, match=message):
            check_overrides(MEMBonusConfig, overrides, path="x.")
