"""The tables of presets in docs/reference/settings.md show what each preset changes, by agent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from manyview.config.overrides import to_plain
from manyview.config.presets import BUILT_IN_PRESETS, load_preset, make_config
from tools.docs_reference import PRESET_TABLES, PresetTable, flatten

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
each_table = pytest.mark.parametrize("table", PRESET_TABLES, ids=lambda table: table.region)


def read_rows(table: PresetTable) -> dict[str, dict[str, Any]]:
    """Return the values that the page shows, by column and setting; an empty cell is the default."""
    lines = PAGE.read_text().splitlines()
    head = lines.index(f"<!-- generated: {table.region} -->") + 1
    columns = [cell.strip(" `") for cell in lines[head].strip("|").split("|")][1:]
    rows: dict[str, dict[str, Any]] = {column: {} for column in columns}
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for column, cell in zip(columns, cells, strict=True):
            rows[column] |= dict.fromkeys(re.findall("`([^`]+)`", names), read_cell(cell or cells[0]))
    return rows


def read_cell(cell: str) -> Any:
    """Return the value of a non-empty cell."""
    if cell[0].isdigit():
        return json.loads(cell.replace(",", ""))
    return json.loads(cell) if cell[0] == "[" or cell in ("true", "false", "null") else cell


def load_settings(table: PresetTable, preset: str) -> dict[str, Any]:
    """Return the settings of a run by dotted name, without those that have no effect."""
    if preset == "default":
        config = make_config(table.task, method=table.method)
    else:
        config = load_preset(preset, task=table.task, method=table.method, seed=1)
    return {n: value for n, value in flatten(to_plain(config)) if not n.startswith((*table.unused, "preset"))}


def test_every_preset_is_in_a_table() -> None:
    files = set(BUILT_IN_PRESETS)
    assert {preset for table in PRESET_TABLES for preset in table.presets} == files


@each_table
def test_the_table_shows_the_values_of_every_preset(table: PresetTable) -> None:
    rows = read_rows(table)
    assert list(rows) == ["default", *table.presets]
    for preset, values in rows.items():
        settings = load_settings(table, preset)
        assert values == {name: settings.get(name, "no such setting") for name in values}, preset


@each_table
def test_every_setting_that_a_preset_changes_is_in_the_table(table: PresetTable) -> None:
    default, *presets = (load_settings(table, preset) for preset in ("default", *table.presets))
    changed_settings = {name for name in default if any(preset[name] != default[name] for preset in presets)}
    assert changed_settings == set(read_rows(table)["default"])
