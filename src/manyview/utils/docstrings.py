"""Descriptions of dataclasses and their fields, read from the source."""

import ast
import inspect
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from textwrap import dedent


def read_field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass and of its bases, each as one line."""
    docs: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if is_dataclass(base)]):
        docs |= _read_own_field_docs(base)
    return docs


def read_class_doc(kind: type) -> str:
    """Return the first paragraph of a class's docstring as one line."""
    text = inspect.cleandoc(kind.__doc__ or "")  # without one, `dataclass` puts the signature there
    return "" if text.startswith(f"{kind.__name__}(") else " ".join(text.split("\n\n")[0].split())


@cache  # the search for the source of a class takes milliseconds
def _read_own_field_docs(kind: type) -> dict[str, str]:
    body: list[ast.stmt] = []
    with suppress(OSError, TypeError):  # a class of an interactive session has no source
        (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
    docs = {}
    for statement, following in pairwise(body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs
