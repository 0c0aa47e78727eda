"""Import the user's own modules from the working directory, for nobody but themselves.

The working directory stays off `sys.path`: installed packages look for optional ones (torch for `triton`), and a file
of that name in the folder of a foreign run would be executed.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

IMPORT_MODULES = {"importlib", "_frozen_importlib"}


class UserModuleFinder(MetaPathFinder):
    """Find modules that no other finder has, for `import_user_module` and for modules that were found so.

    Who imports decides, not when: `make_env` may import a module beside its own long after that was imported.
    """

    def __init__(self) -> None:
        self._directories: dict[str, Path] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a top-level module in the importer's folder; packages find their own submodules."""
        folder = self._find_directory(_find_importer()) if path is None else None
        found = None if folder is None else PathFinder.find_spec(fullname, [str(folder)], target)
        if folder is not None and found is not None:
            self._directories[fullname] = folder
        return found

    def _find_directory(self, module: str) -> Path | None:
        return Path.cwd() if module == __name__ else self._directories.get(module.partition(".")[0])


FINDER = UserModuleFinder()


def import_user_module(name: str) -> ModuleType:
    """Import a module that is installed or lies in the working directory; the former wins."""
    if FINDER not in sys.meta_path:
        sys.meta_path.append(FINDER)
    return import_module(name)


def _find_importer() -> str:
    """Return the name of the module whose code asks for the import under way; "" if it is none of Python's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _get_module_name(frame).partition(".")[0] in IMPORT_MODULES:
        frame = frame.f_back
    return "" if frame is None else _get_module_name(frame)


def _get_module_name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
