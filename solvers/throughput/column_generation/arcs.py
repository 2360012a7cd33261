"""The steps between the states of a frontier, by the state that they lead to or come from."""

from __future__ import annotations

import numpy as np

from ....instances.common.arrays import Floats, Ints

#: Steps as compressed rows: those of state x are ptr[x] … ptr[x + 1] − 1. For each the state at its
#: other end, the place in the order of the unit that it takes (−1 if it leaves it out), and the
#: transfer time that it adds.
Arcs = tuple[Ints, Ints, Ints, Floats]


def arcs_forward(layer_ptr: Ints, step: Ints, cost: Floats) -> Arcs:
    """Return the steps into each state.

    Parameters
    ----------
    layer_ptr, step, cost
        As `build` returns them; a step of −1 is left out.
    """
    by_target = np.argsort(step, axis=None, kind="stable")
    by_target = by_target[np.count_nonzero(step < 0) :]
    return _arcs(layer_ptr, step.ravel()[by_target], by_target, by_target >> 1, cost)


def arcs_backward(layer_ptr: Ints, step: Ints, cost: Floats) -> Arcs:
    """Return the steps out of each state; parameters as of `arcs_forward`."""
    steps = np.flatnonzero(step >= 0)
    return _arcs(layer_ptr, steps >> 1, steps, step.ravel()[steps], cost)


def _arcs(layer_ptr: Ints, at: Ints, steps: Ints, other: Ints, cost: Floats) -> Arcs:
    """Return steps sorted by the state that they are listed at.

    Step 2 x + 1 takes the unit after state x, step 2 x leaves it out.
    """
    ptr = np.searchsorted(at, np.arange(layer_ptr[-1] + 1))
    layer = np.repeat(np.arange(len(layer_ptr) - 1), np.diff(layer_ptr))
    return ptr, other, np.where(steps & 1, layer[steps >> 1], -1), cost.ravel()[steps]
