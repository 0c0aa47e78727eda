"""Independent random streams of a run.

Each is derived from a name and counters, so that no state needs saving.
"""

import zlib
from typing import Any

import numpy as np


def make_rng(seed: int, name: str, *counters: int) -> np.random.Generator:
    """Return the generator for a seed, name and counters.

    Equal arguments give equal generators.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode()), *counters])))


def derive_seed(seed: int, name: str, *counters: int) -> int:
    """Return an integer seed for a seed, name and counters."""
    return int(make_rng(seed, name, *counters).integers(2**31))


def get_rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a numpy generator, for `restore_rng`."""
    state: dict[str, Any] = dict(rng.bit_generator.state)
    return state


def check_rng_position(position: Any, max_position: int) -> None:
    """Raise `ValueError` for an invalid buffer position.

    numpy would read outside of its memory there.
    """
    if type(position) is not int or not 0 <= position <= max_position:
        raise ValueError(
            f"invalid random generator state: expected a buffer position from 0 to {max_position}, got {position!r}"
        )


def restore_rng(state: dict[str, Any]) -> np.random.Generator:
    """Return a numpy generator that continues from a state of `get_rng_state`.

    Raises ValueError if the state is invalid.
    """
    kinds = {kind.__name__: kind for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)}
    check_rng_position(state.get("buffer_pos", 0), 4)  # only Philox has a buffer
    name = state.get("bit_generator")
    if name not in kinds:
        raise ValueError(f"invalid random generator state: expected one of {', '.join(kinds)}, got {name!r}")
    bit_generator: Any = kinds[name](0)
    try:
        bit_generator.state = state
    except KeyError as error:
        raise ValueError(f"invalid random generator state: expected an entry {error}, got {sorted(state)}") from None
    return np.random.Generator(bit_generator)
