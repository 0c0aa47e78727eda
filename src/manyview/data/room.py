"""How much memory and disk is free, asked before a replay or a rollout takes it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

SPARE = 0.05
"""The share of what is free that is left alone."""
UNLIMITED = 2**60
"""Version 1 of cgroups writes a number of about this size where there is no limit."""


class NoRoomError(RuntimeError):
    """What is asked for does not fit into what is free."""


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """What this process can still take: of the machine, and of the container it runs in. None where nobody says."""
    found = [*_of_machine(root), *_of_groups(root)]
    return min(found) if found else None


def free_disk_bytes(folder: Path) -> int:
    """What is free where this folder is, or will be."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def check_memory(needed: int, *, what: str, instead: str, root: Path = Path("/")) -> None:
    """Refuse what does not fit into memory, and say what could be done instead."""
    free = free_memory_bytes(root)
    if free is not None and needed > (1 - SPARE) * free:
        raise NoRoomError(f"{what} needs {_gb(needed)} of memory, and {_gb(free)} are free: {instead}")


def check_room(
    replay_bytes: int, *, capacity: int, folder: Path | None, memory_bytes: int = 0, root: Path = Path("/")
) -> None:
    """Refuse a replay of so many bytes that does not fit; `memory_bytes` is what else the run will take.

    With a folder it goes to the disk, and only the rest must fit into memory.
    """
    _check_replay_memory(replay_bytes, memory_bytes, capacity, folder, free_memory_bytes(root))
    if folder is None:
        return
    free = free_disk_bytes(folder)
    if replay_bytes > (1 - SPARE) * free:
        raise NoRoomError(
            f"a replay of {capacity:,} steps needs {_gb(replay_bytes)}, and {_gb(free)} are free in {folder}: "
            f"{_fitting((1 - SPARE) * free, replay_bytes, capacity)}, or give it another folder"
        )


def _check_replay_memory(
    replay_bytes: int, memory_bytes: int, capacity: int, folder: Path | None, free: int | None
) -> None:
    needed = memory_bytes + (replay_bytes if folder is None else 0)
    if free is None or needed <= (1 - SPARE) * free:
        return
    if folder is not None:
        raise NoRoomError(f"{_gb(needed)} of memory are needed beside the replay on disk, and {_gb(free)} are free")
    beside = f" beside {_gb(memory_bytes)} for the rest" if memory_bytes else ""
    raise NoRoomError(
        f"a replay of {capacity:,} steps needs {_gb(replay_bytes)} of memory{beside}, and {_gb(free)} are free: "
        f"{_fitting((1 - SPARE) * free - memory_bytes, replay_bytes, capacity)}, or give it a folder on a disk"
    )


def _fitting(left_bytes: float, replay_bytes: int, capacity: int) -> str:
    fits = max(0, int(left_bytes / replay_bytes * capacity))
    return f"at most {fits:,} steps fit" if fits else "not one step fits"


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _of_machine(root: Path) -> Iterator[int]:
    fields = _fields(root / "proc/meminfo")
    if "MemAvailable:" in fields:
        yield fields["MemAvailable:"] * 1024


def _of_groups(root: Path) -> Iterator[int]:
    """Of every control group above this process: its limit less what is used there and cannot be taken back."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, used, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, cache = root / "sys/fs/cgroup/memory", "total_inactive_file"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            most, taken = _number(folder / limit), _number(folder / used)
            if most is not None and taken is not None and most < UNLIMITED:
                yield max(0, most - taken + _fields(folder / "memory.stat").get(cache, 0))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _fields(file: Path) -> dict[str, int]:
    return {parts[0]: int(parts[1]) for parts in map(str.split, _lines(file)) if len(parts) > 1}


def _number(file: Path) -> int | None:
    """None where there is no such file, or it says `max`."""
    text = "".join(_lines(file)).strip()
    return int(text) if text.isdecimal() else None
