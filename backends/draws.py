"""The arithmetic of a draw: whole numbers and single roundings, so that every machine draws the same token.

A token's weight is ``2 ** -z``, where z is how far its score lies below the best one, over the temperature and in
octaves.  Weights are whole multiples of 2**-44 of the best one's, so that their sums are exact in any order and however
they are cut up; a draw is a random number of 53 bits times the sum, and chooses the first token, in the order of their
numbers, up to which the weights exceed it.  Until there every step is one IEEE operation in float32 (no product and sum
in one), which numpy, torch and a GPU round alike.  A weight differs from the true exponential by less than 2**-17 of
itself and one unit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Singles = np.ndarray[tuple[int], np.dtype[np.float32]]
Wholes = np.ndarray[tuple[int], np.dtype[np.int64]]

UNIT = 44
"""The best token's weight is 2**44; those of 2**18 tokens add up to no more than 2**62."""
FRACTION = 24
"""Bits of z behind the point."""
FAR = 60.0
"""At so many octaves below the best nothing is left of a weight."""
POLYNOMIAL = (
    0.00011491995246615261,
    -0.0012916368432343006,
    0.009597035124897957,
    -0.055499229580163956,
    0.24022608995437622,
    -0.6931471824645996,
    1.0,
)
"""Of 2 ** -f for f in [0, 1), the highest power first; made by tests/backends/test_draws.py."""
_MASK = (1 << 64) - 1
WHOLE_SHARE = _MASK
"""The share of all tokens: nothing is cut off."""


def bits(seed: int, position: int) -> int:
    """53 random bits, the same for the same seed and position on every machine."""
    return _mixed(_mixed(seed & _MASK) ^ (position * 0x9E3779B97F4A7C15 & _MASK)) >> 11


def uniform(seed: int, position: int) -> float:
    """A draw in [0, 1)."""
    return bits(seed, position) * 2.0**-53


def _mixed(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    x = x + 0x9E3779B97F4A7C15 & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def octaves(temperature: float) -> np.float32:
    """By how many octaves a score one below the best weighs less; of at least ``sampling.GREEDY_BELOW``."""
    return np.float32(math.log2(math.e) / temperature)


def weights(scores: Singles, best: Any, scale: np.float32) -> Wholes:
    """Of ``scores``, none of which is above ``best``.  Those equal to it weigh 2**44, even where both are infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        below = np.where(scores == best, np.float32(0), best - scores)
        far = ~(below < np.inf)
        below[far] = 0
        fixed = (np.minimum(below * scale, np.float32(FAR)) * np.float32(1 << FRACTION)).astype(np.int32)
    fraction = (fixed & (1 << FRACTION) - 1).astype(np.float32) * np.float32(2.0**-FRACTION)
    power = np.full_like(fraction, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        power *= fraction
        power += np.float32(coefficient)
    made: Wholes = (power * np.float32(1 << FRACTION)).astype(np.int64) << UNIT - FRACTION >> (fixed >> FRACTION)
    made[far] = 0
    return made


def least_weight(min_p: float) -> int:
    """The least weight of a token that is at least ``min_p`` times as probable as the best."""
    return math.ceil(min_p * 2.0**UNIT)


def share(top_p: float) -> int:
    """``top_p`` in units of 2**-64."""
    return WHOLE_SHARE if top_p >= 1 else max(int(top_p * 2.0**64), 0)


def reach(share: int, mass: int) -> int:
    """The least weight, at least 1, that is no less than that share of ``mass``."""
    return max(-(-share * mass >> 64), 1)


def threshold(seed: int, position: int, total: int) -> int:
    """The draw: from [0, total), by seed and position."""
    return bits(seed, position) * total >> 53
