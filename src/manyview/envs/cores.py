"""How many cores are ours, on a machine that others share."""

import math
import os
from pathlib import Path


def count_usable_cores() -> int:
    """Those this process may run on, no more than its container is granted."""
    # Python 3.13 has os.process_cpu_count, which does not know of a container's quota either.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota = parse_cpu_quota(Path("/sys/fs/cgroup/cpu.max").read_text())
    except (OSError, ValueError):
        quota = None
    return min(cores, quota or cores)


def parse_cpu_quota(cpu_max: str) -> int | None:
    """The cores that a container's `cpu.max` grants, rounded up; None without a limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    return None if quota == "max" else math.ceil(int(quota) / int(period))
