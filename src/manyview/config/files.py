"""Config files: reading of JSON and TOML, and TOML with the description of every setting."""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from textwrap import wrap
from typing import Any

from manyview.config.overrides import PlainMapping, from_plain, to_plain
from manyview.config.schema import RunConfig
from manyview.utils.docstrings import read_class_doc, read_field_docs
from manyview.utils.files import read_bounded
from manyview.utils.json_io import MAX_JSON_BYTES, read_json

COMMENT_WIDTH = 98
REMOVED_SETTINGS: dict[str, dict[str, Any]] = {
    "agent": {"critic": "scalar", "noise_color": "white", "std_warmup_steps": 0, "normalize_actor_loss": False},
    "bonus": {"max_rows": None},
}
"""Settings of earlier versions by group, each with the value by which they did what this version does."""


def read_config_file(file: Path, **replacements: Any) -> RunConfig:
    """Read a run config from JSON, as config.json of a run, or TOML; `replacements` win over the file.

    Raises:
        ValueError: The file is invalid; the message names it.
        OSError: The file cannot be read.

    """
    with name_file(file):
        plain = read_toml(file) if file.suffix == ".toml" else read_json(file)
        return from_plain(RunConfig, {**_drop_removed_settings(plain), **replacements})


def _drop_removed_settings(plain: PlainMapping) -> dict[str, Any]:
    """Return a config without removed settings; one with another value stays, and is refused as unknown."""
    kept = dict(plain)
    for name, removed in REMOVED_SETTINGS.items():
        if isinstance(group := plain.get(name), Mapping):
            kept[name] = {key: value for key, value in group.items() if key not in removed or value != removed[key]}
    return kept


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file; `OSError` or `ValueError` if it is invalid."""
    try:
        return tomllib.loads(read_bounded(file, max_bytes=MAX_JSON_BYTES).decode())
    except RecursionError:
        raise ValueError("TOML is nested too deeply") from None


@contextmanager
def name_file(file: Path) -> Iterator[None]:
    """Add the name of a file to errors of its content, and say what was expected if there is no file."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} does not exist: expected a TOML or JSON file with settings") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None


def format_toml(config: RunConfig) -> str:
    """Return a config as TOML that `read_config_file` reads, with the description of every setting.

    Raises:
        ValueError: A setting is None, which TOML cannot express, and its default is another value.

    """
    return "\n".join(_iter_lines(config, to_plain(config))) + "\n"


def _iter_lines(config: Any, plain: PlainMapping, path: str = "") -> Iterator[str]:
    docs, defaults = read_field_docs(type(config)), {field.name: field.default for field in fields(config)}
    groups = {name: value for name, value in plain.items() if isinstance(value, Mapping)}
    for name, value in plain.items():
        if name in groups:
            continue
        if value is None and defaults[name] is not None:
            raise ValueError(f"TOML cannot express {path}{name}=None: expected a value. Use JSON instead")
        yield from _format_comment(docs.get(name, ""))
        yield f"# {name} = None" if value is None else f"{name} = {_format_value(value)}"
    for name, group in groups.items():
        part = getattr(config, name)
        yield ""
        yield from _format_comment(read_class_doc(type(part)))
        yield f"[{path}{name}]"
        yield from _iter_lines(part, group, f"{path}{name}.")


def _format_comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in wrap(text, COMMENT_WIDTH))


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{"".join(map(_escape, value))}"' if isinstance(value, str) else repr(value)


def _escape(char: str) -> str:
    """Return a character of a TOML string; text of a foreign file must not control the terminal."""
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08x}"
