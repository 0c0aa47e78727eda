"""The sidebar of the documentation: sections by purpose that list every page once."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
SECTIONS = {
    "Getting started": "getting_started",
    "Guides": "guides",
    "Reference": "reference",
    "Parts": "reference/parts",
    "Explanation": "explanation",
    "Research log": "research",
}


def parse_toctrees() -> dict[str, list[str]]:
    """Return the pages of each toctree of the index, by caption."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), flags=re.M | re.S)
    toctrees = {}
    for block in blocks:
        caption = re.search(r"^:caption: (.+)$", block, flags=re.M)
        assert caption is not None, f"a toctree without a caption: {block}"
        toctrees[caption[1]] = [line for line in block.splitlines() if line and not line.startswith(":")]
    return toctrees


def test_each_section_lists_the_pages_of_its_directory() -> None:
    toctrees = parse_toctrees()
    assert list(toctrees) == list(SECTIONS)
    for caption, pages in toctrees.items():
        assert {Path(page).parent.as_posix() for page in pages} == {SECTIONS[caption]}


def test_every_page_is_listed_once() -> None:
    listed_pages = [page for pages in parse_toctrees().values() for page in pages]
    sources = (path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in sources} - {"index"}
    assert sorted(listed_pages) == sorted(pages)
