"""Launchers of child processes."""

from collections.abc import Iterator

import pytest

from benchmarks.launcher import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Yield the launcher of the test session."""
    with Launcher() as instance:
        yield instance


@pytest.fixture(scope="session")
def other_launcher() -> Iterator[Launcher]:
    """Yield a second launcher; its string hashes, and so the order of its sets, differ."""
    with Launcher() as instance:
        yield instance
