"""Search spaces of a sweep, from its table [search]. Needs neither Ray nor Optuna.

[search]
trials = 20

[search.fields]
"bonus.beta0" = { low = 0.001, high = 1.0, log = true }
"bonus.k" = { low = 1, high = 10 }                          # integers, since both ends are
"bonus.entropy" = ["joint", "marginal"]
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
"""Digits of a suggested number, which becomes part of a directory name."""
MAX_CHECKED_CORNERS = 256
"""Limit of combinations of field ends that are validated before the search starts."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Range of numbers, both ends included."""

    low: float
    high: float
    log: bool = False
    """Sample on a logarithmic scale."""

    def __post_init__(self) -> None:
        numbers = all(type(end) in (int, float) for end in (self.low, self.high))
        if not numbers or not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(
                "invalid range: expected numbers with low < high, and low > 0 with log, got "
                f"{self.low!r} and {self.high!r}"
            )

    @property
    def is_integer(self) -> bool:
        return type(self.low) is int and type(self.high) is int

    def round_value(self, value: float) -> float:
        """Round to `SIGNIFICANT_DIGITS` within the range; integers stay as they are."""
        if self.is_integer or not value:
            return value
        return float(min(max(round(value, SIGNIFICANT_DIGITS - 1 - floor(log10(abs(value)))), self.low), self.high))


SearchField = Range | tuple[Any, ...]
"""Range of numbers, or a list of choices."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Search space: number of trials, and a field per setting."""

    trials: int
    fields: Mapping[str, SearchField]
    """Search fields by dotted name of the setting."""

    def __post_init__(self) -> None:
        if type(self.trials) is not int or self.trials < 1 or not self.fields:
            raise ValueError(
                f"invalid search: expected at least 1 trial and 1 field, got trials {self.trials!r} and "
                f"{len(self.fields)} fields"
            )
        choices = [_count_choices(field) for field in self.fields.values()]
        if None not in choices and self.trials > (max_trials := prod(count for count in choices if count)):
            raise ValueError(
                f"too many trials: expected at most {max_trials}, the combinations of all fields, got {self.trials}"
            )

    def iter_corners(self) -> Iterator[Values]:
        """Yield combinations of field ends, which reveal invalid values of any field."""
        ends = product(*(_list_endpoints(field) for field in self.fields.values()))
        return (dict(zip(self.fields, values, strict=True)) for values in islice(ends, MAX_CHECKED_CORNERS))

    def round_values(self, values: Values) -> dict[str, Any]:
        """Round the numbers of ranges, see `Range.round_value`."""
        return {
            name: field.round_value(values[name]) if isinstance(field, Range) else values[name]
            for name, field in self.fields.items()
        }

    def find_tried(self, directory: Path) -> list[Values]:
        """Return the values of the trials below a directory, one subdirectory per trial."""
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
    """Parse the table [search] of a sweep file.

    Raises:
        ValueError: The table is invalid.

    """
    if (
        not isinstance(plain, Mapping)
        or plain.keys() != {"trials", "fields"}
        or not isinstance(plain["fields"], Mapping)
    ):
        raise ValueError(f"invalid search: expected only `trials` and a table `fields`, got {plain!r}")
    return Search(
        trials=plain["trials"], fields={name: _parse_field(name, field) for name, field in plain["fields"].items()}
    )


def format_directory_name(values: Values) -> str:
    """Return the directory name of a trial, without path separators."""
    return ",".join(f"{name}={value}" for name, value in values.items()).replace("/", "-")


def _parse_field(name: str, plain: Any) -> SearchField:
    if isinstance(plain, list) and plain:
        return tuple(plain)
    if isinstance(plain, Mapping) and {"low", "high"} <= plain.keys() <= {"low", "high", "log"}:
        return Range(**plain)
    raise ValueError(f"search.fields: {name} must be a list of values, or a table with low and high, got {plain!r}")


def _count_choices(field: SearchField) -> int | None:
    """Return the number of choices of a field, None for a continuous range."""
    if not isinstance(field, Range):
        return len(field)
    return int(field.high - field.low) + 1 if field.is_integer else None


def _list_endpoints(field: SearchField) -> tuple[Any, ...]:
    return (field.low, field.high) if isinstance(field, Range) else field


def _validate_choice(field: SearchField, value: Any) -> Any:
    """Return the value as the sweep file writes it (1 for 1.0); raise `ValueError` if it is outside of the field."""
    if not isinstance(field, Range):
        return field[field.index(value)]
    if not field.low <= value <= field.high:
        raise ValueError(f"value is out of range: expected {field.low} to {field.high}, got {value}")
    return int(value) if field.is_integer else value


def _get_nested(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name]
    return config
