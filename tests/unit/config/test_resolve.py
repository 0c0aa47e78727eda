"""Configs resolved from a preset or a file, names of parts and assignments."""

from pathlib import Path
from typing import Any

import pytest

from manyview.config.files import format_toml
from manyview.config.overrides import apply_overrides
from manyview.config.presets import load_preset
from manyview.config.resolve import resolve_config
from manyview.methods import OwnEncoderConfig

TASK = "toy/hidden_goal_continuous"


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """Return a config file whose method and settings are not the defaults."""
    path = tmp_path / "config.toml"
    config = load_preset("minute", task="dmc/walker_walk", method="sac+curl+re3", seed=7)
    path.write_text(format_toml(apply_overrides(config, {"bonus": {"k": 11}, "agent": {"lr": 0.5}})))
    return path


@pytest.mark.parametrize(
    ("arguments", "method"),
    [
        ({}, "drqv2+mem"),
        ({"agent": "sac"}, "sac+mem"),
        ({"bonus": "re3"}, "drqv2+mem+re3"),
        ({"representation": "pixel"}, "drqv2+pixel+mem"),
        ({"method": "sac+curl"}, "sac+curl"),
        ({"method": "sac+curl", "bonus": "re3"}, "sac+curl+re3"),
        ({"method": "sac+mem", "representation": "pixel", "agent": "ppo"}, "ppo+pixel+mem"),
        ({"assignments": ["bonus.name=re3"]}, "drqv2+mem+re3"),
        ({"method": "sac+mem", "assignments": ["bonus.name=none", "agent.name=drqv2"]}, "drqv2+mem+none"),
    ],
)
def test_parts_are_chosen_together_or_one_by_one(arguments: dict[str, Any], method: str) -> None:
    config = resolve_config(TASK, **arguments)
    assert config == load_preset("minute", task=TASK, method=method, seed=1)  # with the preset's settings of the parts
    assert config.method == method


@pytest.mark.parametrize(
    ("arguments", "method"),
    [
        ({}, "sac+curl+re3"),
        ({"bonus": "none"}, "sac+curl"),
        ({"agent": "drqv2"}, "drqv2+curl+re3"),
        ({"method": "sac+mem", "bonus": "re3"}, "sac+mem+re3"),
        ({"assignments": ["bonus.name=mem"]}, "sac+curl+mem"),
    ],
)
def test_parts_of_a_file_stay_unless_they_are_replaced(
    arguments: dict[str, Any], method: str, config_file: Path
) -> None:
    config = resolve_config(None, file=config_file, **arguments)
    assert (config.method, config.task, config.seed) == (method, "dmc/walker_walk", 7)
    if config.bonus_name == "re3":
        assert config.bonus.k == 11
    if config.agent_name == "sac":
        assert config.agent.lr == 0.5
    if config.bonus_name == "mem":
        assert config.bonus.encoder == OwnEncoderConfig()


def test_task_seed_and_settings_replace_those_of_a_file(config_file: Path) -> None:
    config = resolve_config(TASK, file=config_file, seed=0, assignments=["bonus.k=3"], overrides={"bonus": {"k": 4}})
    assert (config.task, config.seed, config.bonus.k, config.agent.lr) == (TASK, 0, 4, 0.5)


def test_the_last_of_several_assignments_wins() -> None:
    config = resolve_config(TASK, assignments=["replay.n_step=2", "replay.n_step=3", "replay.batch_size=4"])
    assert (config.replay.n_step, config.replay.batch_size) == (3, 4)


@pytest.mark.parametrize(("device", "preset"), [("cpu", "cpu"), ("cuda", "paper/dmc/sac")])
def test_the_preset_depends_on_the_device_that_is_asked_for(
    device: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    assert resolve_config("dmc/walker_walk", agent="sac", assignments=[f"compute.device={device}"]).preset == preset


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("bonus=3", "invalid bonus: expected a group of settings, got 3"),
        ("compute=cpu", "invalid compute: expected a group of settings, got 'cpu'"),
        ("bonus.name=nope", "unknown bonus 'nope'"),
        ("bonus.name=3", "unknown bonus '3'"),
        ("replay", "invalid assignment of --set: expected NAME=VALUE"),
    ],
)
def test_an_invalid_assignment_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_config(TASK, assignments=[assignment])
