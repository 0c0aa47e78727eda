"""Independent streams of random numbers of one run, each named and counted: nothing to save, nothing to share."""

import zlib
from typing import Any

import numpy as np


def make_rng(seed: int, name: str, *counters: int) -> np.random.Generator:
    """The generator of this name and these counters; the same whenever it is asked for."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode()), *counters])))


def derive_seed(seed: int, name: str, *counters: int) -> int:
    """A seed for those who want one number."""
    return int(make_rng(seed, name, *counters).integers(2**31))


def get_rng_state(rng: np.random.Generator) -> dict[str, Any]:
    state: dict[str, Any] = dict(rng.bit_generator.state)
    return state


def check_rng_position(position: Any, max_position: int) -> None:
    """Of a generator in its block of numbers: numpy reads wherever it says, also outside of its memory."""
    if type(position) is not int or not 0 <= position <= max_position:
        raise ValueError(f"a random generator stands at 0 to {max_position} of its numbers, not at {position!r}")


def restore_rng(state: dict[str, Any]) -> np.random.Generator:
    """A numpy generator that goes on where the one with this state was."""
    kinds = {kind.__name__: kind for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)}
    check_rng_position(state.get("buffer_pos", 0), 4)  # of Philox
    bit_generator: Any = kinds[state["bit_generator"]](0)
    bit_generator.state = state
    return np.random.Generator(bit_generator)
