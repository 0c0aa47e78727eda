"""Docstrings and messages of the package follow the style guide of CONTRIBUTING.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "manyview"
FILES = sorted(PACKAGE.rglob("*.py"))
OPENERS = re.compile(r"(What|Of|Whether|Who|Whoever|How|Where|Among|Those|That|Which)\b")
PHRASES = re.compile(
    r"makes? no sense|of another build|\bwhoever\b|\bsomebody\b|\bnobody\b|is told\b|\bof its own\b|\bgoes on\b"
    r"|\bat the begin\b",
    re.IGNORECASE,
)


def iter_texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring, attribute docstrings included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def iter_messages(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every string in a `raise`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Raise):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_docstrings_say_what_a_thing_does_from_the_first_word(file: Path) -> None:
    assert [f"{line}: {text[:60]}" for line, text in iter_texts(file) if OPENERS.match(text)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_docstrings_and_errors_avoid_vague_phrases(file: Path) -> None:
    texts = [*iter_texts(file), *iter_messages(file)]
    assert [f"{line}: {text[:80]}" for line, text in texts if PHRASES.search(text)] == []


@pytest.mark.parametrize("text", ["Whether it is due.", "Of the run.", "What is kept."])
def test_banned_openers_are_recognized(text: str) -> None:
    assert OPENERS.match(text)
