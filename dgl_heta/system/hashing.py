"""Hashes of numbers, the same on every machine: keys of draws and of steps, seeds.

The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014,
https://doi.org/10.1145/2660193.2660195).
"""

from __future__ import annotations

import numpy as np

from dgl_heta.system.jit import kernel

_MASK = (1 << 64) - 1
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_key(*numbers: int) -> int:
    """A 64-bit key of some numbers (SplitMix64 finaliser, chained)."""
    key = 0x9E3779B97F4A7C15
    for number in numbers:
        key = (key ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        key = (key ^ (key >> 31)) * 0x94D049BB133111EB & _MASK
        key ^= key >> 29
    return key


@kernel
def mix(value):  # type: ignore[no-untyped-def]
    """The hash of a number (the finaliser)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
