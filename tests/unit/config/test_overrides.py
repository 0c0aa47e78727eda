"""Config trees: changed, saved and read back."""

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


def test_a_config_comes_back_from_json() -> None:
    config = apply_overrides(make_short_config("sac+curl"), {"env": {"views": ("row", "column")}})
    assert from_plain(RunConfig, json.loads(json.dumps(to_plain(config)))) == config


def test_changes_reach_branches_and_leave_the_rest() -> None:
    config = make_short_config()
    other = apply_overrides(config, nest_overrides([("replay.n_step", 2), ("replay.discount", 0.5), ("seed", 9)]))
    assert (other.replay.n_step, other.replay.discount, other.seed) == (2, 0.5, 9)
    assert other.replay.batch_size == config.replay.batch_size
    assert (other.agent, other.bonus) == (config.agent, config.bonus)


def test_the_second_of_two_changes_wins_where_they_meet() -> None:
    assert merge_overrides({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}


@pytest.mark.parametrize(
    ("changes", "says"),
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
def test_what_is_not_there_cannot_be_changed(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        apply_overrides(make_short_config(), changes)


@pytest.mark.parametrize(
    ("branch", "name", "value"),
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
def test_values_of_a_wrong_type_are_named(branch: str, name: str, value: object) -> None:
    plain = to_plain(make_short_config())
    plain[branch][name] = value
    with pytest.raises(ValueError, match=f"{branch}.{name} must be"):
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
def test_the_plain_form_of_a_part_has_its_name(part: object) -> None:
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
    ("overrides", "says"),
    [
        ({"replay": {"batch_size": 0}}, "replay.batch_size: expected at least 1, got 0"),
        ({"agent": {"lr": -1}}, "agent.lr: expected more than 0, got -1"),
        ({"bonus": {"encoder": {"lr": 0}}}, "bonus.encoder.lr: expected more than 0, got 0"),
    ],
)
def test_an_invalid_value_is_named_with_its_group(overrides: dict[str, Any], says: str) -> None:
    config = make_short_config("drqv2+pixel+mem")
    with pytest.raises(SettingError, match=says):
        apply_overrides(config, overrides)
    with pytest.raises(SettingError, match=says):
        from_plain(RunConfig, merge_overrides(to_plain(config), overrides))


def test_overrides_are_checked_without_a_config() -> None:
    check_overrides(MEMBonusConfig, {"k": 3, "encoder": {"lr": 1e-3}})
    for overrides, says in (
        ({"encoder": {"lrr": 3}}, r"unknown setting x\.encoder\.lrr"),
        ({"encoder": 3}, r"invalid x\.encoder: expected a group"),
        ({"encoder": {"lr": "a"}}, r"x\.encoder\.lr must be float"),
        ({"k": [3]}, r"x\.k must be int"),
    ):
        with pytest.raises(ValueError, match=says):
            check_overrides(MEMBonusConfig, overrides, path="x.")
