from collections.abc import Iterator

import pytest

from benchmarks.launcher import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher() as found:
        yield found


@pytest.fixture(scope="session")
def other_launcher() -> Iterator[Launcher]:
    """Strings have other hashes here, so that sets have another order."""
    with Launcher() as found:
        yield found
