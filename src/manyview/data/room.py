"""How much memory and disk is free, asked before a replay or a rollout takes it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

RESERVED_FRACTION = 0.05
"""The share of what is free that is left alone."""
UNLIMITED = 2**60
"""Version 1 of cgroups writes a number of about this size where there is no limit."""


class InsufficientSpaceError(RuntimeError):
    """What is asked for does not fit into what is free."""


def get_free_memory_bytes(root: Path = Path("/")) -> int | None:
    """What this process can still take: of the machine, and of the container it runs in. None where nobody says."""
    limits = [*_read_machine_memory(root), *_read_cgroup_memory(root)]
    return min(limits) if limits else None


def get_free_disk_bytes(directory: Path) -> int:
    """What is free where this folder is, or will be."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def check_memory(needed_bytes: int, *, what: str, remedy: str, root: Path = Path("/")) -> None:
    """Refuse what does not fit into memory, and say what could be done instead."""
    free = get_free_memory_bytes(root)
    if free is not None and needed_bytes > (1 - RESERVED_FRACTION) * free:
        raise InsufficientSpaceError(
            f"{what} needs {_format_bytes(needed_bytes)} of memory, and {_format_bytes(free)} are free: {remedy}"
        )


def check_replay_fits(
    replay_bytes: int, *, capacity: int, directory: Path | None, other_memory_bytes: int = 0, root: Path = Path("/")
) -> None:
    """Refuse a replay of so many bytes that does not fit; `memory_bytes` is what else the run will take.

    With a folder it goes to the disk, and only the rest must fit into memory.
    """
    _check_replay_memory(replay_bytes, other_memory_bytes, capacity, directory, get_free_memory_bytes(root))
    if directory is None:
        return
    free = get_free_disk_bytes(directory)
    if replay_bytes > (1 - RESERVED_FRACTION) * free:
        raise InsufficientSpaceError(
            f"a replay of {capacity:,} steps needs {_format_bytes(replay_bytes)}, "
            f"and {_format_bytes(free)} are free in {directory}: "
            f"{_format_max_steps((1 - RESERVED_FRACTION) * free, replay_bytes, capacity)}, or give it another folder"
        )


def _check_replay_memory(
    replay_bytes: int, other_memory_bytes: int, capacity: int, directory: Path | None, free: int | None
) -> None:
    needed = other_memory_bytes + (replay_bytes if directory is None else 0)
    if free is None:
        return
    usable = (1 - RESERVED_FRACTION) * free
    if needed <= usable:
        return
    if directory is not None:
        raise InsufficientSpaceError(
            f"{_format_bytes(needed)} of memory are needed beside the replay on disk, "
            f"and {_format_bytes(free)} are free"
        )
    beside = f" beside {_format_bytes(other_memory_bytes)} for the rest" if other_memory_bytes else ""
    raise InsufficientSpaceError(
        f"a replay of {capacity:,} steps needs {_format_bytes(replay_bytes)} of memory{beside}, "
        f"and {_format_bytes(free)} are free: "
        f"{_format_max_steps(usable - other_memory_bytes, replay_bytes, capacity)}, or give it a folder on a disk"
    )


def _format_max_steps(free_bytes: float, replay_bytes: int, capacity: int) -> str:
    fits = max(0, int(free_bytes / replay_bytes * capacity))
    return f"at most {fits:,} steps fit" if fits else "not one step fits"


def _format_bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _read_machine_memory(root: Path) -> Iterator[int]:
    fields = _read_fields(root / "proc/meminfo")
    if "MemAvailable:" in fields:
        yield fields["MemAvailable:"] * 1024


def _read_cgroup_memory(root: Path) -> Iterator[int]:
    """Of every control group above this process: its limit less what is used there and cannot be taken back."""
    for line in _read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, used, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, cache = root / "sys/fs/cgroup/memory", "total_inactive_file"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(base):
                break
            limit_bytes, used_bytes = _read_int(directory / limit), _read_int(directory / used)
            if limit_bytes is not None and used_bytes is not None and limit_bytes < UNLIMITED:
                yield max(0, limit_bytes - used_bytes + _read_fields(directory / "memory.stat").get(cache, 0))


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _read_fields(file: Path) -> dict[str, int]:
    return {parts[0]: int(parts[1]) for parts in map(str.split, _read_lines(file)) if len(parts) > 1}


def _read_int(file: Path) -> int | None:
    """None where there is no such file, or it says `max`."""
    text = "".join(_read_lines(file)).strip()
    return int(text) if text.isdecimal() else None
