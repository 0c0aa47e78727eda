"""`python -m manyview`, for when the console script is not on the path."""

import sys

from manyview.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
