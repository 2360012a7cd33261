"""The values that the objective can have, where each stage has one kind of message only."""

from __future__ import annotations

import numpy as np

from ...instances.common.arrays import Floats
from .costs import MappingCosts


def possible_values(costs: MappingCosts, low: float, high: float) -> Floats | None:
    """Return what the longest stage can take, above `low` and at most `high`, ascending.

    None if a stage has both kinds of messages, or another all-reduce than a ring may do: then the
    values are too many. O(S·D²) time.
    """
    sends = np.asarray(costs.boundary.any(axis=1))
    rings = np.asarray(costs.ring.any(axis=1))
    if (sends & rings).any() or (rings & np.isfinite(costs.non_ring_lower_bound)).any():
        return None
    found = [np.array([costs.lower_bound, *costs.base])]
    for s in np.flatnonzero(sends | rings).tolist():
        pair = costs.boundary_costs(s) if sends[s] else costs.ring_costs(s)
        value = costs.base[s] + pair
        found.append(np.unique(value[(value > low) & (value <= high)]))
    values = np.unique(np.concatenate(found))
    return values[(values > low) & (values <= high)]
