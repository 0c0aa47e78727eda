"""Entry point of the command `manyview` and of `python -m manyview`."""

import os
import sys

EXIT_INTERRUPTED = 130


def start() -> int:
    """Run the command; Ctrl-C ends it without a traceback also while it is being imported."""
    try:
        from manyview.cli.main import main as run_command
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return run_command()


if __name__ == "__main__":
    # `python -m` puts the working directory first on `sys.path`; modules must not be imported from there.
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109
        del sys.path[0]
    sys.exit(start())
