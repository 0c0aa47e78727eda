"""Processes below another, as the system knows them."""

import os
from pathlib import Path

BUSY_ACTOR_NAME = "RemoteCollector.collect"
"""What an actor is called while it is busy; one that stands by has a shorter name."""


def find_descendants(parent: int) -> dict[int, str]:
    """All that descend from a process, with the name each has given itself."""
    found, parents = dict[int, str](), dict[int, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, name = (folder / "stat").read_text(), (folder / "cmdline").read_text()
        except OSError:
            continue  # gone in the meantime
        state, above = stat.rpartition(")")[2].split()[:2]
        parents[int(folder.name)] = int(above)
        if state != "Z":
            found[int(folder.name)] = name.replace("\0", " ").strip()

    def descends(pid: int) -> bool:
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == parent:
                return True
        return False

    return {pid: name for pid, name in found.items() if descends(pid)}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read_private_mb(pid: int) -> float:
    """Memory that is its alone: pages of Ray's object store would count for everybody who ever read them."""
    return read_status_field(pid, "RssAnon") / 1024


def read_status_field(pid: int, name: str) -> int:
    """A number of /proc/<pid>/status; 0 of one that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status if line.startswith(f"{name}:")), 0)


def count_descriptors(pid: int) -> int:
    """That it has open; 0 if it is gone."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0
