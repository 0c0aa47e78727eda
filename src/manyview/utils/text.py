"""Text formatting, suggestions for misspelled names, and sanitizing of untrusted text."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import IO

MAX_CHARS, MAX_LINE_CHARS = 500, 2_000
"""Maximum length of sanitized text by default, and of a printed line."""


def sanitize_text(text: object, *, max_chars: int = MAX_CHARS) -> str:
    """Return `text` as one printable line of at most `max_chars` characters.

    Control characters, escape sequences, line breaks, bidirectional overrides and lone surrogates become spaces, so
    text from a run directory, an environment or a remote process cannot move the cursor or forge a row.
    """
    line = "".join(char if char.isprintable() else " " for char in str(text)[: max_chars + 1])
    return line if len(line) <= max_chars else line[: max_chars - 3] + "..."


def print_line(line: object, *, file: IO[str] | None = None) -> None:
    """Print one line, to stdout by default, without line breaks or control sequences of quoted text."""
    print(sanitize_text(line, max_chars=MAX_LINE_CHARS), file=file, flush=True)


def keep_end(text: str, max_chars: int) -> str:
    """Return the last `max_chars` characters as valid UTF-8; an environment may put any text into a traceback."""
    return text[-max_chars:].encode(errors="backslashreplace").decode()


def format_bytes(count: float | None) -> str:
    """Return `12.3 MB` or `1.2 GB`; `unknown` for None."""
    if count is None:
        return "unknown"
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def format_count(count: int, noun: str) -> str:
    """Return `1 seed` or `3 seeds`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def suggest(name: object, known: Iterable[object], *, n: int = 1, form: str = "{}") -> str:
    """Return `; did you mean <name>?` with the `n` closest of the known names, empty if none is close.

    `form` writes a suggestion as the user has to type it, such as `--{}`.
    """
    return format_suggestions(form.format(close) for close in get_close_matches(str(name), map(str, known), n=n))


def format_suggestions(names: Iterable[str]) -> str:
    """Return `; did you mean a or b?`, empty without names."""
    listing = " or ".join(names)
    return f"; did you mean {listing}?" if listing else ""
