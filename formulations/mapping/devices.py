"""Which devices serve which stages, given counts per block: an integer program of what crosses.

Over pairs of devices of different blocks that are admitted at the upper bounds, given n_{s,b}:

    symbol      meaning
    x_{s,d}     1 if device d serves stage s
    y_{s,d,e}   1 if d sends to e on boundary s
    w_{s,d,e}   1 if d and e are neighbours on the ring of stage s
    h_{s,b}     half the links of the ring of stage s that leave block b
    z_{s,b}     1 if b holds the whole ring of stage s

    Σ_s x_{s,d} ≤ 1                                                                 (1) once
    Σ_d x_{s,d} = R                                                                 (2) full
    Σ_{d in b} x_{s,d} = n_{s,b}                                            (3) block_counts
    Σ_e y_{s,d,e} ≤ x_{s,d}                                                         (4) sends
    Σ_d y_{s,d,e} ≤ x_{s+1,e}                                                       (5) receives
    Σ_{d in b} (x_{s,d} − Σ_e y_{s,d,e}) = Σ_{e in b} (x_{s+1,e} − Σ_d y_{s,d,e})   (6) rest
    Σ_e w_{s,d,e} ≤ 2 x_{s,d}                                                       (7) two_links
    Σ_{d in b, e} w_{s,d,e} = 2 h_{s,b}                                             (8) enters
    Σ_{d in b} x_{s,d} ≥ R z_{s,b}                                                  (9) whole
    x_{s,d} ≤ h_{s,b} + z_{s,b}                                                    (10) joined

The rest stays within b (6). Rings enter and leave b (8), or stay within it (9). Inside a block all
pairs count as admitted, and a ring may come out as several: what is left is for the annealing.
Where more than MAX_PAIRS_PER_DEVICE pairs are admitted per device, the cheapest are taken.
"""

from __future__ import annotations

import numpy as np

from ...instances.common.arrays import Bools, Floats, Ints
from ..linear import Linear, LinearBuilder
from .costs import MappingCosts

#: Pairs per device that are told apart on one boundary or ring.
MAX_PAIRS_PER_DEVICE = 12


def device_program(
    costs: MappingCosts, block: Ints, on_boundary: Floats, on_ring: Floats, counts: Ints | None
) -> Linear:
    """Return the program; x comes first, by stage and device.

    Parameters
    ----------
    on_boundary, on_ring
        Shape (S,): upper bounds of the split that each stage takes, in seconds.
    counts
        Shape (S, B): n_bs; None to leave them open.
    """
    stages, size, r = costs.stages, costs.size, costs.replicas
    block_counts = np.full((stages, int(block.max()) + 1), -1) if counts is None else counts
    serves = block_counts[:, block] != 0
    build = LinearBuilder()
    x = build.columns((stages, size), serves)
    for d in range(size):
        build.row(f"once[{d}]", x[:, d], 1.0, 0, 1)
    for s in range(stages):
        build.row(f"full[{s}]", x[s], 1.0, r, r)
        for b in np.flatnonzero(block_counts[s] > 0).tolist():
            build.row(
                f"block_counts[{s},{b}]",
                x[s, block == b],
                1.0,
                block_counts[s, b],
                block_counts[s, b],
            )
    for s in np.flatnonzero(costs.boundary.any(axis=1)).tolist():
        cost = costs.boundary_costs(s)
        a, c = _pairs(cost, on_boundary[s], block, serves[s], serves[s + 1])
        _messages(build, s, x, block, a, c)
    for s in np.flatnonzero(costs.ring.any(axis=1) & np.isfinite(on_ring)).tolist():
        if r > 1 and (block_counts[s] > 0).sum() != 1:
            a, c = _pairs(costs.ring_costs(s), on_ring[s], block, serves[s], serves[s])
            keep = np.unique(np.minimum(a, c) * size + np.maximum(a, c))
            _ring(build, s, r, x[s], block, block_counts[s], keep // size, keep % size)
    return build.build()


def _messages(build: LinearBuilder, s: int, x: Ints, block: Ints, a: Ints, c: Ints) -> None:
    """Add y and (4) to (6) for a boundary with the admitted pairs a → c."""
    device = np.arange(len(block))
    y = build.columns(len(a))
    ones, minus = np.ones(len(a)), np.full(len(block), -1.0)
    build.table(f"sends[{s}]", np.r_[a, device], np.r_[y, x[s]], np.r_[ones, minus], 0)
    build.table(f"receives[{s}]", np.r_[c, device], np.r_[y, x[s + 1]], np.r_[ones, minus], 0)
    build.table(
        f"rest[{s}]",
        np.r_[block, block, block[a], block[c]],
        np.r_[x[s], x[s + 1], y, y],
        np.r_[-minus, minus, -ones, ones],
        0,
        0,
    )


def _ring(
    build: LinearBuilder, s: int, r: int, x: Ints, block: Ints, block_counts: Ints, a: Ints, c: Ints
) -> None:
    """Add w, h, z and (7) to (10) for a ring with the admitted pairs {a, c}."""
    device, blocks = np.arange(len(block)), np.arange(len(block_counts))
    w, h, z = (
        build.columns(len(a)),
        build.columns(len(block_counts), float(r)),
        build.columns(len(block_counts)),
    )
    ends, ones = np.r_[w, w], np.ones(2 * len(a))
    factors = np.r_[ones, np.full(len(block), -2.0)]
    build.table(f"two_links[{s}]", np.r_[a, c, device], np.r_[ends, x], factors, 0)
    factors = np.r_[ones, np.full(len(block_counts), -2.0)]
    build.table(f"enters[{s}]", np.r_[block[a], block[c], blocks], np.r_[ends, h], factors, 0, 0)
    for b in np.flatnonzero(block_counts).tolist():
        inside = np.flatnonzero(block == b)
        factors = np.r_[np.ones(len(inside)), -float(r)]
        build.row(f"whole[{s},{b}]", np.r_[x[inside], z[b]], factors, 0, np.inf)
        for d in inside.tolist():
            build.row(f"joined[{s},{d}]", [x[d], z[b], h[b]], [1.0, -1.0, -1.0], -np.inf, 0)


def _pairs(
    cost: Floats, upper_bound: float, block: Ints, senders: Bools, receivers: Bools
) -> tuple[Ints, Ints]:
    """Return the admitted pairs between blocks, the cheapest of each end if there are too many."""
    admitted = (cost <= upper_bound) & (block[:, None] != block[None, :])
    admitted &= senders[:, None] & receivers[None, :]
    if int(admitted.sum()) > MAX_PAIRS_PER_DEVICE * len(block):
        value = np.where(admitted, cost, np.inf)
        kept = np.zeros_like(admitted)
        best = np.argpartition(value, MAX_PAIRS_PER_DEVICE, axis=1)[:, :MAX_PAIRS_PER_DEVICE]
        np.put_along_axis(kept, best, True, axis=1)
        best = np.argpartition(value, MAX_PAIRS_PER_DEVICE, axis=0)[:MAX_PAIRS_PER_DEVICE]
        np.put_along_axis(kept, best, True, axis=0)
        admitted &= kept
    a, c = np.nonzero(admitted)
    return a, c
