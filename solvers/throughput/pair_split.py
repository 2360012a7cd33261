"""The best split of two devices, with the other devices as they are."""

from __future__ import annotations

from ...instances.common.arrays import Bools, Ints
from .column_generation.frontier import Incidence
from .column_generation.frontier_kernels import build
from .column_generation.frontier_slots_kernel import Nets
from .pair_kernels import Layers, Pair, held_by, least_to_go, split_pair

#: Most states of one layer.
WIDTH = 4000


def resplit(
    where: Ints,
    free: Bools,
    pair: Pair,
    order: Ints,
    shape: Incidence,
    most: float,
    *,
    least_sum: bool,
) -> bool | None:
    """Split the free units of two devices anew, both loads below `most`.

    Parameters
    ----------
    where, free
        Shape (U,): device of each unit, and whether it may move; `where` is written on success.
    order
        Shape (U,): order of the units of small frontier.
    least_sum
        Whether to minimise the sum of the loads, else their maximum.

    Returns
    -------
    bool or None
        Whether a split was found; None if that is too much work.
    """
    units, held = held_by(where, free, pair, order, shape.net_ptr, shape.net_pins)
    floor = held.load_a + held.load_b + held.least_compute
    nets = Nets(held.pins_left, held.fixed, held.outside, pair.weight_a, pair.weight_b)
    most_paid = 2 * most * (1 + 1e-9) - floor
    ptr, step, cost_a, cost_b, _ = build(
        units, shape.unit_ptr, shape.unit_nets, nets, both=True, most=most_paid, width=WIDTH,
        room=64 * WIDTH, relax=False,
    )  # fmt: skip
    if len(ptr) == 0:
        return None
    if most <= 0:
        return False
    layers = Layers(ptr, step, cost_a, cost_b)
    togo = least_to_go(units, pair, layers)
    code = split_pair(where, units, pair, layers, togo, held, most, least_sum=least_sum)
    return None if code < 0 else bool(code)
