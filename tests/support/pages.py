"""Reading of report pages: their text, and a check that nothing in them is active or comes from elsewhere."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

from manyview.report.page.style import CONTENT_POLICY

STRUCTURE = "html head meta title style body header main footer nav section h1 h2 h3 h4 p ul li a b span code pre div"
CONTENT = "figure figcaption table thead tbody tr th td details summary svg path text circle video"
GENERAL = "lang charset http-equiv content name id class href scope tabindex role aria-label aria-hidden open"
DRAWING = "d x y cx cy r transform viewbox controls muted playsinline preload src"
TAGS, ATTRIBUTES = {*STRUCTURE.split(), *CONTENT.split()}, {*GENERAL.split(), *DRAWING.split()}


@dataclass
class Page(HTMLParser):
    """Elements, texts and attributes of a page."""

    source: str
    tags: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    """Element, attribute and value."""

    def __post_init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def values(self, tag: str, name: str) -> list[str]:
        return [value for element, attribute, value in self.attributes if (element, attribute) == (tag, name)]


def check_page(source: str) -> Page:
    """Read a page; fail if it could run something, request something, or shows control characters."""
    page = Page(source)
    assert set(page.tags) <= TAGS
    assert {name for _, name, _ in page.attributes} <= ATTRIBUTES
    assert all(value.startswith("#") for value in page.values("a", "href"))
    assert all(value.startswith("data:video/mp4;base64,") for value in page.values("video", "src"))
    assert {tag for tag, name, _ in page.attributes if name == "src"} <= {"video"}
    assert {tag for tag, name, _ in page.attributes if name == "href"} <= {"a"}
    assert page.values("meta", "http-equiv") == ["Content-Security-Policy"]
    assert CONTENT_POLICY in page.values("meta", "content")
    assert page.tags.count("style") == 1
    assert "@import" not in source
    assert "url(" not in page.texts[page.tags.index("style")]
    assert all(char.isprintable() or char == "\n" for char in source)
    return page
