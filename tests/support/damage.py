"""What a bad disk does to a file."""

from pathlib import Path


def flip_a_bit(file: Path) -> None:
    spoiled = bytearray(file.read_bytes())
    spoiled[len(spoiled) // 2] ^= 16
    file.write_bytes(bytes(spoiled))
