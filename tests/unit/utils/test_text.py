"""Foreign text is shown as one inert line."""

import pytest

from manyview.utils.text import sanitize_text


@pytest.mark.quality("X6")
@pytest.mark.attack("escape sequences, line breaks and bidirectional overrides in foreign text become spaces")
@pytest.mark.parametrize("char", ["\x1b", "\n", "\r", "\x00", "\x07", "\x9b", "\u202e", "\u2028", "\u200b", "\ud800"])
def test_a_character_that_moves_the_cursor_or_forges_a_row_becomes_a_space(char: str) -> None:
    assert sanitize_text(f"a{char}b") == "a b"


def test_letters_of_any_script_stay() -> None:
    assert sanitize_text("β₀ = 0.5, κ 小 ü") == "β₀ = 0.5, κ 小 ü"


def test_long_text_is_cut() -> None:
    assert sanitize_text("x" * 1000, max_chars=10) == "x" * 7 + "..."
