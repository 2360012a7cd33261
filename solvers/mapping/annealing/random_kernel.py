"""Random numbers of the annealing's kernels (xorshift64*).

The numbers are the same whether kernels are interpreted or compiled; numba's own are not NumPy's.

Marsaglia, *Xorshift RNGs*, 2003; Vigna, *An experimental exploration of Marsaglia's xorshift
generators, scrambled*, 2016.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....instances.common.kernel import uncounted

#: Shifts of the generator, and the shift and factor that make a number of its state.
_FIRST, _SECOND, _THIRD = np.uint64(12), np.uint64(25), np.uint64(27)
_LOW, _FACTOR = np.uint64(11), np.uint64(2685821657736338717)


def generator(seed: int) -> NDArray[np.uint64]:
    """Return the state of a generator, shape (1,), which `uniform` and `below` change."""
    return np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)


@uncounted
def uniform(random):
    """A number from 0 to 1, 1 excluded."""
    x = random[0]
    x ^= x >> _FIRST
    x ^= x << _SECOND
    x ^= x >> _THIRD
    random[0] = x
    return float((x * _FACTOR) >> _LOW) * 2.0**-53


@uncounted
def below(random, count):
    """A whole number from 0 to count − 1."""
    return int(uniform(random) * count)
