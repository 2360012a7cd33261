"""A mapping counted by blocks: a small integer program that every mapping of value ≤ T fulfils.

With b a block, s a stage, q one of the ways in which stage s may share its time (`mapping_ways`):

    n_bs   devices of b in stage s          Σ_b n_bs = R,  Σ_s n_bs ≤ |b|,  n_bs ≤ those that fit
    e_bs   messages of boundary s within b  e_bs ≤ n_bs,  e_bs ≤ n_b,s+1
    λ_sq   stage s shares its time by q     Σ_q λ_sq = 1

    n_bs − e_bs ≤ Σ_q λ_sq out_sqb          messages that leave b: a matching from b outwards
    n_b,s+1 − e_bs ≤ Σ_q λ_sq in_sqb        messages that enter b
    Σ_b (n_bs − e_bs) ≤ Σ_q λ_sq cross_sq   all messages between blocks: a matching
    k_bs, z_bs  stage s uses b, uses b alone:  n_bs ≤ |b| k_bs,  n_bs ≥ R z_bs
    k_bs − z_bs ≤ Σ_q λ_sq ring_sqb         a ring that uses b and others enters and leaves it
    Σ_b (k_bs − z_bs) ≤ Σ_q λ_sq links_sq   as many links as blocks
    z_bs ≤ Σ_q λ_sq whole_sqb               whether b holds a whole ring of R

Where blocks are few, y_bcs, the messages from b to c, are counted too, each below a matching
between the two. The objective has no meaning for the bound: it counts what crosses, so that
solutions are good beginnings of a search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from ..instances.arrays import Bools, Floats, Ints
from .mapping_ways import BlockCounts


@dataclass(frozen=True, eq=False)
class Rows:
    """The program as rows lower ≤ A x ≤ upper, with bounds and costs of x."""

    matrix: csr_array[np.float64]
    lower: Floats
    upper: Floats
    column_upper: Floats
    integer: Bools
    cost: Floats


def program(counts: BlockCounts) -> Rows:
    """Return the program; rows in the order of the module's text."""
    s, b = counts.fits.shape
    q = counts.out.shape[1]
    r = counts.replicas
    sizes: dict[str, tuple[int, ...]] = {
        "n": (s, b),
        "e": (s, b),
        "l": (s, q),
        "k": (s, b),
        "z": (s, b),
    }
    if counts.pairs is not None:
        sizes["y"] = (s, b, b)
    column: dict[str, Ints] = {}
    total = 0
    for name, shape in sizes.items():
        column[name] = total + np.arange(int(np.prod(shape))).reshape(shape)
        total += int(np.prod(shape))
    # finite everywhere: HiGHS 1.12 calls some of these programs infeasible without
    upper = np.full(total, float(r))
    upper[column["n"]] = counts.fits
    for name in "lkz":
        upper[column[name]] = 1.0
    integer = np.zeros(total, np.bool_)
    for name in "nlkz":
        integer[column[name]] = True
    entries: list[tuple[int, int, float]] = []
    low: list[float] = []
    high: list[float] = []

    def row(terms: list[tuple[int, float]], least: float, most: float) -> None:
        entries.extend((len(low), int(j), float(value)) for j, value in terms)
        low.append(least)
        high.append(most)

    n, e, lam, k, z = (column[name] for name in "nelkz")
    for t in range(s):
        row([(j, 1) for j in n[t]], r, r)
        upper[lam[t, counts.ways[t] :]] = 0.0
        row([(j, 1) for j in lam[t]], 1, 1)
    for i in range(b):
        row([(j, 1) for j in n[:, i]], 0, int(counts.size[i]))
    for t in range(s):
        ways = range(int(counts.ways[t]))

        def by_way(values: Ints, t: int = t, ways: range = ways) -> list[tuple[int, float]]:
            return [(lam[t, j], -float(values[j])) for j in ways]

        if counts.has_boundary[t]:
            for i in range(b):
                row([(e[t, i], 1), (n[t, i], -1)], -np.inf, 0)
                row([(e[t, i], 1), (n[t + 1, i], -1)], -np.inf, 0)
                row([(n[t, i], 1), (e[t, i], -1), *by_way(counts.out[t, :, i])], -np.inf, 0)
                row([(n[t + 1, i], 1), (e[t, i], -1), *by_way(counts.into[t, :, i])], -np.inf, 0)
            leaving = [(j, 1.0) for j in n[t]] + [(j, -1.0) for j in e[t]]
            row([*leaving, *by_way(counts.cross[t])], -np.inf, 0)
            if counts.pairs is not None:
                y = column["y"][t]
                for i in range(b):
                    row([(n[t, i], -1), (e[t, i], 1), *((j, 1) for j in y[i])], 0, 0)
                    row([(n[t + 1, i], -1), (e[t, i], 1), *((j, 1) for j in y[:, i])], 0, 0)
                    for c in range(b):
                        values = counts.pairs[t, :, i, c]
                        if values.any():
                            row([(y[i, c], 1), *by_way(values)], -np.inf, 0)
                        else:
                            upper[y[i, c]] = 0.0
        if counts.has_ring[t] and r > 1:
            entered = [(j, 1.0) for j in k[t]] + [(j, -1.0) for j in z[t]]
            row([*entered, *by_way(counts.links[t])], -np.inf, 0)
            for i in range(b):
                row([(n[t, i], 1), (k[t, i], -float(counts.size[i]))], -np.inf, 0)
                row([(n[t, i], -1), (z[t, i], r)], -np.inf, 0)
                row([(k[t, i], 1), (z[t, i], -1), *by_way(counts.ring[t, :, i])], -np.inf, 0)
                row([(z[t, i], 1), *by_way(counts.whole[t, :, i].astype(np.int64))], -np.inf, 0)
    cost = np.zeros(total)
    for t in np.flatnonzero(counts.has_boundary).tolist():
        cost[e[t]] = -1.0
    cost[k] = 1.0
    at, columns, factors = zip(*entries, strict=True)
    matrix = csr_array(
        (np.array(factors, np.float64), (np.array(at), np.array(columns))),
        shape=(len(low), total),
    )
    return Rows(matrix, np.array(low), np.array(high), upper, integer, cost)
