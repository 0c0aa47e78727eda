"""Config trees: changed, saved and read back."""

import json
from typing import Any

import pytest

from manyview.config.overrides import apply_overrides, from_plain, merge_overrides, nest_overrides, to_plain
from manyview.train import RunConfig
from tests.support.runs import short_run


def test_a_config_comes_back_from_json() -> None:
    config = apply_overrides(short_run("sac+curl"), {"env": {"views": ("row", "column")}})
    assert from_plain(RunConfig, json.loads(json.dumps(to_plain(config)))) == config


def test_changes_reach_branches_and_leave_the_rest() -> None:
    config = short_run()
    other = apply_overrides(config, nest_overrides([("replay.n_step", 2), ("replay.discount", 0.5), ("seed", 9)]))
    assert (other.replay.n_step, other.replay.discount, other.seed) == (2, 0.5, 9)
    assert other.replay.batch_size == config.replay.batch_size
    assert other.mem == config.mem


def test_the_second_of_two_changes_wins_where_they_meet() -> None:
    assert merge_overrides({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"replay": {"batchsize": 3}}, "unknown setting replay.batchsize: expected one of batch_size"),
        ({"replay": 3}, "invalid replay: expected a group of settings, got 3"),
        ({"seed": {"a": 3}}, "invalid seed: expected a single value, got {'a': 3}"),
    ],
)
def test_what_is_not_there_cannot_be_changed(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        apply_overrides(short_run(), changes)


@pytest.mark.parametrize(
    ("branch", "name", "value"),
    [
        ("replay", "batch_size", "many"),
        ("replay", "batch_size", 2.5),
        ("replay", "batch_size", True),
        ("replay", "batch_size", None),
        ("mem", "trunk", "huge"),
        ("env", "views", "row"),
        ("machine", "precision", "float16"),
    ],
)
def test_values_of_a_wrong_type_are_named(branch: str, name: str, value: object) -> None:
    plain = to_plain(short_run())
    plain[branch][name] = value
    with pytest.raises(ValueError, match=f"{branch}.{name} must be"):
        from_plain(RunConfig, plain)


def test_a_whole_number_may_be_written_as_1e6() -> None:
    assert apply_overrides(short_run(), {"schedule": {"frames": 1e6}}).schedule.frames == 1_000_000


def test_settings_of_another_version_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown setting replay\.colour: not defined in this version"):
        from_plain(RunConfig, merge_overrides(to_plain(short_run()), {"replay": {"colour": 1}}))
