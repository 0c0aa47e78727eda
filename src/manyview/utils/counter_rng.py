"""Counter-based random numbers.

A key gives the same numbers on every device, in any batch and in any order.
"""

import torch
from torch import Tensor

UNIFORM_STEP = 2.0**-23
"""Spacing of the uniform numbers; the largest one plus half a step is still below 1 in float32."""
# splitmix64 (Steele, Lea and Flood, 2014), as signed integers: torch multiplies modulo 2^64.
_GOLDEN, _FIRST, _SECOND = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def derive_keys(seed: int, *counters: Tensor) -> Tensor:
    """Return a key for each element of the counters.

    The counters (step, environment, ...) have equal shapes.
    """
    key = torch.full_like(counters[0], seed, dtype=torch.int64)
    for counter in counters:
        key = _mix_bits(key * _GOLDEN + counter)
    return key


def uniform(key: Tensor, count: int, *, stream: int = 0) -> Tensor:
    """Return `count` numbers in [0, 1) for each key [N], as [N, count].

    The streams of a key do not repeat each other.
    """
    counters = torch.arange(1, count + 1, device=key.device) + (stream << 32)
    bits = _mix_bits(key.unsqueeze(-1) + counters * _GOLDEN)
    return _shift_right(bits, 41).float() * UNIFORM_STEP


def to_open_interval(values: Tensor) -> Tensor:
    """Shift uniform numbers by half a step, away from 0 and 1.

    Inverse distribution functions are infinite at 0 and 1.
    """
    return values + UNIFORM_STEP / 2


def integers(key: Tensor, count: int, low: int, high: int, *, stream: int = 0) -> Tensor:
    """Return `count` integers from `low` to `high` inclusive, as int64 [N, count]."""
    return low + (uniform(key, count, stream=stream) * (high - low + 1)).long()


def normal(key: Tensor, count: int, *, stream: int = 0) -> Tensor:
    """Return `count` standard normal numbers for each key, as [N, count]."""
    values: Tensor = torch.special.ndtri(to_open_interval(uniform(key, count, stream=stream)))
    return values


def _mix_bits(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _FIRST
    bits = (bits ^ _shift_right(bits, 27)) * _SECOND
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Shift right logically, filling with zeros regardless of the sign."""
    shifted: Tensor = (bits >> count) & (2 ** (64 - count) - 1)
    return shifted
