"""Simulated annealing of the boundaries of a chain of stages, each chain executed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ....formulations.iteration.chain import Chain
from ....formulations.iteration.line import Line
from ....instances.common.arrays import Floats, Ints
from ...core.lattice import Lattice
from ..stage_list import bits, boundary_costs
from . import kernel

#: Work of a step of annealing, in actions executed and nets looked at: some 0.1 CPU s; and where
#: stages share a device, which makes many more local optima, some 0.3 CPU s.
WORK, SHARED_WORK = 40_000_000, 240_000_000
#: Rounds of a step at least and at most.
MIN_ROUNDS, MAX_ROUNDS = 2_000, 60_000
#: Part of the makespan by which a chain may become longer, at first and at last.
HEAT = (0.02, 1e-5)
#: Part of the moves that replace a boundary by any ideal between those around it, where stages
#: share a device.
JUMPS = 0.3


class ChainTimes(NamedTuple):
    """What the stages of a chain take, by the ideals between them; K kinds, N ideals, E nets.

    Parameters
    ----------
    work
        Shape (K, 2, N): forward and backward compute of each ideal.
    crossing
        Shape (K, 2, N): what the boundary costs the stages on both sides, where data is relayed.
    weight
        Shape (K, 2, E): what a device pays for a net; no nets where data is relayed.
    held
        Shape (N, E): pins in each ideal.
    pins
        Shape (E,).
    resident, activation
        Shape (N,): bytes.
    kind
        Shape (D,): of each device.
    room
        Shape (K,): bytes.
    in_flight
        Shape (D, V, v): microbatches that its stages hold at once; rows of 0 fill up.
    share
        Part of a backward pass's compute that W takes.
    """

    work: Floats
    crossing: Floats
    weight: Floats
    held: Ints
    pins: Ints
    resident: Floats
    activation: Floats
    kind: Ints
    room: Floats
    in_flight: Ints
    share: float


class Steps(NamedTuple):
    """The ideals with one unit more or less: shapes (N + 1,) and (steps,); and `members`."""

    members: np.ndarray[tuple[int, int], np.dtype[np.uint64]]
    up_first: Ints
    up: Ints
    down_first: Ints
    down: Ints


def anneal(
    line: Line,
    lattice: Lattice,
    chain: Chain,
    kinds: tuple[int, ...],
    ideals: Ints,
    seed: int,
    steps: int = 1,
) -> Iterator[tuple[float, Ints]]:
    """Yield, after each of some steps, its best chain and that chain's makespan by equation 1.

    Nothing is yielded if it is not known how long a unit takes, or a step met no chain that fits
    into memory.

    Parameters
    ----------
    chain
        The order of P stages.
    kinds
        Kind of each of the D devices.
    ideals
        Shape (P + 1,): that the chain passes.
    """
    if len(ideals) < 3 or np.isinf(line.compute[list(kinds)]).any():
        return
    times, around = times_of(line, lattice, chain, kinds), steps_of(lattice)
    actions = chain.actions
    each = len(actions.which) + len(kinds) * times.held.shape[1]
    work, jumps = (SHARED_WORK, JUMPS) if len(ideals) > len(kinds) + 1 else (WORK, 0.0)
    rounds = int(np.clip(work // each, MIN_ROUNDS, MAX_ROUNDS))
    random = np.random.default_rng(seed)
    heat = np.geomspace(*HEAT, steps + 1)
    now, best = ideals.copy(), ideals.copy()
    for step in range(steps):
        draws = np.minimum(1 - random.random((rounds, 5)), 1 - 1e-12)
        warm = heat[step : step + 2]
        value = kernel.anneal(now, times, around, actions, warm, jumps, draws, best)
        if not np.isfinite(value):
            return
        yield float(value), best.copy()


def times_of(line: Line, lattice: Lattice, chain: Chain, kinds: tuple[int, ...]) -> ChainTimes:
    """Return what stages between ideals take."""
    inside = bits(lattice)
    by_unit = inside[:, np.argsort(lattice.order)]
    number, size = len(line.kinds), lattice.size
    nets = line.weight.reshape(2 * number, -1)
    pins = () if line.problem.relayed else line.graph.pins
    crossing = np.zeros((2 * number, size))
    if line.problem.relayed:
        crossing = boundary_costs(line, by_unit, nets)
    held = np.zeros((size, len(pins)), np.int64)
    for e, net in enumerate(pins):
        held[:, e] = by_unit[:, list(net)].sum(axis=1)
    vectors = chain.order.in_flight
    in_flight = np.zeros((len(vectors), max(map(len, vectors)), vectors[0].shape[1]), np.int64)
    for d, listed in enumerate(vectors):
        in_flight[d, : len(listed)] = listed
    finite = np.nan_to_num(line.compute, posinf=0.0)
    return ChainTimes(
        work=np.ascontiguousarray(finite @ by_unit.T),
        crossing=crossing.reshape(number, 2, -1),
        weight=np.ascontiguousarray(line.weight[:, :, : len(pins)]),
        held=held,
        pins=np.array([len(net) for net in pins], np.int64),
        resident=by_unit @ line.resident,
        activation=by_unit @ line.activation,
        kind=np.array(kinds, np.int64),
        room=np.minimum(line.room, np.finfo(float).max),
        in_flight=in_flight,
        share=chain.share,
    )


def steps_of(lattice: Lattice) -> Steps:
    """Return the ideals next to each."""
    start = np.repeat(np.arange(lattice.size), np.diff(lattice.start))
    back = np.argsort(lattice.to, kind="stable")
    first = np.searchsorted(lattice.to[back], np.arange(lattice.size + 1))
    return Steps(
        lattice.members,
        lattice.start.astype(np.int64),
        lattice.to.astype(np.int64),
        first.astype(np.int64),
        start[back].astype(np.int64),
    )


def equal_parts(line: Line, lattice: Lattice, parts: int) -> Ints | None:
    """Return a chain of ideals with nearly equal compute in each stage; None if there is none."""
    path = [0]
    while lattice.start[path[-1]] < lattice.start[path[-1] + 1]:
        path.append(int(lattice.to[lattice.start[path[-1]]]))
    if len(path) <= parts:
        return None
    work = bits(lattice)[path] @ np.nan_to_num(line.compute.sum(axis=1).min(axis=0))[lattice.order]
    ends = np.searchsorted(work, work[-1] * np.arange(1, parts) / parts)
    number = np.arange(1, parts)
    ends = np.maximum.accumulate(ends - number) + number
    ends = np.clip(ends, number, len(path) - 1 - parts + number)
    return np.array([0, *(path[i] for i in ends), path[-1]], np.int64)
