"""`python -m manyview`, for when the console script is not on the path."""

import os
import sys

if __name__ == "__main__":
    # `python -m` has put the working directory first: whatever is imported from here on must not come from there.
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109
        del sys.path[0]
    from manyview.cli.main import main

    sys.exit(main())
