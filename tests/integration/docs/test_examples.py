"""Every Python example in the README and the documentation runs as it is written."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# RLlib needs this version of gymnasium, so its page runs in the environment of `bash .ci/rllib` only.
SKIPPED_PAGES = [] if version("gymnasium") == "1.2.2" else ["rllib.md"]
PAGE_MARKS = {"rllib.md": [pytest.mark.filterwarnings("ignore")]}  # Ray warns about itself


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    """Restore the number of torch threads, which a run sets for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def copy_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the registries by copies, as a page may register a part."""
    for registry in (AGENTS, REPRESENTATIONS, BONUSES):
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))


def extract_examples(page: Path) -> list[str]:
    """Return the Python examples of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=PAGE_MARKS.get(page.name, []))
        for page in PAGES
        if extract_examples(page) and page.name not in SKIPPED_PAGES
    ],
)
def test_examples_run(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    namespace: dict[str, object] = {}
    monkeypatch.syspath_prepend(tmp_path)
    text = page.read_text()
    for example in extract_examples(page):  # later examples use the names of earlier ones
        prose = text.partition(f"```python\n{example}")[0].rpartition("```")[2]
        if match := re.search(r"Save this as `(\w+\.py)`", prose):
            (tmp_path / match[1]).write_text(example)
            sys.modules.pop(Path(match[1]).stem, None)
        exec(compile(example, str(page), "exec"), namespace)
    capsys.readouterr()


def test_the_readme_shows_mem_in_a_loop_of_at_most_twenty_lines() -> None:
    loop = next(example for example in extract_examples(ROOT / "README.md") if "MEM(" in example)
    assert "for " in loop
    assert len([line for line in loop.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_images_inside_the_repository_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
