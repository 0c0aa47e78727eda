"""Entry point of `python -m manyview`, for environments without the console script on the path."""

import os
import sys

if __name__ == "__main__":
    # `python -m` puts the working directory first on `sys.path`; modules must not be imported from there.
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109
        del sys.path[0]
    from manyview.cli.main import main

    sys.exit(main())
