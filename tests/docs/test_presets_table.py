"""The table of presets in docs/training.md is the presets."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manyview.train import PRESETS, preset_config
from manyview.train.tree import to_plain

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
LEFT_OPEN = {"task's", "torch's"}


def table() -> dict[str, dict[str, Any]]:
    """Of each preset, the settings that the page shows and their values."""
    lines = PAGE.read_text().splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("| setting | `"))
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
    return json.loads(cell.replace(",", "")) if cell[0].isdigit() else cell


def flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def settings(preset: str) -> dict[str, Any]:
    config = preset_config(preset, task="dmc/cheetah_run", method="drqv2+mem", seed=1)
    return {name: value for name, value in flat(to_plain(config)) if name != "preset"}


def test_the_table_shows_the_values_of_every_preset() -> None:
    shown = table()
    assert list(shown) == list(PRESETS)
    for preset, values in shown.items():
        there = settings(preset)
        assert values == {name: there.get(name, "no such setting") for name in values}, preset


def test_every_setting_in_which_presets_differ_is_in_the_table() -> None:
    every = [settings(preset) for preset in PRESETS]
    differ = {name for name in every[0] if any(other[name] != every[0][name] for other in every)}
    assert differ == set(table()[next(iter(PRESETS))])
