"""Whether a process is training in a run's folder."""

import fcntl
from pathlib import Path

from manyview.utils.files import open_regular

LOCK_FILE = "lock"
"""Held by whoever trains, as `manyview.train.RunFolder.hold` does; the system lets go of it however that one ends."""


def is_training(folder: Path) -> bool | None:
    """Return whether the lock of a folder is held, by whatever process or machine; None if it cannot be probed."""
    try:
        with open_regular(folder / LOCK_FILE) as lock:
            # Shared and let go at once: only a process that begins at this very moment meets it, and tries again.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
