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
DIGITS = 4
"""Of a number that was chosen: it is part of a folder's name."""
CHECKED = 256
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
    def whole(self) -> bool:
        return type(self.low) is int and type(self.high) is int

    def rounded(self, value: float) -> float:
        """With so many digits that it can be written down, and still inside."""
        if self.whole or not value:
            return value
        return float(min(max(round(value, DIGITS - 1 - floor(log10(abs(value)))), self.low), self.high))


Field = Range | tuple[Any, ...]
"""A range, or what there is to choose from."""


@dataclass(frozen=True, kw_only=True)
class Search:
    trials: int
    fields: Mapping[str, Field]

    def __post_init__(self) -> None:
        if type(self.trials) is not int or self.trials < 1 or not self.fields:
            raise ValueError("a search has a number of trials, and fields to choose values for")
        choices = [_choices(field) for field in self.fields.values()]
        if None not in choices and self.trials > (most := prod(count for count in choices if count)):
            raise ValueError(f"a search of {self.trials} trials, and there are {most} combinations of its fields")

    def corners(self) -> Iterator[Values]:
        """Settings from which an error in any field shows."""
        ends = product(*(_ends(field) for field in self.fields.values()))
        return (dict(zip(self.fields, values, strict=True)) for values in islice(ends, CHECKED))

    def rounded(self, values: Values) -> dict[str, Any]:
        return {
            name: field.rounded(values[name]) if isinstance(field, Range) else values[name]
            for name, field in self.fields.items()
        }

    def tried(self, folder: Path) -> list[Values]:
        """What the runs below a folder were tried with, one folder for each choice of values."""
        found: list[Values] = []
        for config_file in sorted(folder.glob("*/*/config.json")):
            try:
                config = read_config(config_file.parent)
                values = {name: _chosen(field, _inside(config, name)) for name, field in self.fields.items()}
            except (BrokenRunError, KeyError, TypeError, ValueError):
                continue
            if folder_of(values) == config_file.parent.parent.name and values not in found:
                found.append(values)
        return found


def search_of(plain: Any) -> Search:
    """Of a file's table."""
    if (
        not isinstance(plain, Mapping)
        or plain.keys() != {"trials", "fields"}
        or not isinstance(plain["fields"], Mapping)
    ):
        raise ValueError("search has `trials` and a table `fields`, and nothing else")
    return Search(trials=plain["trials"], fields={name: _field(name, field) for name, field in plain["fields"].items()})


def folder_of(values: Values) -> str:
    """Which is part of a path, so nothing in it may end a folder's name."""
    return ",".join(f"{name}={value}" for name, value in values.items()).replace("/", "-")


def _field(name: str, plain: Any) -> Field:
    if isinstance(plain, list) and plain:
        return tuple(plain)
    if isinstance(plain, Mapping) and {"low", "high"} <= plain.keys() <= {"low", "high", "log"}:
        return Range(**plain)
    raise ValueError(f"search.fields: {name} must be a list of values, or have low and high, got {plain!r}")


def _choices(field: Field) -> int | None:
    """How many; None for a continuum."""
    if not isinstance(field, Range):
        return len(field)
    return int(field.high - field.low) + 1 if field.whole else None


def _ends(field: Field) -> tuple[Any, ...]:
    return (field.low, field.high) if isinstance(field, Range) else field


def _chosen(field: Field, value: Any) -> Any:
    """As the file writes it, 1 for 1.0; ValueError if it would not be chosen any more."""
    if not isinstance(field, Range):
        return field[field.index(value)]
    if not field.low <= value <= field.high:
        raise ValueError(f"{value} is not from {field.low} to {field.high}")
    return int(value) if field.whole else value


def _inside(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name]
    return config
