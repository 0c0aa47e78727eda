"""Whether the process that began a run is still there."""

import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

SLACK_S = 5.0
"""The manifest has whole seconds, and clocks are corrected."""


def still_there(manifest: dict[str, Any]) -> bool | None:
    """None where it cannot be known: the run is of another machine."""
    host, pid = manifest.get("host"), manifest.get("pid")
    if host != socket.gethostname() or not isinstance(pid, int) or os.name != "posix":
        return None
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            return _is_the_one(stat.read_text(errors="replace"), manifest.get("began"))
        except OSError:
            return False
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # it is there, and somebody else's
        return True
    return True


def _is_the_one(stat: str, run_began: object) -> bool:
    """Not a dead process that nobody has asked about, nor a later one that was given the same number."""
    state, *numbers = stat.rpartition(")")[2].split()  # the name before it may hold anything
    if state in ("Z", "X"):
        return False
    try:
        began_s = datetime.fromisoformat(str(run_began)).timestamp()
    except ValueError:
        return True
    ticks_after_boot = int(numbers[18])  # field 22 of proc(5)
    return _boot_s() + ticks_after_boot / os.sysconf("SC_CLK_TCK") <= began_s + SLACK_S


def _boot_s() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("btime")).split()[1])
