"""A mapping counted by islands: a small integer program that every mapping of value ≤ T fulfils.

With b an island, s a stage, q one of the ways in which stage s may share its time (`shares`):

    n_bs   devices of b in stage s          Σ_b n_bs = R,  Σ_s n_bs ≤ |b|,  n_bs ≤ those that fit
    e_bs   messages of boundary s within b  e_bs ≤ n_bs,  e_bs ≤ n_b,s+1
    λ_sq   stage s shares its time by q     Σ_q λ_sq = 1

    n_bs − e_bs ≤ Σ_q λ_sq out_sqb          messages that leave b: a matching from b outwards
    n_b,s+1 − e_bs ≤ Σ_q λ_sq in_sqb        messages that enter b
    Σ_b (n_bs − e_bs) ≤ Σ_q λ_sq cross_sq   all messages between islands: a matching
    k_bs, z_bs  stage s uses b, uses b alone:  n_bs ≤ |b| k_bs,  n_bs ≥ R z_bs
    k_bs − z_bs ≤ Σ_q λ_sq ring_sqb         a ring that uses b and others enters and leaves it
    z_bs ≤ Σ_q λ_sq whole_sqb               whether b holds a whole ring of R

`ring` says whether any admitted ring link leaves b. Where islands are few,
y_bcs, the messages from b to c, are counted too, each below a matching between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.sparse import csr_array

from ..instances.arrays import Bools, Floats, Ints
from .mapping import MappingCosts
from .mapping_bound import Floors, caps, fitting, has_ring, matching_size, shares

#: Pairs of islands times boundaries up to which messages are counted by pair of islands.
MAX_PAIRS = 8000
#: Ways of sharing a stage's time that are told apart.
MAX_WAYS = 6


@dataclass(frozen=True, eq=False)
class IslandCounts:
    """The numbers of the program above; B islands, S stages, Q ways (padded with impossible ones).

    Parameters
    ----------
    size
        Shape (B,): devices.
    fits
        Shape (S, B): devices that fit the stage.
    ways
        Shape (S,): number of ways.
    out, into, ring
        Shape (S, Q, B).
    cross
        Shape (S, Q).
    whole
        Shape (S, Q, B): whether a whole ring fits in.
    pairs
        Shape (S, Q, B, B): matchings between islands; None if there are too many.
    has_boundary, has_ring
        Shape (S,): which terms the stage has at all.
    """

    replicas: int
    size: Ints
    fits: Ints
    ways: Ints
    out: Ints
    into: Ints
    cross: Ints
    ring: Ints
    whole: Bools
    pairs: Ints | None
    has_boundary: Bools
    has_ring: Bools


def count_islands(costs: MappingCosts, least: Floors, threshold: float) -> IslandCounts | None:
    """Return the program's numbers at a threshold; None if simpler conditions fail already."""
    fits = fitting(costs, least, threshold)
    limits = caps(costs, least, threshold)
    if fits is None or limits is None:
        return None
    names, island = np.unique(costs.island, return_inverse=True)
    b, s, r = len(names), costs.stages, costs.replicas
    has_boundary = np.asarray(costs.boundary.any(axis=1))
    has_ring_term = np.asarray(costs.ring.any(axis=1))
    ways: list[list[tuple[float, float]]] = []
    for k in range(s):
        both = has_boundary[k] and has_ring_term[k] and np.isfinite(limits[1][k])
        kept = [(float(limits[0][k]), float(limits[1][k]))]
        if both:
            kept = shares(costs, least, k, float((threshold - costs.base[k]) * (1 + 1e-12)))
        ways.append(_joined(kept))
    q = max(map(len, ways))
    by_pair = b * b * max(1, s - 1) <= MAX_PAIRS and bool(has_boundary.any())
    shape = (s, q, b)
    out, into, ring = (np.zeros(shape, np.int64) for _ in range(3))
    cross, whole = np.zeros((s, q), np.int64), np.zeros(shape, np.bool_)
    pairs = np.zeros((s, q, b, b), np.int64) if by_pair else None
    members = [np.flatnonzero(island == i) for i in range(b)]
    apart = island[:, None] != island[None, :]
    for k in range(s):
        messages = costs.boundary_costs(k) if has_boundary[k] else None
        rings = costs.ring_costs(k) if has_ring_term[k] else None
        for j, (on_boundary, on_ring) in enumerate(ways[k]):
            if messages is not None:
                admitted = (messages <= on_boundary) & apart
                admitted &= fits[k][:, None] & fits[k + 1][None, :]
                cross[k, j] = matching_size(admitted)
                out[k, j] = np.bincount(island[admitted.any(axis=1)], minlength=b)
                into[k, j] = np.bincount(island[admitted.any(axis=0)], minlength=b)
                if pairs is not None:
                    pairs[k, j] = _matchings(admitted, island, b)
            if rings is not None:
                admitted = rings <= on_ring
                np.fill_diagonal(admitted, False)
                admitted &= fits[k][:, None] & fits[k][None, :]
                outside = admitted & apart
                ring[k, j] = np.bincount(island[outside.any(axis=1)], minlength=b) > 0
                for i, group in enumerate(members):
                    whole[k, j, i] = has_ring(admitted[np.ix_(group, group)], r)
    return IslandCounts(
        replicas=r,
        size=np.array([len(group) for group in members]),
        fits=np.array([np.bincount(island[row], minlength=b) for row in fits]),
        ways=np.array([len(w) for w in ways]),
        out=out,
        into=into,
        cross=cross,
        ring=ring,
        whole=whole,
        pairs=pairs,
        has_boundary=has_boundary,
        # where another all-reduce than a ring may do, nothing is known of the ring
        has_ring=has_ring_term & np.isfinite(limits[1]),
    )


def _joined(ways: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most MAX_WAYS ways that allow no less: neighbours joined, larger caps kept."""
    if len(ways) <= MAX_WAYS:
        return ways
    parts = np.array_split(np.array(ways), MAX_WAYS)
    return [(float(p[:, 0].max()), float(p[:, 1].max())) for p in parts]


@njit(cache=True)
def _augment(a, admitted, columns, mate, seen):  # type: ignore[no-untyped-def]
    for k in range(len(columns)):
        if not seen[k] and admitted[a, columns[k]]:
            seen[k] = True
            if mate[k] < 0 or _augment(mate[k], admitted, columns, mate, seen):
                mate[k] = a
                return True
    return False


@njit(cache=True)
def _matchings(admitted, island, count):  # type: ignore[no-untyped-def]
    """Largest matching between each two islands; shape (B, B)."""
    result = np.zeros((count, count), np.int64)
    for b in range(count):
        rows = np.flatnonzero(island == b)
        for c in range(count):
            if b == c:
                continue
            columns = np.flatnonzero(island == c)
            mate = np.full(len(columns), -1, np.int64)
            for a in rows:
                if _augment(a, admitted, columns, mate, np.zeros(len(columns), np.bool_)):
                    result[b, c] += 1
    return result


@dataclass(frozen=True, eq=False)
class Rows:
    """The program as rows lower ≤ A x ≤ upper, with the bounds of x; no objective."""

    matrix: csr_array[np.float64]
    lower: Floats
    upper: Floats
    column_upper: Floats
    integer: Bools


def program(counts: IslandCounts) -> Rows:
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
            for i in range(b):
                row([(n[t, i], 1), (k[t, i], -float(counts.size[i]))], -np.inf, 0)
                row([(n[t, i], -1), (z[t, i], r)], -np.inf, 0)
                row([(k[t, i], 1), (z[t, i], -1), *by_way(counts.ring[t, :, i])], -np.inf, 0)
                row([(z[t, i], 1), *by_way(counts.whole[t, :, i].astype(np.int64))], -np.inf, 0)
    at, columns, factors = zip(*entries, strict=True)
    matrix = csr_array(
        (np.array(factors, np.float64), (np.array(at), np.array(columns))),
        shape=(len(low), total),
    )
    return Rows(matrix, np.array(low), np.array(high), upper, integer)
