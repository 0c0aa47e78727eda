"""Import of user modules from the working directory, visible only to these modules.

The working directory is not on `sys.path`: installed packages import optional ones (torch imports `triton`), and a
file of that name in the directory of an untrusted run would be executed.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

IMPORT_MODULES = {"importlib", "_frozen_importlib"}
"""Top-level modules of Python's import machinery."""


class UserModuleFinder(MetaPathFinder):
    """Finds user modules, after all other finders.

    It serves `import_user_module` and the modules imported by it. The importing module decides, not the time: a user's
    `make_env` may import a neighboring module much later.
    """

    def __init__(self) -> None:
        self._directories: dict[str, Path] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a top-level module in the importer's directory.

        Packages find their submodules themselves.
        """
        directory = self._find_directory(_find_importer()) if path is None else None
        spec = None if directory is None else PathFinder.find_spec(fullname, [str(directory)], target)
        if directory is not None and spec is not None:
            self._directories[fullname] = directory
        return spec

    def _find_directory(self, module: str) -> Path | None:
        return Path.cwd() if module == __name__ else self._directories.get(module.partition(".")[0])


FINDER = UserModuleFinder()


def import_user_module(name: str) -> ModuleType:
    """Import a module that is installed or, otherwise, in the working directory."""
    if FINDER not in sys.meta_path:
        sys.meta_path.append(FINDER)
    return import_module(name)


def _find_importer() -> str:
    """Return the name of the module that runs the current import; "" if no Python frame does."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _get_module_name(frame).partition(".")[0] in IMPORT_MODULES:
        frame = frame.f_back
    return "" if frame is None else _get_module_name(frame)


def _get_module_name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
