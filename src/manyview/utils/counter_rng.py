"""Random numbers by counter: a key has the same ones on every device, in every batch, in whatever order it is asked."""

import torch
from torch import Tensor

# splitmix64 (Steele, Lea and Flood, 2014), as signed numbers: torch multiplies modulo 2^64 too.
_GOLDEN, _FIRST, _SECOND = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


UNIFORM_STEP = 2.0**-23
"""From one uniform number to the next: half of it can still be added to the last one before 1 in float32."""


def derive_keys(seed: int, *counters: Tensor) -> Tensor:
    """One key for each row of counters, all of one shape: which step, which environment ..."""
    key = torch.full_like(counters[0], seed, dtype=torch.int64)
    for counter in counters:
        key = _mix_bits(key * _GOLDEN + counter)
    return key


def uniform(key: Tensor, count: int, *, stream: int = 0) -> Tensor:
    """`count` numbers from [0, 1) for each key [N]: [N, count]. Streams of a key do not repeat each other."""
    counters = torch.arange(1, count + 1, device=key.device) + (stream << 32)
    bits = _mix_bits(key.unsqueeze(-1) + counters * _GOLDEN)
    return _shift_right(bits, 41).float() * UNIFORM_STEP


def to_open_interval(values: Tensor) -> Tensor:
    """Half a step from 0 and from 1, where the inverses of distributions are infinite."""
    return values + UNIFORM_STEP / 2


def integers(key: Tensor, count: int, low: int, high: int, *, stream: int = 0) -> Tensor:
    """`count` whole numbers from `low` to `high`, both included, for each key: [N, count] int64."""
    return low + (uniform(key, count, stream=stream) * (high - low + 1)).long()


def normal(key: Tensor, count: int, *, stream: int = 0) -> Tensor:
    """`count` standard normal numbers for each key: [N, count]."""
    values: Tensor = torch.special.ndtri(to_open_interval(uniform(key, count, stream=stream)))
    return values


def _mix_bits(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _FIRST
    bits = (bits ^ _shift_right(bits, 27)) * _SECOND
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Zeros come in from the left, whatever the sign."""
    shifted: Tensor = (bits >> count) & (2 ** (64 - count) - 1)
    return shifted
