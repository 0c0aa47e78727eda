"""What the table [search] of a sweep means: settings to be chosen, trial by trial. Nothing here needs Ray or Optuna.

[search]
trials = 20

[search.fields]
"bonus.beta0" = { low = 0.001, high = 1.0, log = true }
"mem.k" = { low = 1, high = 10 }                          # whole numbers, since both ends are
"mem.entropy" = ["joint", "marginal"]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from math import floor, log10, prod
from pathlib import Path
from typing import Any

from manyview.report.runs import BrokenRunError, read_config

Values = Mapping[str, Any]
SIGNIFICANT_DIGITS = 4
"""Of a number that was chosen: it is part of a folder's name."""
MAX_CHECKED_CORNERS = 256
"""Combinations of the ends of all fields, at most, that are checked before anything begins."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """From one number to another, both included."""

    low: float
    high: float
    log: bool = False
    """By factors instead of differences."""

    def __post_init__(self) -> None:
        numbers = all(type(end) in (int, float) for end in (self.low, self.high))
        if not numbers or not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"a range goes from low to high, with log from more than 0; got {self.low!r} and {self.high!r}"
            )

    @property
    def is_integer(self) -> bool:
        return type(self.low) is int and type(self.high) is int

    def round_value(self, value: float) -> float:
        """With so many digits that it can be written down, and still inside."""
        if self.is_integer or not value:
            return value
        return float(min(max(round(value, SIGNIFICANT_DIGITS - 1 - floor(log10(abs(value)))), self.low), self.high))


SearchField = Range | tuple[Any, ...]
"""A range, or what there is to choose from."""


@dataclass(frozen=True, kw_only=True)
class Search:
    trials: int
    fields: Mapping[str, SearchField]

    def __post_init__(self) -> None:
        if type(self.trials) is not int or self.trials < 1 or not self.fields:
            raise ValueError("a search has a number of trials, and fields to choose values for")
        choices = [_count_choices(field) for field in self.fields.values()]
        if None not in choices and self.trials > (max_trials := prod(count for count in choices if count)):
            raise ValueError(f"a search of {self.trials} trials, and there are {max_trials} combinations of its fields")

    def iter_corners(self) -> Iterator[Values]:
        """Settings from which an error in any field shows."""
        ends = product(*(_list_endpoints(field) for field in self.fields.values()))
        return (dict(zip(self.fields, values, strict=True)) for values in islice(ends, MAX_CHECKED_CORNERS))

    def round_values(self, values: Values) -> dict[str, Any]:
        return {
            name: field.round_value(values[name]) if isinstance(field, Range) else values[name]
            for name, field in self.fields.items()
        }

    def find_tried(self, directory: Path) -> list[Values]:
        """What the runs below a folder were tried with, one folder for each choice of values."""
        tried: list[Values] = []
        for config_file in sorted(directory.glob("*/*/config.json")):
            try:
                config = read_config(config_file.parent)
                values = {
                    name: _validate_choice(field, _get_nested(config, name)) for name, field in self.fields.items()
                }
            except (BrokenRunError, KeyError, TypeError, ValueError):
                continue
            if format_directory_name(values) == config_file.parent.parent.name and values not in tried:
                tried.append(values)
        return tried


def parse_search(plain: Any) -> Search:
    """Of a file's table."""
    if (
        not isinstance(plain, Mapping)
        or plain.keys() != {"trials", "fields"}
        or not isinstance(plain["fields"], Mapping)
    ):
        raise ValueError("search has `trials` and a table `fields`, and nothing else")
    return Search(
        trials=plain["trials"], fields={name: _parse_field(name, field) for name, field in plain["fields"].items()}
    )


def format_directory_name(values: Values) -> str:
    """Which is part of a path, so nothing in it may end a folder's name."""
    return ",".join(f"{name}={value}" for name, value in values.items()).replace("/", "-")


def _parse_field(name: str, plain: Any) -> SearchField:
    if isinstance(plain, list) and plain:
        return tuple(plain)
    if isinstance(plain, Mapping) and {"low", "high"} <= plain.keys() <= {"low", "high", "log"}:
        return Range(**plain)
    raise ValueError(f"search.fields: {name} must be a list of values, or have low and high, got {plain!r}")


def _count_choices(field: SearchField) -> int | None:
    """How many; None for a continuum."""
    if not isinstance(field, Range):
        return len(field)
    return int(field.high - field.low) + 1 if field.is_integer else None


def _list_endpoints(field: SearchField) -> tuple[Any, ...]:
    return (field.low, field.high) if isinstance(field, Range) else field


def _validate_choice(field: SearchField, value: Any) -> Any:
    """As the file writes it, 1 for 1.0; ValueError if it would not be chosen any more."""
    if not isinstance(field, Range):
        return field[field.index(value)]
    if not field.low <= value <= field.high:
        raise ValueError(f"{value} is not from {field.low} to {field.high}")
    return int(value) if field.is_integer else value


def _get_nested(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name]
    return config
