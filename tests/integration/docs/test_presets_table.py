"""The tables of presets in docs/training.md are the presets: of off-policy agents, and of PPO."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from manyview.config.overrides import to_plain
from manyview.train import PRESETS, load_preset

PAGE = Path(__file__).parents[3] / "docs" / "training.md"
LEFT_OPEN = {"task's", "torch's"}


# Of each table: the presets, and a run that is made with them.
TABLES = [
    (["paper/dmc/drqv2", "paper/dmc/sac", "cpu", "minute"], ("dmc/cheetah_run", "drqv2+mem")),
    (["paper/procgen/ppo", "cpu", "minute"], ("procgen/bigfish", "ppo+mem")),
]
either = pytest.mark.parametrize("number", [0, 1], ids=["off-policy", "ppo"])


def table(number: int) -> dict[str, dict[str, Any]]:
    """Of each preset, the settings that the page shows and their values."""
    lines = PAGE.read_text().splitlines()
    head = [place for place, line in enumerate(lines) if line.startswith("| setting | `")][number]
    presets = re.findall("`([^`]+)`", lines[head])
    shown: dict[str, dict[str, Any]] = {preset: {} for preset in presets}
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        names, *values = (cell.strip() for cell in line.strip("|").split("|"))
        for preset, value in zip(presets, values, strict=True):
            shown[preset] |= dict.fromkeys(re.findall("`([^`]+)`", names), read(value))
    return shown


def read(cell: str) -> Any:
    if cell in LEFT_OPEN:
        return None
    return json.loads(cell.replace(",", "")) if cell[0].isdigit() or cell in ("true", "false") else cell


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def settings(preset: str, number: int) -> dict[str, Any]:
    """All that such a run uses: the other kind of agent has settings of its own."""
    task, method = TABLES[number][1]
    config = load_preset(preset, task=task, method=method, seed=1)
    unused = ("preset", *(NOT_OFF_POLICY, NOT_ON_POLICY)[number])
    return {name: value for name, value in flat(to_plain(config)) if not name.startswith(unused)}


NOT_OFF_POLICY = ("rollout.", "ppo.", "ride.", "env.further_view")
NOT_ON_POLICY = ("replay.", "drqv2.", "sac.", "schedule.random", "schedule.seed", "schedule.update", "log.every_steps")


def test_every_preset_is_in_a_table() -> None:
    assert {preset for presets, _ in TABLES for preset in presets} == set(PRESETS)


@either
def test_the_table_shows_the_values_of_every_preset(number: int) -> None:
    shown = table(number)
    assert list(shown) == TABLES[number][0]
    for preset, values in shown.items():
        there = settings(preset, number)
        assert values == {name: there.get(name, "no such setting") for name in values}, preset


@either
def test_every_setting_in_which_presets_differ_is_in_the_table(number: int) -> None:
    every = [settings(preset, number) for preset in TABLES[number][0]]
    differ = {name for name in every[0] if any(other[name] != every[0][name] for other in every)}
    assert differ == set(table(number)[TABLES[number][0][0]])
