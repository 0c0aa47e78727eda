"""Descendant processes and their resources, read from /proc."""

import os
from pathlib import Path

BUSY_ACTOR_NAME = "RemoteCollector.collect"
"""Process name of a busy actor; an idle one has a shorter name."""


def find_descendants(parent: int) -> dict[int, str]:
    """Return the names of all descendants of a process by pid, without zombies."""
    names, parents = dict[int, str](), dict[int, int]()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, name = (entry / "stat").read_text(), (entry / "cmdline").read_text()
        except OSError:
            continue  # the process has ended
        state, parent_pid = stat.rpartition(")")[2].split()[:2]
        parents[int(entry.name)] = int(parent_pid)
        if state != "Z":
            names[int(entry.name)] = name.replace("\0", " ").strip()

    def is_descendant(pid: int) -> bool:
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == parent:
                return True
        return False

    return {pid: name for pid, name in names.items() if is_descendant(pid)}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read_private_mb(pid: int) -> float:
    """Return the private memory in MB; shared pages of Ray's object store would count for every reader."""
    return read_status_field(pid, "RssAnon") / 1024


def read_status_field(pid: int, name: str) -> int:
    """Return a number from /proc/<pid>/status, 0 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status if line.startswith(f"{name}:")), 0)


def count_descriptors(pid: int) -> int:
    """Return the number of open file descriptors, 0 if the process has ended."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0
