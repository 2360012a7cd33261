"""Numbers rounded to a grid on which sums and differences are exact in floating point.

A difference of two sums carries the rounding of all that was added before. On a grid of powers of
two that is coarse enough for the largest sum there is none: each sum is a whole number of steps
below 2^53. What is rounded down to the grid makes a lower bound, a limit that is rounded up an
upper one; so a claim that rests on them is proved.
"""

from __future__ import annotations

import math

import numpy as np

from .arrays import Floats

#: Whole numbers up to here have exact sums in floating point.
EXACT = 2**53


def step_of(total: float) -> float:
    """Return the step of a grid on which sums up to a total are exact, with a factor 2 to spare.

    Parameters
    ----------
    total
        Finite; no sum of grid points, of any order and of any sign, is larger but by rounding.

    Examples
    --------
    >>> step_of(2.0**51), step_of(2.0**59)
    (1.0, 256.0)
    """
    exponent = math.frexp(total)[1]
    return math.ldexp(1.0, max(exponent - 52, -1022))


def rounded_down(numbers: Floats, step: float) -> Floats:
    """Return the largest grid points that are not above some numbers.

    Examples
    --------
    >>> rounded_down(np.array([0.3, 7.0, 0.75]), 0.25).tolist()
    [0.25, 7.0, 0.75]
    """
    return np.asarray(np.floor(numbers / step) * step)


def summable(numbers: Floats) -> Floats:
    """Return numbers rounded down such that sums of any of them are exact; `inf` stays.

    Examples
    --------
    >>> one, big = summable(np.array([1.3, 2.0**60])).tolist()
    >>> one + big - big == one
    True
    """
    finite = np.isfinite(numbers)
    total = float(np.abs(numbers[finite]).sum())
    return np.where(finite, rounded_down(numbers, step_of(total)), numbers)


def rounded_up(limit: float, step: float) -> float:
    """Return the least grid point that is not below a limit; `inf` for `inf`.

    Examples
    --------
    >>> rounded_up(0.3, 0.25)
    0.5
    """
    return limit if math.isinf(limit) else math.ceil(limit / step) * step
