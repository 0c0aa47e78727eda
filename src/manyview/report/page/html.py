"""HTML elements whose text is escaped.

Text of a run is untrusted. Only this module writes markup, and every child that is no element is escaped and loses its
control characters, so a name in a run cannot become markup, an attribute or a terminal escape.
"""

from collections.abc import Iterable, Sequence
from html import escape

MAX_TEXT_CHARS = 30_000
"""Limit of one text, such as the settings of a run, in characters."""
VOID_ELEMENTS = {"col", "meta"}


class Html(str):
    """Markup that `make_element` has written."""

    __slots__ = ()


def make_element(tag: str, *children: object, **attributes: object) -> Html:
    """Return an element; children that are not `Html` are escaped text, iterables are flattened.

    `Html` is taken as it is, as an attribute too. Attributes without a value (None) are left out; `class_` is `class`,
    and other underscores are hyphens.
    """
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{value if isinstance(value, Html) else escape_text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID_ELEMENTS:
        return Html(f"<{tag}{given}>")
    return Html(f"<{tag}{given}>{join_children(*children)}</{tag}>")


def join_children(*children: object) -> Html:
    """Return children one after the other, as in `make_element`."""
    return Html("".join(map(_format_child, children)))


def escape_text(text: object, *, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return text for an element or a quoted attribute; line breaks stay, other control characters become spaces."""
    line = str(text)
    cut = line if len(line) <= max_chars else line[: max_chars - 3] + "..."
    return escape("".join(char if char.isprintable() or char == "\n" else " " for char in cut))


def make_table(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table with a caption that stays in place while the table, if it is wide, scrolls below it.

    The first cell of a row is its heading.
    """
    body = [
        make_element("tr", make_element("th", first, scope="row"), [make_element("td", cell) for cell in cells])
        for first, *cells in rows
    ]
    table = make_element(
        "table",
        make_element("thead", make_element("tr", [make_element("th", cell, scope="col") for cell in head])),
        make_element("tbody", body),
        aria_label=caption,
    )
    # A region that scrolls must be reachable by the keyboard.
    region = make_element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
    return make_element("figure", make_element("figcaption", caption), region)


def make_details(summary: object, *children: object, is_open: bool = False) -> Html:
    """Return a part that opens and closes when its summary is chosen."""
    return make_element("details", make_element("summary", summary), *children, open="" if is_open else None)


def make_code(text: str) -> Html:
    """Return a block of code."""
    return make_element("pre", make_element("code", text), tabindex=0)


def _format_child(child: object) -> str:
    if isinstance(child, Html):
        return child
    if isinstance(child, Iterable) and not isinstance(child, str):
        return join_children(*child)
    return "" if child is None else escape_text(child)
