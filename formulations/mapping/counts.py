"""A mapping counted by blocks: a small integer program that every mapping of value ≤ T fulfils.

For a block b, a stage s, and a split q of the slack of stage s (`splits.py`):

    symbol      meaning
    n_{s,b}     devices of b in stage s, at most those that fit
    k_{s,b}     messages of boundary s within b
    y_{s,b,c}   messages of boundary s from b to c, where blocks are few
    λ_{s,q}     1 if stage s shares its time by q
    u_{s,b}     1 if stage s uses b
    z_{s,b}     1 if b holds the whole ring of stage s

    Σ_b n_{s,b} = R                                                                 (1) full
    Σ_q λ_{s,q} = 1                                                               (2) one_split
    Σ_s n_{s,b} ≤ |b|                                                               (3) size
    k_{s,b} ≤ n_{s,b}                                                               (4) from_here
    k_{s,b} ≤ n_{s+1,b}                                                             (5) to_here
    n_{s,b} − k_{s,b} ≤ Σ_q λ_{s,q} out_{s,q,b}                                     (6) out
    n_{s+1,b} − k_{s,b} ≤ Σ_q λ_{s,q} in_{s,q,b}                                    (7) into
    Σ_b (n_{s,b} − k_{s,b}) ≤ Σ_q λ_{s,q} cross_{s,q}                               (8) cross
    Σ_c y_{s,b,c} = n_{s,b} − k_{s,b}                                               (9) sent
    Σ_b y_{s,b,c} = n_{s+1,c} − k_{s,c}                                            (10) got
    y_{s,b,c} ≤ Σ_q λ_{s,q} pairs_{s,q,b,c}                                        (11) pair
    Σ_b (u_{s,b} − z_{s,b}) ≤ Σ_q λ_{s,q} links_{s,q}                              (12) links
    n_{s,b} ≤ |b| u_{s,b}                                                          (13) uses
    n_{s,b} ≥ R z_{s,b}                                                            (14) whole
    u_{s,b} − z_{s,b} ≤ Σ_q λ_{s,q} ring_{s,q,b}                                   (15) ring
    z_{s,b} ≤ Σ_q λ_{s,q} whole_{s,q,b}                                            (16) alone

Matchings of admitted pairs are on the right: messages that leave b (6), enter b (7), cross between
blocks (8), and go from b to c (11). A ring that uses b and others enters and leaves it (15), over
as many links as blocks (12); (16) says whether b can hold a ring of R. The objective has no meaning
for the bound: it counts what crosses, so that solutions are good beginnings of a search.
"""

from __future__ import annotations

import numpy as np

from ...instances.common.arrays import Bools, Ints
from ..linear import Linear, LinearBuilder
from .splits import BlockCapacities


def program(counts: BlockCapacities) -> Linear:
    """Return the program; n comes first, then k and λ, each by stage."""
    stages, blocks = counts.fits.shape
    build = LinearBuilder()
    # finite everywhere: HiGHS 1.12 calls some of these programs infeasible without
    n = build.columns((stages, blocks), counts.fits)
    k = build.columns((stages, blocks), float(counts.replicas), whole=False)
    lam = build.columns((stages, counts.out.shape[1]))
    u, z = build.columns((stages, blocks)), build.columns((stages, blocks))
    for s in range(stages):
        build.row(f"full[{s}]", n[s], 1.0, counts.replicas, counts.replicas)
        build.upper[lam[s, counts.splits[s] :]] = 0.0
        build.row(f"one_split[{s}]", lam[s], 1.0, 1, 1)
    for b in range(blocks):
        build.row(f"size[{b}]", n[:, b], 1.0, 0, int(counts.size[b]))
    y = None
    if counts.pairs is not None:
        y = build.columns((stages, blocks, blocks), float(counts.replicas), whole=False)
    for s in range(stages):
        if counts.has_boundary[s]:
            _messages(build, counts, s, n, k, lam)
            if y is not None:
                _pairs(build, counts, s, n, k, lam, y[s])
        if counts.has_ring[s] and counts.replicas > 1:
            _ring(build, counts, s, n, lam, u[s], z[s])
    cost = np.zeros(len(build.upper))
    cost[k[np.flatnonzero(counts.has_boundary)]] = -1.0
    cost[u] = 1.0
    return build.build(cost)


def _at_most(
    build: LinearBuilder, name: str, plus: Ints, minus: Ints, splits: Ints, values: Ints | Bools
) -> None:
    """Add rows Σ plus − Σ minus ≤ Σ_q values_q λ_q, over the splits that there are.

    Parameters
    ----------
    plus, minus
        Shape (rows, any): columns.
    values
        Shape (q, rows).
    """
    rows, q = len(plus), len(splits)
    columns = np.hstack([plus, minus, np.tile(splits, (rows, 1))])
    signs = np.ones(plus.shape), -np.ones(minus.shape)
    factors = np.hstack([*signs, -values[:q].T.astype(np.float64)])
    at = np.repeat(np.arange(rows), columns.shape[1])
    build.table(name, at, columns.ravel(), factors.ravel(), 0)


def _messages(
    build: LinearBuilder, counts: BlockCapacities, s: int, n: Ints, k: Ints, lam: Ints
) -> None:
    """Add (4) to (8) for a boundary."""
    splits, none = lam[s, : counts.splits[s]], lam[s, :0]
    inside, first, second = k[s, :, None], n[s, :, None], n[s + 1, :, None]
    _at_most(build, f"from_here[{s}]", inside, first, none, counts.out[s])
    _at_most(build, f"to_here[{s}]", inside, second, none, counts.out[s])
    _at_most(build, f"out[{s}]", first, inside, splits, counts.out[s])
    _at_most(build, f"into[{s}]", second, inside, splits, counts.into[s])
    _at_most(build, f"cross[{s}]", n[None, s], k[None, s], splits, counts.cross[s, :, None])


def _pairs(
    build: LinearBuilder, counts: BlockCapacities, s: int, n: Ints, k: Ints, lam: Ints, y: Ints
) -> None:
    """Add (9) to (11) for a boundary, given its columns y, shape (B, B)."""
    assert counts.pairs is not None
    splits, blocks = lam[s, : counts.splits[s]], len(y)
    at = np.repeat(np.arange(blocks), blocks + 2)
    signs = np.tile(np.r_[-1.0, 1.0, np.ones(blocks)], blocks)
    for name, served, moved in (("sent", n[s], y), ("got", n[s + 1], y.T)):
        columns = np.column_stack([served, k[s], moved]).ravel()
        build.table(f"{name}[{s}]", at, columns, signs, 0, 0)
    values = counts.pairs[s].reshape(-1, blocks * blocks)
    some = values.any(axis=0)
    build.upper[y.ravel()[~some]] = 0.0
    if some.any():
        each = y.ravel()[some][:, None]
        _at_most(build, f"pair[{s}]", each, each[:, :0], splits, values[:, some])


def _ring(
    build: LinearBuilder, counts: BlockCapacities, s: int, n: Ints, lam: Ints, u: Ints, z: Ints
) -> None:
    """Add (12) to (16) for a ring, given its columns u and z, shape (B,)."""
    splits, r = lam[s, : counts.splits[s]], float(counts.replicas)
    at, ones = np.repeat(np.arange(len(u)), 2), np.ones(len(u))
    used, alone = u[:, None], z[:, None]
    _at_most(build, f"links[{s}]", u[None], z[None], splits, counts.links[s, :, None])
    for name, columns, factors in (
        ("uses", np.column_stack([n[s], u]), np.column_stack([ones, -counts.size])),
        ("whole", np.column_stack([n[s], z]), np.column_stack([-ones, r * ones])),
    ):
        build.table(f"{name}[{s}]", at, columns.ravel(), factors.ravel(), 0)
    _at_most(build, f"ring[{s}]", used, alone, splits, counts.ring[s])
    _at_most(build, f"alone[{s}]", alone, alone[:, :0], splits, counts.whole[s])
