"""Free memory and disk space, usable cores, and settings of the C heap."""

import contextlib
import ctypes
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from manyview.utils.text import format_bytes

RESERVED_FRACTION = 0.05
"""Fraction of the free memory that stays unused."""
UNLIMITED = 2**60
"""Limits from this value on mean no limit in cgroups version 1."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


class InsufficientSpaceError(RuntimeError):
    """A request exceeds the free memory or disk space."""


def get_free_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process can still allocate.

    It is limited by the machine and by the container. None if the system does not report it.
    """
    limits = [*_read_machine_memory(root), *_read_cgroup_memory(root)]
    return min(limits) if limits else None


def get_free_disk_bytes(directory: Path) -> int:
    """Return the free disk space at a directory, which need not exist yet."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def check_memory(needed_bytes: int, *, what: str, remedy: str, root: Path = Path("/")) -> None:
    """Raise `InsufficientSpaceError` if `needed_bytes` do not fit into memory.

    `RESERVED_FRACTION` of the free memory stays unused. The message contains `what` and `remedy`.
    """
    free = get_free_memory_bytes(root)
    if free is not None and needed_bytes > (1 - RESERVED_FRACTION) * free:
        raise InsufficientSpaceError(
            f"{what} needs {format_bytes(needed_bytes)} of memory, and {format_bytes(free)} are free: {remedy}"
        )


def count_usable_cores() -> int:
    """Return the number of cores of this process.

    It is the CPU affinity, limited by the container's quota.
    """
    # Python 3.13 has os.process_cpu_count, which also ignores a container's quota.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota = parse_cpu_quota(Path("/sys/fs/cgroup/cpu.max").read_text())
    except (OSError, ValueError):
        quota = None
    return min(cores, quota or cores)


def parse_cpu_quota(cpu_max: str) -> int | None:
    """Return the number of cores in a container's `cpu.max`, rounded up; None without a limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    return None if quota == "max" else math.ceil(int(quota) / int(period))


def keep_freed_memory() -> None:
    """Allocate everything on the heap and never trim it; a no-op without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def trim_heap() -> None:
    """Return free heap memory to the system; a no-op without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _read_machine_memory(root: Path) -> Iterator[int]:
    fields = _read_fields(root / "proc/meminfo")
    if "MemAvailable:" in fields:
        yield fields["MemAvailable:"] * 1024


def _read_cgroup_memory(root: Path) -> Iterator[int]:
    """Yield the free memory of every cgroup above this process.

    It is the limit minus the memory that cannot be reclaimed.
    """
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
    """Return the number in a file; None if there is no such file or it contains `max`."""
    text = "".join(_read_lines(file)).strip()
    return int(text) if text.isdecimal() else None
