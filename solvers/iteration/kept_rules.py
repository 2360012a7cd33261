"""Which stages keep the rules that a user gave for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...formulations.rules.stages import StageRules
from ...instances.common.arrays import Bools, Ints
from ..core.lattice import Lattice


def keep_apart(rules: StageRules, lattice: Lattice, start: Ints, end: Ints) -> Bools:
    """Return, shape (R,), which stages hold no two units that must be apart.

    Parameters
    ----------
    start, end
        Shape (R,): the ideals of each stage.
    """
    kept = np.ones(len(start), np.bool_)
    for pair in rules.units_apart:
        inside = [lattice.has(unit) for unit in pair]
        kept &= ~np.logical_and(*(one[end] & ~one[start] for one in inside))
    return kept


def keep_pins(
    rules: StageRules, lattice: Lattice, size: int, s: int, start: Ints, end: Ints
) -> Bools:
    """Return, shape (R,), which stages can be stage s of `size` as far as pins go.

    What is pinned to an earlier stage is in the ideal before, what is pinned to a later one behind.
    """
    kept = np.ones(len(start), np.bool_)
    for unit, own in rules.stages(size).items():
        inside = lattice.has(unit)
        kept &= (inside[start] == (own < s)) & (inside[end] == (own <= s))
    return kept


def share_a_device(rules: StageRules, lattice: Lattice, stages: Sequence[tuple[int, int]]) -> bool:
    """Whether stages, pairs of ideals, may be on one device."""
    units = {unit for pair in rules.units_apart for unit in pair}
    held = {
        unit
        for unit in units
        if any(lattice.holds(end, unit) and not lattice.holds(start, unit) for start, end in stages)
    }
    return not any(held.issuperset(pair) for pair in rules.units_apart)


def keeps(rules: StageRules, lattice: Lattice, device: Ints, start: Ints, end: Ints) -> bool:
    """Whether a chain of stages keeps all rules.

    Parameters
    ----------
    device
        Shape (P,): the device of each stage.
    start, end
        Shape (P,): its ideals.
    """
    for unit, own in rules.stages(len(device)).items():
        if lattice.holds(int(start[own]), unit) or not lattice.holds(int(end[own]), unit):
            return False
    pairs = list(zip(start.tolist(), end.tolist(), strict=True))
    return not rules.apart or all(
        share_a_device(rules, lattice, [pairs[s] for s in np.flatnonzero(device == d)])
        for d in np.unique(device)
    )
