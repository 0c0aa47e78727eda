"""Conversion of setting flags to assignments of `--set`."""

import json

import pytest

from manyview.cli.arguments import convert_setting_flags
from manyview.config.resolve import parse_assignment


@pytest.mark.parametrize(
    ("flags", "assignment"),
    [
        (["--replay.batch-size", "512"], "replay.batch_size=512"),
        (["--replay.batch-size=512"], "replay.batch_size=512"),
        (["--replay.batch_size", "512"], "replay.batch_size=512"),
        (["--bonus.encoder.lr", "1e-4"], "bonus.encoder.lr=1e-4"),
        (["--scale.reward-low", "-1.5"], "scale.reward_low=-1.5"),
        (["--replay.directory", "/data/a b=c"], "replay.directory=/data/a b=c"),
        (["--replay.directory=a=b\nc"], "replay.directory=a=b\nc"),
        (["--replay.directory="], "replay.directory="),
        (["--evaluation.video", "false"], "evaluation.video=false"),
        (["--evaluation.video"], "evaluation.video=true"),
        (["--no-evaluation.video"], "evaluation.video=false"),
        (["--env.views", "front", "side"], 'env.views=["front", "side"]'),
        (["--env.views", "0", "side"], 'env.views=[0, "side"]'),
        (["--env.views", "9" * 5_000, "side"], f'env.views=["{"9" * 5_000}", "side"]'),
    ],
)
def test_a_flag_of_a_setting_is_an_assignment(flags: list[str], assignment: str) -> None:
    other_arguments = ["train", "dmc/hopper_hop"], ["--seed", "3"]
    assert convert_setting_flags([*other_arguments[0], *flags, *other_arguments[1]]) == [
        *other_arguments[0],
        "--set",
        assignment,
        *other_arguments[1],
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "replay.batch_size=3"],
        ["--out", "runs/v1.2"],
        ["--out=runs/v1.2", "--config=a.toml", "--dry-run"],
        ["my.robot:make", "-h"],
        ["--no-evaluation.video=true"],
        ["--replay.", "--.replay", "-replay.capacity"],
    ],
)
def test_other_arguments_stay(arguments: list[str]) -> None:
    assert convert_setting_flags(arguments) == arguments


def test_values_end_at_the_next_option() -> None:
    arguments = ["--env.views", "a", "b", "--replay.n-step", "-h", "--no-logging.wandb", "c", "--env.image-size=8", "d"]
    assert convert_setting_flags(arguments) == [
        *("--set", 'env.views=["a", "b"]', "--set", "replay.n_step=true", "-h"),
        *("--set", "logging.wandb=false", "c", "--set", "env.image_size=8", "d"),
    ]


@pytest.mark.parametrize("value", [3, -2.5, True, None, ["a", 'b"'], "text with spaces", ""])
def test_a_flag_and_set_parse_the_same_value(value: object) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    _, assignment = convert_setting_flags(["--group.name", text])
    assert parse_assignment(assignment) == ("group.name", value)
