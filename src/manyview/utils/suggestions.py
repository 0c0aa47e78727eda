"""Suggestions for misspelled names in error messages."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(name: object, known: Iterable[object], *, n: int = 1, form: str = "{}") -> str:
    """Return `; did you mean <name>?` with the `n` closest of the known names, empty if none is close.

    `form` writes a suggestion as the user has to type it, such as `--{}`.
    """
    return format_suggestions(form.format(close) for close in get_close_matches(str(name), map(str, known), n=n))


def format_suggestions(names: Iterable[str]) -> str:
    """Return `; did you mean a or b?`, empty without names."""
    listing = " or ".join(names)
    return f"; did you mean {listing}?" if listing else ""
