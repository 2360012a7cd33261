"""Integer program that decides whether all messages over some boundaries meet a threshold.

Where all pairs in a block are admitted to a boundary, the block is a *cell* of it: any matching
inside will do, and has no variables. Elsewhere each device is a cell of its own. For boundaries s

    symbol      meaning
    x_{s,d}     1 if device d, a *gate* with admitted pairs between cells, serves stage s
    f_{s,b}     devices of block b that serve stage s and are no gates, or do not act as such
    y_{s,d,e}   1 if d in stage s sends to e in stage s + 1, of another cell
    n_{s,b}     Σ_{d in b} x_{s,d} + f_{s,b}: devices of b that serve stage s

    Σ_b n_{s,b} = R                                                                 (1) full
    Σ_s x_{s,d} ≤ 1                                                                 (2) once
    Σ_s n_{s,b} ≤ |b|                                                               (3) size
    Σ_e y_{s,d,e} ≤ x_{s,d}                                                         (4) sends
    Σ_d y_{s,d,e} ≤ x_{s+1,e}                                                       (5) receives
    n_{s,b} − Σ_{d in b} y_{s,d,e} = n_{s+1,b} − Σ_{e in b} y_{s,d,e}               (6) rest

and with the rings of `ring_program` (one, two, fill), for each stage s with a ring

    one_d + two_d ≤ x_{s,d}                                                         (7) serves
    Σ_{d in b} (one_d + two_d) + Σ_{k in b} fill_k = n_{s,b}                        (8) joined
    n_{s,b} = Σ_{d in b} x_{s,d} + f_{s,b},  a column of its own                    (9) held

with = in (4), (5) where the device is a cell of its own; in (6) the rest stays within cell b.
This is exact for the boundaries given, if fill finds devices that fit; those left out are relaxed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ...instances.common.arrays import Bools, Floats, Ints
from ..linear import LinearBuilder
from .ring_program import RingProgram, StageRing


@dataclass(frozen=True, eq=False)
class MessageProgram:
    """Program of messages, with its columns by stage and device."""

    gate: Ints  # (S, D): columns x; -1 where there is none
    fill: Ints  # (S, B): columns f; -1 where there is none
    # pairs, sent: by boundary, the ends of the admitted pairs between cells, and their columns y
    pairs: dict[int, tuple[Ints, Ints]]
    sent: dict[int, Ints]
    # block, fits: shapes (D,) and (S, D): block of each device, and devices that may serve each
    # stage
    block: Ints
    fits: Bools

    def members(self, x: Floats) -> dict[int, Ints] | None:
        """Return the devices of each stage in the program; None if fill does not fit."""
        found: dict[int, list[int]] = {}
        slots: list[tuple[int, int]] = []
        free = np.ones(len(self.block), np.bool_)
        served = (self.gate >= 0).any(axis=1) | (self.fill >= 0).any(axis=1)
        for t in np.flatnonzero(served).tolist():
            at = np.flatnonzero(self.gate[t] >= 0)
            found[t] = at[x[self.gate[t, at]] > 0.5].tolist()
            free[found[t]] = False
            for b in np.flatnonzero(self.fill[t] >= 0).tolist():
                slots += [(t, b)] * round(x[self.fill[t, b]])
        if slots:
            able = np.array([(self.block == b) & self.fits[s] & free for s, b in slots])
            device = maximum_bipartite_matching(csr_array(able), perm_type="column")
            if (device < 0).any():
                return None
            for (s, _), d in zip(slots, device.tolist(), strict=True):
                found[s].append(d)
        return {s: np.array(row) for s, row in found.items()}


def message_program(
    admitted: dict[int, Bools], fits: Bools, block: Ints, replicas: int, rings: RingProgram
) -> MessageProgram:
    """Add messages between pairs that are admitted at each boundary, (D, D), to a ring program.

    `fits`, (S, D), says which devices may serve each stage; blocks are numbered 0, 1, ….
    """
    shape = _shape(admitted, fits, block, rings.rings)
    build, most = rings.rows, float(replicas)
    gate, fill = _columns(build, shape, fits, block, most)
    members: dict[tuple[int, int], Ints] = {}
    sizes = np.bincount(block, minlength=fill.shape[1])
    for s in shape.used:
        for b in range(fill.shape[1]):
            places = np.r_[gate[s, block == b], fill[s, b]]
            places = places[places >= 0]
            if len(places) > 1:  # HiGHS branches on counts, then
                n = build.columns(1, min(most, float(sizes[b])))
                signs = np.r_[np.ones(len(places)), -1.0]
                build.row(f"held[{s},{b}]", np.r_[places, n], signs, 0, 0)
                places = n
            members[s, b] = places
        own = np.concatenate([members[s, b] for b in range(fill.shape[1])])
        build.row(f"full[{s}]", own, 1.0, most, most)
    for d in range(len(block)):
        places = gate[gate[:, d] >= 0, d]
        if len(places) > 1:
            build.row(f"once[{d}]", places, 1.0, 0, 1)
    for b in range(fill.shape[1]):
        places = np.concatenate([members[s, b] for s in shape.used])
        if len(places):
            build.row(f"size[{b}]", places, 1.0, 0, float(sizes[b]))
    _join(rings, gate, members, block)
    sent = {s: _boundary(build, s, shape, gate, members, block) for s in shape.pairs}
    return MessageProgram(gate, fill, shape.pairs, sent, block, fits)


@dataclass(frozen=True, eq=False)
class _Shape:
    """Stages of a program, and the pairs between cells and gates that have variables."""

    used: list[int]  # stages in the program
    pairs: dict[int, tuple[Ints, Ints]]  # by boundary, the ends of the admitted pairs between cells
    is_cell: dict[int, Bools]  # by boundary, shape (B,): blocks that are cells of it
    is_split: Bools  # (S, B): blocks all of whose devices are gates of the stage
    is_gate: Bools  # (S, D)


def _shape(admitted: dict[int, Bools], fits: Bools, block: Ints, rings: list[StageRing]) -> _Shape:
    stages, size = fits.shape
    blocks = int(block.max()) + 1
    split = np.zeros((stages, blocks), np.bool_)
    is_gate = np.zeros((stages, size), np.bool_)
    used = sorted({t for s in admitted for t in (s, s + 1)})
    pairs: dict[int, tuple[Ints, Ints]] = {}
    is_cell: dict[int, Bools] = {}
    for s, matrix in admitted.items():
        able = matrix & fits[s][:, None] & fits[s + 1][None, :]
        np.fill_diagonal(able, False)
        is_cell[s] = _cells(able, fits[s], fits[s + 1], block, blocks)
        within = (block[:, None] == block[None, :]) & is_cell[s][block][:, None]
        a, c = np.nonzero(able & ~within)
        pairs[s] = a, c
        for t, ends in ((s, a), (s + 1, c)):
            is_gate[t, ends] = True
            split[t] |= ~is_cell[s]
    for ring in rings:
        is_gate[ring.stage, ring.two >= 0] = True
    split_stages = used
    if rings:
        used = list(range(stages))
    for b in range(blocks):
        rows = fits[split_stages][:, block == b]
        rows = rows[rows.any(axis=1)]
        split[:, b] |= bool((rows != rows[:1]).any())  # fill might not find devices that fit
    split[[s for s in used if s not in split_stages]] = False
    is_gate[split_stages] |= split[split_stages][:, block]
    return _Shape(used, pairs, is_cell, split, is_gate & fits)


def _columns(
    build: LinearBuilder, shape: _Shape, fits: Bools, block: Ints, most: float
) -> tuple[Ints, Ints]:
    """Add the columns x and f; return their numbers, shapes (S, D) and (S, B), −1 for none."""
    gate: Ints = np.full(fits.shape, -1)
    fill: Ints = np.full(shape.is_split.shape, -1)
    for s in shape.used:
        at = np.flatnonzero(shape.is_gate[s])
        gate[s, at] = build.columns(len(at))
        capacity = np.bincount(block[fits[s]], minlength=fill.shape[1])
        for b in np.flatnonzero(~shape.is_split[s] & (capacity > 0)).tolist():
            fill[s, b] = build.columns(1, min(most, float(capacity[b])))[0]
    return gate, fill


def _boundary(
    build: LinearBuilder,
    s: int,
    shape: _Shape,
    gate: Ints,
    members: dict[tuple[int, int], Ints],
    block: Ints,
) -> Ints:
    """Add the messages of boundary s by equations (4) to (7); return the columns y."""
    a, c = shape.pairs[s]
    is_cell = shape.is_cell[s]
    y = build.columns(len(a))
    for name, t, ends in (("sends", s, a), ("receives", s + 1, c)):
        for d in np.flatnonzero(gate[t] >= 0).tolist():
            sent = y[ends == d]
            alone = not is_cell[block[d]]
            if alone or len(sent):
                factors = np.r_[np.ones(len(sent)), -1.0]
                low = 0 if alone else -np.inf
                build.row(f"{name}[{s},{d}]", np.r_[sent, gate[t, d]], factors, low, 0)
    for b in np.flatnonzero(is_cell).tolist():
        parts = members[s, b], y[block[a] == b], members[s + 1, b], y[block[c] == b]
        signs = np.repeat([1.0, -1.0, -1.0, 1.0], [len(part) for part in parts])
        if len(signs):
            build.row(f"rest[{s},{b}]", np.concatenate(parts), signs, 0, 0)
    return y


def _join(
    rings: RingProgram, gate: Ints, members: dict[tuple[int, int], Ints], block: Ints
) -> None:
    """Let rings have the devices that serve their stages: equations (7) and (9)."""
    for ring in rings.rings:
        s = ring.stage
        for b in range(int(block.max()) + 1):
            inside = np.flatnonzero(block == b)
            cells = np.unique(ring.cell[inside])
            held = [int(j) for j in ring.fill[cells[cells >= 0]] if j >= 0]
            for d in inside.tolist():
                places = ring.places(d)
                held += places
                if places:
                    signs = np.r_[np.ones(len(places)), -1.0]
                    columns = [*places, int(gate[s, d])]
                    rings.rows.row(f"serves[{s},{d}]", columns, signs, -np.inf, 0)
            signs = np.repeat([1.0, -1.0], [len(held), len(members[s, b])])
            if len(signs):
                rings.rows.row(f"joined[{s},{b}]", [*held, *members[s, b]], signs, 0, 0)


def _cells(able: Bools, senders: Bools, receivers: Bools, block: Ints, blocks: int) -> Bools:
    """Return whether each block is a cell: all pairs of its senders and receivers admitted."""
    found = np.zeros(blocks, np.bool_)
    for b in range(blocks):
        a, c = np.flatnonzero(senders & (block == b)), np.flatnonzero(receivers & (block == b))
        found[b] = able[np.ix_(a, c)].sum() == len(a) * len(c) - len(np.intersect1d(a, c))
    return found
