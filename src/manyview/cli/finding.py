"""What a check of `manyview doctor` says."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """One row of the report."""

    check: str
    status: Status
    found: str
    fix: str | None = None
    """The command that repairs it; None when all is well."""
