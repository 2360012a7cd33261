"""Latency and bandwidth from times of messages: a robust fit of the postal model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from ...instances import InputError, Link
from ...instances.common.arrays import Floats, frozen

#: Bandwidth of a fit to times that do not rise with the size: above any link's.
MOST_BYTES_PER_S = 1e15


@dataclass(frozen=True, eq=False)
class Fit:
    """Link fitted to messages of K sizes."""

    link: Link  # latency and bandwidth
    size_bytes: Floats  # size_bytes, seconds: (K,), as measured
    seconds: Floats
    model_s: Floats  # (K,): seconds by the fit

    def __post_init__(self) -> None:
        for key in ("size_bytes", "seconds", "model_s"):
            object.__setattr__(self, key, frozen(getattr(self, key), np.float64))

    @cached_property
    def residuals(self) -> Floats:
        """Relative errors, shape (K,): model / measured − 1."""
        return frozen(self.model_s / self.seconds - 1, np.float64)

    @property
    def typical_error(self) -> float:
        """Median of the absolute residuals."""
        return float(np.median(np.abs(self.residuals)))

    @property
    def worst_error(self) -> float:
        """Largest absolute residual."""
        return float(np.abs(self.residuals).max())


def fit_postal(size_bytes: Floats, seconds: Floats) -> Fit:
    """Return latency + bytes / bandwidth fitted to times of messages, such as medians by size.

    Raises InputError if there are not two sizes, or a time is not above 0.
    """
    return _fit(size_bytes, seconds, 1, 1.0)


def fit_ring(size_bytes: Floats, seconds: Floats, ranks: int) -> Fit:
    """Return a fit to ring all-reduces, 2(R−1)/R·bytes/bandwidth + 2(R−1)·latency.

    The link is the slowest of the ring, as `network.ring_all_reduce_s` takes it. Raises InputError
    if there are not two sizes, or a time is not above 0.
    """
    hops = 2 * (ranks - 1)
    return _fit(size_bytes, seconds, hops, hops / ranks)


def least_absolute_line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return a ≥ 0 and b ≥ 0 that minimise Σ |a + b·x − y| / y, exactly.

    Relative errors give small and large messages equal weight, and absolute values, unlike squares,
    give little to a few disturbed measurements. It is a linear program in two variables: an optimum
    lies where two of the lines a + b·x = y, a = 0 and b = 0 meet, so all meetings are tried.
    O(K³) for K points.
    """
    candidates = [(0.0, float(slope)) for slope in y / x] + [(float(value), 0.0) for value in y]
    for i, j in combinations(range(len(x)), 2):
        if x[i] != x[j]:
            slope = (y[j] - y[i]) / (x[j] - x[i])
            candidates.append((float(y[i] - slope * x[i]), float(slope)))
    lines = np.array([(a, b) for a, b in candidates if a >= 0 and b >= 0])
    errors = np.abs((lines[:, :1] + lines[:, 1:] * x) / y - 1).sum(axis=1)
    best = lines[int(np.argmin(errors))]
    return float(best[0]), float(best[1])


def _fit(size_bytes: Floats, seconds: Floats, hops: int, passes: float) -> Fit:
    """Return a fit of hops · latency + passes · bytes / bandwidth."""
    sizes, times = np.asarray(size_bytes, np.float64), np.asarray(seconds, np.float64)
    if len(np.unique(sizes)) < 2:
        raise InputError("fit: messages of one size; measure at least two sizes")
    if not (np.isfinite(times).all() and (times > 0).all() and (sizes > 0).all()):
        raise InputError("fit: a size or time is not above 0; measure again")
    base, slope = least_absolute_line(passes * sizes, times)
    link = Link(base / hops, 1 / max(slope, 1 / MOST_BYTES_PER_S))
    return Fit(link, sizes, times, base + slope * passes * sizes)
