"""Text of foreign origin, made safe to show in a terminal, a plot or a log."""

MAX_CHARS = 500


def sanitize_text(text: object, *, max_chars: int = MAX_CHARS) -> str:
    """Return `text` as one inert line of at most `max_chars` characters.

    Control characters, escape sequences, line breaks, bidirectional overrides and lone surrogates become spaces, so
    nothing that a run folder, an environment or a remote process says can move the cursor or forge a row.
    """
    line = "".join(char if char.isprintable() else " " for char in str(text)[: max_chars + 1])
    return line if len(line) <= max_chars else line[: max_chars - 3] + "..."
