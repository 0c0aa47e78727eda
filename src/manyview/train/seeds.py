"""Independent streams of random numbers of one run, each named and counted: nothing to save, nothing to share."""

import zlib

import numpy as np


def make_rng(seed: int, name: str, *counters: int) -> np.random.Generator:
    """The generator of this name and these counters; the same whenever it is asked for."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode()), *counters])))


def derive_seed(seed: int, name: str, *counters: int) -> int:
    """A seed for those who want one number."""
    return int(make_rng(seed, name, *counters).integers(2**31))
