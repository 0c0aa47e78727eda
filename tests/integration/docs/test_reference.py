"""The generated reference pages are up to date, whatever the terminal."""

import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pytest

from manyview.cli.main import COMMANDS
from manyview.config.overrides import to_plain
from manyview.config.schema import RunConfig
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS, BonusConfig, OwnEncoderConfig, PixelEncoderConfig
from manyview.methods.registry import Registry
from manyview.training.checkpoint import FORMAT
from manyview.training.resume import RESUME_MODES
from manyview.utils.docstrings import read_field_docs
from tools.docs_reference import (
    COMMANDS_PAGE,
    SETTINGS_PAGE,
    fill_regions,
    flatten,
    render_pages,
    render_parts,
)

REFERENCE = COMMANDS_PAGE.parent
PUBLIC_API = (REFERENCE / "public_api.md").read_text()
REGISTRIES = {"agent": AGENTS, "representation": REPRESENTATIONS, "bonus": BONUSES}
NOT_SETTINGS = {
    "manyview",
    "cameras",
    "seed1",
    "collector",
    "factory",
    "config",
    "manifest",
    "metrics",
    "policy",
    "state",
    "suite",
}
"""First parts of dotted names in the pages that are modules, objects and files."""
AGENT_METHODS = {f"agent.{name}" for name in ("act", "act_and_value", "beta", "compute_advantages", "update")}


def list_settings() -> set[str]:
    """Return the settings of all parts and groups."""
    groups = {"bonus.encoder": OwnEncoderConfig(), "": RunConfig(task="toy/identity_continuous")}
    parts = [(kind, registry[name].config()) for kind, registry in REGISTRIES.items() for name in registry.list_names()]
    names = (
        f"{group}.{name}".strip(".") for group, part in (*parts, *groups.items()) for name, _ in flatten(to_plain(part))
    )
    return {name for name in names if not name.endswith(".name")}


SETTINGS = list_settings()


@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_generated_pages_are_up_to_date(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for page, text in render_pages().items():
        assert page.read_text() == text, f"{page.name} is stale: run `python tools/docs_reference.py`"


def test_every_command_has_a_section_with_its_options() -> None:
    page = COMMANDS_PAGE.read_text()
    assert re.findall(r"^## (\S+)$", page, flags=re.M) == list(COMMANDS)
    for argument in ("TASK", "--set NAME=VALUE ...", "--dry-run", "--json", "--own-task MODULE:FUNCTION"):
        assert f"| `{argument}` |" in page


def test_every_setting_has_a_row() -> None:
    assert (
        set(re.findall(r"^\| `([^`]+)` \| [^|]+ \| (?:`|required)", SETTINGS_PAGE.read_text(), flags=re.M)) == SETTINGS
    )


@pytest.mark.parametrize("page", sorted(REFERENCE.rglob("*.md")), ids=lambda page: page.name)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    names = set(re.findall(r"`([a-z][a-z0-9]*\.[a-z][a-z0-9_]+)(?:=[^`]*)?`", page.read_text()))
    names -= AGENT_METHODS
    assert {name for name in names if name.split(".")[0] not in NOT_SETTINGS} <= SETTINGS


def test_every_part_has_a_section() -> None:
    headings = re.findall(r"^#### (\S+)$", SETTINGS_PAGE.read_text(), flags=re.M)
    assert headings == [f"{kind}={name}" for kind, registry in REGISTRIES.items() for name in registry.list_names()]


def test_a_registered_part_gets_a_section() -> None:
    """Settings that all parts share appear once, unless the part has other defaults."""

    @dataclass(frozen=True, kw_only=True)
    class NoveltyConfig(BonusConfig):
        """Settings of novelty."""

        beta0: float = 0.3
        radius: float = 2.0
        """Distance of new states."""
        encoder: PixelEncoderConfig = field(default_factory=PixelEncoderConfig)

    registry = Registry("bonus", "manyview.no_entry_points")
    registry.register("novelty", NoveltyConfig)(lambda config, context: None)  # noqa: ARG005
    shared_section, part_section = render_parts("bonus", registry).split(
        "\n\n#### bonus=novelty\n\nSettings of novelty.\n\n"
    )
    rows = {
        text: re.findall(r"^\| `([^`]+)` \| .* \| `?([^`|]*)`? \| ", text, flags=re.M)
        for text in (shared_section, part_section)
    }
    assert ("bonus.beta0", "0.05") in rows[shared_section]
    assert ("bonus.beta_decay", "0.00001") in rows[shared_section]
    assert dict(rows[part_section])["bonus.beta0"] == "0.3"
    encoder = {f"bonus.encoder.{name}" for name in ("latent_dim", "trunk", "projection")}
    assert dict(rows[part_section]).keys() == {"bonus.beta0", "bonus.radius"} | encoder
    assert "bonus.beta_decay" not in part_section


def test_field_docs_include_those_of_base_classes() -> None:
    docs = read_field_docs(AGENTS["drqv2"].config)
    assert {"hidden", "std_steps"} <= docs.keys()


def test_a_page_without_a_region_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: old -->\n<!-- end generated -->\n")
    with pytest.raises(ValueError, match=r"expected one each of new, got old"):
        fill_regions(page, {"new": "text"})


def test_the_run_directory_page_names_the_checkpoint_format_and_every_resume_mode() -> None:
    page = (REFERENCE / "run_directory.md").read_text()
    assert f"\n### Format {FORMAT}\n" in page
    table = page.split("## Resume modes\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([^`]+)` \|", table, flags=re.M) == list(RESUME_MODES)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(manyview\.[a-z]+)\.__all__`", PUBLIC_API))))
def test_the_stable_names_of_a_package_are_in_the_python_api(name: str) -> None:
    page = (REFERENCE / "python_api.md").read_text()
    public_names = [export for export in import_module(name).__all__ if not export.endswith("Config")]
    assert [export for export in public_names if not re.search(rf"\b{export}\b", page)] == []
