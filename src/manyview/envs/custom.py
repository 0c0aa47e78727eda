"""Environments that a user's function makes: `module:function?name=value&name=value`.

Arguments are data: values are converted to numbers and flags by their text alone, and nothing is evaluated.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import gymnasium as gym

from manyview.envs.contract import format_location, is_foreign, make_env_error
from manyview.envs.views import Observation, get_views
from manyview.utils.text import sanitize_text
from manyview.utils.user_modules import import_user_module

ArgumentValue = int | float | bool | str
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""Numbers as in JSON: `007` and `nan` are text."""


def make_custom_env(task: str) -> gym.Env[Observation, Any]:
    """Call the function of a task with its arguments and return the environment.

    Raises:
        ValueError: The function does not exist, or its arguments do not fit its signature.
        TypeError: It returned no environment with views.
        EnvError: The function raised any other error.

    """
    env: gym.Env[Observation, Any] = call_user_function(task)
    path = task.partition("?")[0]
    if not isinstance(env, gym.Env):
        raise TypeError(f"{path} must return a Gymnasium environment, got {type(env).__name__}")
    get_views(env)  # raises with a hint if the environment declares no views
    return env


def call_user_function(text: str) -> Any:
    """Return the result of the function `module:function?name=value&name=value`.

    Raises:
        ValueError: The function does not exist, or its arguments do not fit its signature.
        EnvError: The function raised any other error.

    """
    path, _, query = text.partition("?")
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError(f"invalid function: expected module:function, got {sanitize_text(text)!r}")
    arguments = _split_arguments(path, query)
    try:
        factory = getattr(_import_module(path, module), name, None)
        if not callable(factory):
            raise ValueError(f"module {module} has no function {name!r}")
        return factory(**_convert_arguments(factory, path, arguments))
    except BaseException as error:
        if isinstance(error, ValueError | TypeError | ImportError | OSError) or not is_foreign(error):
            raise
        raise make_env_error(path, "the function", error) from error


def _import_module(path: str, module: str) -> ModuleType:
    """Import a user's module; `ImportError` says where it was looked for, or which of its lines failed."""
    try:
        return import_user_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module == missing or module.startswith(f"{missing}."):
            reason = f"expected a module {missing!r} in {Path.cwd()} or among the installed packages, got none"
        else:
            reason = f"{error}{format_location(error)}"
        raise ImportError(f"cannot import {sanitize_text(path)}: {sanitize_text(reason)}") from error


def parse_argument(text: str) -> ArgumentValue:
    """Return `true` and `false` as bool, a number as in JSON as int or float, anything else as text."""
    if text in ("true", "false"):
        return text == "true"
    number = NUMBER.fullmatch(text)
    if number is None:
        return text
    return float(text) if number[2] or number[3] else int(text)


def _split_arguments(path: str, query: str) -> dict[str, str]:
    """Return the texts of the arguments by name, percent-decoded; `ValueError` unless each name occurs once."""
    arguments: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if not name.isidentifier() or not equals or name in arguments:
            raise ValueError(
                f"invalid arguments of {path}: expected name=value, each name once, joined by '&', got "
                f"{sanitize_text(query)!r}"
            )
        arguments[name] = unquote(value)
    return arguments


def _convert_arguments(factory: Callable[..., Any], path: str, arguments: dict[str, str]) -> dict[str, ArgumentValue]:
    """Return the values of the arguments; those of parameters annotated with `str` stay text."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some C functions have no signature
        return {name: parse_argument(text) for name, text in arguments.items()}
    texts = {name for name, parameter in signature.parameters.items() if parameter.annotation in (str, "str")}
    values = {name: text if name in texts else parse_argument(text) for name, text in arguments.items()}
    try:
        signature.bind(**values)
    except TypeError as error:
        given = ", ".join(f"{name}={value!r}" for name, value in values.items()) or "none"
        raise ValueError(
            f"wrong arguments of {path}: expected {factory.__name__}{signature}, got {sanitize_text(given)} ({error}). "
            f"Write them as '{path}?name=value&name=value'."
        ) from None
    return values
