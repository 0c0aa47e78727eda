"""Parser of report pages, and a check that they are static and self-contained."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

from manyview.report.page.style import CONTENT_POLICY

STRUCTURE_TAGS = (
    "html head meta title style body header main footer nav section h1 h2 h3 h4 p ul li a b span code pre div"
)
CONTENT_TAGS = "figure figcaption table thead tbody tr th td details summary svg path text circle video"
GENERAL_ATTRIBUTES = (
    "lang charset http-equiv content name id class href scope tabindex role aria-label aria-hidden open"
)
DRAWING_ATTRIBUTES = "d x y cx cy r transform viewbox controls muted playsinline preload src"
TAGS, ATTRIBUTES = (
    {*STRUCTURE_TAGS.split(), *CONTENT_TAGS.split()},
    {*GENERAL_ATTRIBUTES.split(), *DRAWING_ATTRIBUTES.split()},
)


@dataclass
class Page(HTMLParser):
    """Elements, texts and attributes of an HTML page."""

    source: str
    tags: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    """Element, attribute and value of every attribute."""

    def __post_init__(self) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.feed(self.source)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    @property
    def text(self) -> str:
        """Text of the whole page, with single spaces."""
        return " ".join(" ".join(self.texts).split())

    def get_values(self, tag: str, name: str) -> list[str]:
        """Return the values of an attribute of all elements with a tag."""
        return [value for element, attribute, value in self.attributes if (element, attribute) == (tag, name)]


def check_page(source: str) -> Page:
    """Parse a page; fail if it has scripts, external resources or control characters."""
    page = Page(source)
    assert set(page.tags) <= TAGS
    assert {name for _, name, _ in page.attributes} <= ATTRIBUTES
    assert all(value.startswith("#") for value in page.get_values("a", "href"))
    assert all(value.startswith("data:video/mp4;base64,") for value in page.get_values("video", "src"))
    assert {tag for tag, name, _ in page.attributes if name == "src"} <= {"video"}
    assert {tag for tag, name, _ in page.attributes if name == "href"} <= {"a"}
    assert page.get_values("meta", "http-equiv") == ["Content-Security-Policy"]
    assert CONTENT_POLICY in page.get_values("meta", "content")
    assert page.tags.count("style") == 1
    assert "@import" not in source
    assert "url(" not in page.texts[page.tags.index("style")]
    assert all(char.isprintable() or char == "\n" for char in source)
    return page
