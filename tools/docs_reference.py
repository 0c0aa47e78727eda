"""Write the generated regions of docs/reference/commands.md and docs/reference/settings.md.

    python tools/docs_reference.py            # write both pages
    python tools/docs_reference.py --check    # write nothing; exit status 1 if a page is stale

A region starts with `<!-- generated: NAME -->` and ends with `<!-- end generated -->`. Text outside of regions is
written by hand and stays. The output depends on the sources only, not on the terminal or the machine.
"""

import argparse
import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from manyview.cli.main import COMMANDS, load_command
from manyview.config.overrides import to_plain
from manyview.config.presets import BUILT_IN_PRESETS, load_preset, make_config, read_preset
from manyview.config.schema import RunConfig
from manyview.methods import BonusConfig
from manyview.methods.registry import Registry
from manyview.utils.docstrings import read_class_doc, read_field_docs

DOCS = Path(__file__).parents[1] / "docs"
COMMANDS_PAGE, SETTINGS_PAGE = DOCS / "reference" / "commands.md", DOCS / "reference" / "settings.md"
REGION = re.compile(r"<!-- generated: (?P<name>\S+) -->\n.*?<!-- end generated -->", re.S)
TOP_LEVEL = "run"
"""Region of the settings that belong to no group."""
COMMON = {"bonus": BonusConfig}
"""Settings that all parts of a kind share; they are listed once."""


@dataclass(frozen=True)
class PresetTable:
    """Presets that the page compares, resolved for one task and method."""

    region: str
    presets: tuple[str, ...]
    task: str
    method: str
    unused: tuple[str, ...]
    """Prefixes of settings without an effect on such a run."""

    def resolve(self, preset: str) -> dict[str, Any]:
        """Return every setting with an effect by its dotted name."""
        return self._select(load_preset(preset, task=self.task, method=self.method, seed=RunConfig.seed))

    def resolve_defaults(self) -> dict[str, Any]:
        return self._select(make_config(self.task, method=self.method))

    def _select(self, config: RunConfig) -> dict[str, Any]:
        settings = dict(flatten(to_plain(config)))
        for prefix in self.unused:
            if not any(name.startswith(prefix) for name in settings):
                raise ValueError(f"no setting starts with {prefix!r}. Update `unused` of the table {self.region}.")
        return {name: value for name, value in settings.items() if not name.startswith(("preset", *self.unused))}


PRESET_TABLES = (
    *(
        PresetTable(
            region=f"presets-{agent}",
            presets=(f"paper/dmc/{agent}", "cpu", "minute"),
            task="dmc/cheetah_run",
            method=f"{agent}+mem",
            unused=("rollout.", "env.augmented_view"),
        )
        for agent in ("drqv2", "sac")
    ),
    PresetTable(
        region="presets-drqv2-published",
        presets=("drqv2",),
        task="dmc/cheetah_run",
        method="drqv2+none",
        unused=("rollout.", "env.augmented_view"),
    ),
    PresetTable(
        region="presets-deep-sea",
        presets=("deep_sea",),
        task="toy/deep_sea_continuous",
        method="sac+pixel+mem",
        unused=("rollout.", "env.augmented_view"),
    ),
    PresetTable(
        region="presets-dribo",
        presets=("paper/dmc/dribo",),
        task="dmc/cheetah_run",
        method="sac+dribo",
        unused=("rollout.", "env.augmented_view"),
    ),
    PresetTable(
        region="presets-ppo",
        presets=("paper/procgen/ppo", "cpu", "minute"),
        task="procgen/bigfish",
        method="ppo+mem",
        unused=("replay.", "schedule.random", "schedule.seed", "schedule.update", "logging.every_steps"),
    ),
    PresetTable(
        region="presets-ucb-drac",
        presets=("ucb_drac",),
        task="procgen/bigfish",
        method="ppo+ucb_drac",
        unused=("replay.", "schedule.random", "schedule.seed", "schedule.update", "logging.every_steps"),
    ),
)


def render_pages() -> dict[Path, str]:
    """Return the text of both pages as it should be.

    Raises ValueError if a page lacks a region, or has one that nothing writes.
    """
    return {
        COMMANDS_PAGE: fill_regions(COMMANDS_PAGE, render_command_regions()),
        SETTINGS_PAGE: fill_regions(SETTINGS_PAGE, render_setting_regions()),
    }


def fill_regions(page: Path, regions: Mapping[str, str]) -> str:
    text = page.read_text(encoding="utf-8")
    names = [match["name"] for match in REGION.finditer(text)]
    if sorted(names) != sorted(regions):
        raise ValueError(
            f"regions of {page.name} do not match: expected one each of {', '.join(sorted(regions))}, "
            f"got {', '.join(sorted(names))}. Add or remove the lines `<!-- generated: NAME -->` and "
            "`<!-- end generated -->`."
        )

    def fill(match: re.Match[str]) -> str:
        return f"<!-- generated: {match['name']} -->\n{regions[match['name']]}\n<!-- end generated -->"

    return REGION.sub(fill, text)


# Commands.


def render_command_regions() -> dict[str, str]:
    overview = render_table(
        ("command", "purpose"), [(f"[`{name}`](#{name})", escape(text)) for name, text in COMMANDS.items()]
    )
    functions = {name: load_command(name) for name in COMMANDS}
    return {"overview": overview, **{name: render_command(name, run) for name, run in functions.items()}}


def render_command(name: str, function: Callable[..., int]) -> str:
    """Return description, usage and arguments of a subcommand."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro has no other way to list arguments
        parser = tyro.extras.get_parser(function, prog=f"manyview {name}", add_help=False)
    actions = list(parser._actions)
    needed = [action for action in actions if not action.option_strings or action.required]
    optional = [] if len(needed) == len(actions) else ["[OPTIONS]"]
    usage = " ".join(["manyview", name, *map(format_invocation, needed), *optional])
    rows = []
    for action in actions:
        text, default = split_help(action.help or "")
        rows.append((f"`{escape_code(format_invocation(action))}`", default, escape(text)))
    description = "\n".join(escape(line) for line in inspect.cleandoc(function.__doc__ or "").splitlines())
    return f"{description}\n\n```text\n{usage}\n```\n\n{render_table(('argument', 'default', 'meaning'), rows)}"


def format_invocation(action: argparse.Action) -> str:
    """Return an argument as it is typed: `TASK`, `--seed N`, `--fresh`."""
    metavar = action.metavar if isinstance(action.metavar, str) else None
    names = action.option_strings[:1] or ([] if metavar else [action.dest])
    return " ".join([*names, *([metavar] if metavar else [])])


def split_help(text: str) -> tuple[str, str]:
    """Split tyro's help into the text and its default; defaults that say nothing are empty."""
    match = re.fullmatch(r"(?P<text>.*?)\s*(?:\((?P<hint>default: .*|required|repeatable)\))?\s*", text, re.S)
    assert match is not None
    default = (match["hint"] or "").removeprefix("default:").strip()
    if default == "repeatable":
        return f"{match['text']} May be repeated.", ""
    return match["text"], "" if default in ("", "None", "False") else escape(default)


# Settings.


def render_setting_regions() -> dict[str, str]:
    hints = get_type_hints(RunConfig, include_extras=True)
    registries = {name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated}
    groups = [name for name, hint in hints.items() if is_dataclass(hint)]
    top_level = [field for field in fields(RunConfig) if field.name not in (*groups, *registries)]
    built_in = [(name, read_preset(name)) for name in BUILT_IN_PRESETS]
    return {
        TOP_LEVEL: render_settings_table("", RunConfig, top_level),
        **{kind: render_parts(kind, registry) for kind, registry in registries.items()},
        "groups": "\n\n".join(render_group(f"### {name}", f"{name}.", hints[name]) for name in groups),
        "presets": render_table(
            ("preset", "purpose"), [(f"`{name}`", escape(preset.summary)) for name, preset in built_in]
        ),
        **{table.region: render_preset_table(table) for table in PRESET_TABLES},
    }


def render_parts(kind: str, registry: Registry) -> str:
    """Return a table for each registered part, after one of the settings that all of them share."""
    common = COMMON.get(kind)
    shared = (
        [f"{read_class_doc(common)}\n\n{render_settings_table(f'{kind}.', common, fields(common))}"] if common else []
    )
    parts = [registry[name] for name in registry.list_names()]
    return "\n\n".join(
        [*shared, *(render_group(f"#### {kind}={part.name}", f"{kind}.", part.config, common) for part in parts)]
    )


def render_group(heading: str, prefix: str, kind: type, common: type | None = None) -> str:
    """Return heading, introduction and table of a group, and tables of the groups in it.

    Fields that it has unchanged from `common` are left out.
    """
    known = {} if common is None else {field.name: field.default for field in fields(common)}
    hints = get_type_hints(kind)
    chosen = [
        field
        for field in fields(kind)
        if not is_dataclass(hints[field.name]) and (field.name not in known or known[field.name] != field.default)
    ]
    introduction = [escape(text)] if (text := read_class_doc(kind)) else []
    table = [render_settings_table(prefix, kind, chosen)] if chosen else []
    nested = [
        render_group(f"##### {prefix}{name}", f"{prefix}{name}.", group)
        for name, hint in hints.items()
        for group in (hint, *get_args(hint))
        if is_dataclass(group) and isinstance(group, type)
    ]
    return "\n\n".join([heading, *introduction, *table, *nested])


def render_settings_table(prefix: str, kind: type, chosen: Iterable["Field[Any]"]) -> str:
    hints, docs = get_type_hints(kind), read_field_docs(kind)
    rows = [
        (
            f"`{prefix}{field.name}`",
            format_type(hints[field.name]),
            "required" if field.default is MISSING else f"`{format_value(field.default)}`",
            escape(docs.get(field.name, "")),
        )
        for field in chosen
    ]
    return render_table(("setting", "type", "default", "meaning"), rows)


def render_preset_table(table: PresetTable) -> str:
    """Return a table of the settings that the presets change; an empty cell keeps the default."""
    defaults = table.resolve_defaults()
    resolved = [table.resolve(preset) for preset in table.presets]
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, default in defaults.items():
        values = [settings[name] for settings in resolved]
        if all(value == default for value in values):
            continue
        cells = (format_cell(default), *("" if value == default else format_cell(value) for value in values))
        rows.setdefault((name.rsplit(".", 1)[-1], cells), []).append(name)  # one row for one setting of several groups
    return render_table(
        ("setting", "default", *(f"`{preset}`" for preset in table.presets)),
        [(" ".join(f"`{name}`" for name in names), *cells) for (_, cells), names in rows.items()],
    )


def format_type(hint: Any) -> str:
    if get_origin(hint) in (UnionType, Union):
        return ", ".join(dict.fromkeys(format_type(option) for option in get_args(hint)))
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {format_type(get_args(hint)[0])}"
    if is_dataclass(hint):
        return "group below"
    return "`null`" if hint is NoneType else str(hint.__name__)


def format_value(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if isinstance(value, float):
        return format(Decimal(repr(value)).normalize(), "f")
    return value if isinstance(value, str) and value else json.dumps(value)


def format_cell(value: Any) -> str:
    """Return a value of a preset table, integers with thousands separators."""
    return f"{value:,}" if type(value) is int else format_value(value)


def flatten(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}{name}.")
        else:
            yield path + name, value


# Markdown.


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def escape(text: str) -> str:
    """Return prose as Markdown: no HTML, no column ends, and options as code."""
    parts = re.split(r"(`[^`]*`)", text.replace("|", r"\|"))  # code spans stay as they are
    return "".join(part if part.startswith("`") else _escape_prose(part) for part in parts)


def _escape_prose(text: str) -> str:
    text = re.sub(r"[<>*]", lambda match: "\\" + match[0], text)
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", lambda match: f"`{match[0]}`", text)


def escape_code(text: str) -> str:
    return text.replace("|", r"\|")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the generated regions of the reference pages.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page is stale")
    check = parser.parse_args(arguments).check
    stale = {page: text for page, text in render_pages().items() if page.read_text(encoding="utf-8") != text}
    for page, text in stale.items():
        if not check:
            page.write_text(text, encoding="utf-8")
        print(f"{page.relative_to(DOCS.parent)}: {'stale' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
