"""Counter-based random numbers: a function of seed and position, of nothing else.

SplitMix64 (Steele, Lea, Flood 2014, doi:10.1145/2714064.2660195): the n-th number of a stream is a
mix of key + n * golden, so any position is computed at once, whatever else is in the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_BITS: Final = 52
_MASK: Final = 2**64 - 1


def stream_key(seed: int) -> np.uint64:
    """Key of a seed's stream; seeds that are neighbours get keys far apart."""
    # Plain integers: for a single number NumPy costs ten times as much, and warns of overflow.
    state = (seed + int(_GOLDEN)) & _MASK
    state = ((state ^ (state >> 30)) * int(_FIRST)) & _MASK
    state = ((state ^ (state >> 27)) * int(_SECOND)) & _MASK
    return np.uint64(state ^ (state >> 31))


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair of key and position, multiples of 2**-52.

    Args:
        keys: uint64 [M] of `stream_key`.
        positions: int64 [M].
    """
    mixed = _mix(keys + positions.view(np.uint64) * _GOLDEN)
    return (mixed >> np.uint64(64 - _BITS)).astype(np.float64) * np.float64(2.0**-_BITS)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))
