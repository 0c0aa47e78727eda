"""File corruption as by a failing disk."""

from pathlib import Path


def flip_bit(file: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(bytes(content))
