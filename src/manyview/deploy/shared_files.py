"""Files that a shared run may have: names and sizes, checked before anything is downloaded or uploaded."""

import re

from manyview.runtime.policy_file import MAX_MODEL_BYTES, MAX_SPEC_BYTES, MODEL_FILE, SPEC_FILE
from manyview.training.checkpoint import MAX_FILE_BYTES as MAX_CHECKPOINT_BYTES
from manyview.utils.files import can_hold_code
from manyview.utils.json_io import MAX_JSON_BYTES
from manyview.utils.text import sanitize_text

CARD_FILE, CURVE_FILE, VIDEO_FILE, EXPORT_DIR = "README.md", "curve.png", "replay.mp4", "export"
"""`replay.mp4` is the name by which the Hugging Face hub shows the video of an agent."""
MAX_CARD_BYTES, MAX_METRICS_BYTES, MAX_MEDIA_BYTES = 2**20, 2**24, 2**26
MAX_FILES = 100
"""Limit of files in a repository; a shared run has about a dozen."""

MAX_BYTES = {
    CARD_FILE: MAX_CARD_BYTES,
    "config.json": MAX_JSON_BYTES,
    "manifest.json": MAX_JSON_BYTES,
    "metrics.jsonl": MAX_METRICS_BYTES,
    CURVE_FILE: MAX_MEDIA_BYTES,
    VIDEO_FILE: MAX_MEDIA_BYTES,
    f"{EXPORT_DIR}/{SPEC_FILE}": MAX_SPEC_BYTES,
    f"{EXPORT_DIR}/{MODEL_FILE}": MAX_MODEL_BYTES,
}
"""Size limits of the allowed files beside those of the checkpoint."""
CHECKPOINT_PATTERN = re.compile(r"checkpoints/[0-9]{9,18}/([^/]+)")
REQUIRED_FILES = ("config.json", "manifest.json", "metrics.jsonl")


def find_max_bytes(name: str) -> int | None:
    """Return the size limit of a file by its path in the folder; None if it is not on the list."""
    if name in MAX_BYTES:
        return MAX_BYTES[name]
    match = CHECKPOINT_PATTERN.fullmatch(name)
    return None if match is None else MAX_CHECKPOINT_BYTES.get(match[1])


def is_allowed(name: str, size: object) -> bool:
    """Return whether a file belongs to a shared run; False for one to leave out, such as a licence.

    Raises `ValueError` for a name that leads elsewhere, a file that can hold code, and one that is too large.
    """
    shown = sanitize_text(name, max_chars=200)
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"invalid file name {shown!r}: expected a relative path without '..', '.' or '\\'")
    if can_hold_code(name):
        raise ValueError(f"{shown} can hold code: expected safetensors, JSON and media only. Ask for a safe copy")
    max_bytes = find_max_bytes(name)
    if max_bytes is None:
        return False
    if type(size) is not int or not 0 <= size <= max_bytes:
        raise ValueError(f"{shown} is too large: expected at most {max_bytes:,} bytes, got {sanitize_text(size)}")
    return True


def check_complete(names: set[str]) -> None:
    """Raise `ValueError` unless these are the files of one run with exactly one checkpoint."""
    if missing := [name for name in REQUIRED_FILES if name not in names]:
        raise ValueError(f"not a shared run: expected {', '.join(REQUIRED_FILES)}, got no {missing[0]}")
    checkpoints = {name.split("/")[1] for name in names if CHECKPOINT_PATTERN.fullmatch(name)}
    files = {name.split("/")[2] for name in names if CHECKPOINT_PATTERN.fullmatch(name)}
    if len(checkpoints) != 1 or files != MAX_CHECKPOINT_BYTES.keys():
        raise ValueError(
            f"not a shared run: expected one checkpoint with {', '.join(MAX_CHECKPOINT_BYTES)}, got "
            f"{len(checkpoints)} with {', '.join(sorted(files)) or 'none'}"
        )
