"""Which devices serve which stages, given counts per block: an integer program of what crosses.

With x_ds (device d serves stage s), y_sde (d sends to e, in another block, on boundary s) and w_sde
(d and e, of different blocks, are neighbours on ring s), over pairs admitted at the caps:

    Σ_s x_ds ≤ 1,  Σ_{d in b} x_ds = n_bs
    Σ_e y_sde ≤ x_ds,  Σ_d y_sde ≤ x_{e,s+1}
    Σ_{d in b} (x_ds − Σ_e y_sde) = Σ_{e in b} (x_{e,s+1} − Σ_d y_sde)      the rest stays within b
    Σ_e w_sde ≤ 2 x_ds,  Σ_{d in b, e} w_sde = 2 h_bs                       rings enter and leave b
    x_ds ≤ h_bs + z_bs,  Σ_{d in b} x_ds ≥ R z_bs                           or stay within

Inside a block all pairs count as admitted, and a ring may come out as several: what is left is for
the annealing. Where more than MOST pairs are admitted per device, the cheapest are taken.
"""

from __future__ import annotations

import numpy as np

from ..instances.arrays import Bools, Floats, Ints
from .mapping import MappingCosts
from .mapping_counts import Rows
from .mapping_rows import RowBuilder

#: Pairs per device that are told apart on one boundary or ring.
MOST = 12


def device_program(
    costs: MappingCosts, block: Ints, on_boundary: Floats, on_ring: Floats, counts: Ints | None
) -> Rows:
    """Return the program; x comes first, by stage and device.

    Parameters
    ----------
    on_boundary, on_ring
        Shape (S,): caps of the way that each stage takes.
    counts
        Shape (S, B): n_bs; None to leave them open.
    """
    stages, blocks = costs.stages, int(block.max()) + 1
    size, r = costs.size, costs.replicas
    held = np.full((stages, blocks), -1) if counts is None else counts
    build = RowBuilder(stages * size)
    build.upper[: stages * size] = held[:, block].ravel() != 0
    device = np.arange(size)
    x = np.arange(stages * size).reshape(stages, size)
    for d in range(size):
        build.row(x[:, d], np.ones(stages), 0, 1)
    for s in range(stages):
        build.row(x[s], np.ones(size), r, r)
        for b in np.flatnonzero(held[s] > 0).tolist():
            inside = x[s, block == b]
            build.row(inside, np.ones(len(inside)), held[s, b], held[s, b])
    for s in np.flatnonzero(costs.boundary.any(axis=1)).tolist():
        served, next_ = held[s, block] != 0, held[s + 1, block] != 0
        a, c = _pairs(costs.boundary_costs(s), on_boundary[s], block, served, next_)
        y = build.columns(len(a))
        ones, minus = np.ones(len(a)), np.full(size, -1.0)
        build.table(np.r_[a, device], np.r_[y, x[s]], np.r_[ones, minus], 0)
        build.table(np.r_[c, device], np.r_[y, x[s + 1]], np.r_[ones, minus], 0)
        build.table(
            np.r_[block, block, block[a], block[c]],
            np.r_[x[s], x[s + 1], y, y],
            np.r_[-minus, minus, -ones, ones],
            0,
            0,
        )
    for s in np.flatnonzero(costs.ring.any(axis=1) & np.isfinite(on_ring)).tolist():
        if r == 1 or (held[s] > 0).sum() == 1:
            continue
        served = held[s, block] != 0
        a, c = _pairs(costs.ring_costs(s), on_ring[s], block, served, served)
        keep = np.unique(np.minimum(a, c) * size + np.maximum(a, c))
        a, c = keep // size, keep % size
        # w, half the links that leave a block, and whether the block holds the whole ring
        w, h, z = build.columns(len(a)), build.columns(blocks, float(r)), build.columns(blocks)
        twos = np.full(size, -2.0)
        build.table(np.r_[a, c, device], np.r_[w, w, x[s]], np.r_[np.ones(2 * len(a)), twos], 0)
        build.table(
            np.r_[block[a], block[c], np.arange(blocks)],
            np.r_[w, w, h],
            np.r_[np.ones(2 * len(a)), twos[:blocks]],
            0,
            0,
        )
        for b in np.flatnonzero(held[s]).tolist():
            inside = x[s, block == b]
            count = len(inside)
            build.row(np.r_[inside, z[b]], np.r_[np.ones(count), -r], 0, np.inf)
            for d in inside.tolist():
                build.row(np.array([d, z[b], h[b]]), np.array([1.0, -1.0, -1.0]), -np.inf, 0)
    return build.rows()


def _pairs(
    cost: Floats, cap: float, block: Ints, senders: Bools, receivers: Bools
) -> tuple[Ints, Ints]:
    """Return the admitted pairs between blocks, at most the MOST cheapest of each end."""
    admitted = (cost <= cap) & (block[:, None] != block[None, :])
    admitted &= senders[:, None] & receivers[None, :]
    if int(admitted.sum()) > MOST * len(block):
        value = np.where(admitted, cost, np.inf)
        kept = np.zeros_like(admitted)
        best = np.argpartition(value, MOST, axis=1)[:, :MOST]
        np.put_along_axis(kept, best, True, axis=1)
        best = np.argpartition(value, MOST, axis=0)[:MOST]
        np.put_along_axis(kept, best, True, axis=0)
        admitted &= kept
    a, c = np.nonzero(admitted)
    return a, c
