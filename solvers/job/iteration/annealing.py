"""Annealing of the boundaries of a chain of stages, each chain executed.

It begins with equal parts, and again with the best chain of so many stages so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from ....formulations.job.iteration_bounds import divide
from ....formulations.job.line import Line
from ....formulations.job.orders import Chain, order_of
from ....instances.common.arrays import Floats, Ints, even_ends
from ...core.lattice import Lattice
from . import annealing_kernel as kernel
from .chains import Run, StageCount
from .stage_list import boundary_costs

#: Work of a step of annealing, in actions executed and nets looked at, some 0.3 CPU s; and its
#: most rounds.
WORK, MAX_ROUNDS = 240_000_000, 60_000

#: Part of the makespan by which a chain may become longer, at first and at last.
HEAT = (0.02, 1e-5)

#: Part of the moves that replace a boundary by any ideal between those around it.
JUMPS = 0.3


class ChainTimes(NamedTuple):
    """Times and bytes of a chain of stages, by ideals between them; K kinds, N ideals, E nets."""

    #: Shape (K, 2, N): forward and backward compute of each ideal.
    work: Floats
    #: Shape (K, 2, N): cost of each ideal's boundary to both its stages, where data is relayed.
    crossing: Floats
    #: Shape (K, 2, E): cost of each net to a device that cuts it; no nets where data is relayed.
    weight: Floats
    #: Shape (N, E): pins in each ideal.
    held: Ints
    #: Shape (E,): number of pins of each net.
    pins: Ints
    #: Shape (N,): bytes of each ideal, resident, and per microbatch in flight.
    resident: Floats
    activation: Floats
    #: Shape (D,): kind of each device.
    kind: Ints
    #: Shape (K,): memory of a device in bytes.
    room: Floats
    #: Shape (D, V, v): microbatches that its stages hold at once; rows of 0 fill up.
    in_flight: Ints
    #: Part of a backward pass's compute that W takes.
    share: float


class Steps(NamedTuple):
    """The ideals with one unit more or less: shapes (N + 1,) and (steps,); and `members`."""

    members: np.ndarray[tuple[int, int], np.dtype[np.uint64]]
    up_first: Ints
    up: Ints
    down_first: Ints
    down: Ints


#: Steps without a better plan after which annealing ends, if these are half of all, too.
ENOUGH = 50


def restarts(run: Run, numbers: Sequence[StageCount]) -> Iterator[None]:
    """Offer annealed chains of each number of stages that may be better, a step at a time.

    They begin with equal parts and with the best chain in turn, `limits.nodes` times at most; each
    time they cool in one step more.
    """
    chunks, limits = run.line.problem.chunks_per_device, run.search.limits
    best: dict[int, tuple[float, Ints]] = {}  # by number of stages: makespan, and ideals
    done, better = 0, 0  # steps, and the last one of them that found a better plan
    for n in count() if limits.nodes is None else range(limits.nodes):
        begun = done
        for number in sorted(numbers, key=lambda number: number.bound):
            start = equal_parts(run.line, run.lattice, number.size)
            if start is None or number.bound >= run.search.objective:
                continue
            if n % 2 and number.size in best:
                start = best[number.size][1]
            devices = number.size // chunks
            for kind in range(len(run.line.kinds)):
                if run.line.count[kind] < devices:
                    continue
                random, kinds = np.random.default_rng([limits.seed, n]), (kind,) * devices
                for found in anneal(
                    run.line, run.lattice, number.chain, kinds, start, random, n + 1
                ):
                    done, least = done + 1, run.search.objective
                    if found[0] < best.get(number.size, (np.inf,))[0]:
                        best[number.size] = found
                        run.offer(found[1], (kind,) * number.size, found[0])
                    if run.search.objective < least:
                        better = done
                    yield
                    if done - better >= max(ENOUGH, done // 2):
                        return
        if done == begun:
            return


def sizes_of(statement: Line) -> list[StageCount]:
    """Return the numbers of stages that plans can have, without listing stages."""
    problem = statement.problem
    least = statement.compute.min(axis=0)  # annealing ends at once where a unit runs nowhere
    forward, compute = np.where(np.isfinite(least), least, 0.0).sum(axis=1).tolist()
    found = []
    for size in statement.sizes():
        own = Chain(order_of(problem, size, statement.trains), problem.weight_share)
        found.append(StageCount(own, divide(own, forward, compute).bound))
    return found


def anneal(
    line: Line,
    lattice: Lattice,
    chain: Chain,
    kinds: tuple[int, ...],
    ideals: Ints,
    random: np.random.Generator,
    steps: int = 1,
) -> Iterator[tuple[float, Ints]]:
    """Yield, after each of some steps, its best chain and that chain's makespan by equation 1.

    It begins with a chain that passes `ideals`, shape (P + 1,), with a kind for each device.
    Nothing is yielded if it is not known how long a unit takes, or a step met no chain that fits
    into memory.
    """
    if len(ideals) < 3 or np.isinf(line.compute[list(kinds)]).any():
        return
    times, around = times_of(line, lattice, chain, kinds), steps_of(lattice)
    actions = chain.actions
    each = len(actions.which) + len(kinds) * times.held.shape[1]
    rounds = min(1 + WORK // each, MAX_ROUNDS)
    heat = np.geomspace(*HEAT, steps + 1)
    now, best = ideals.copy(), ideals.copy()
    for step in range(steps):
        draws = np.minimum(1 - random.random((rounds, 5)), 1 - 1e-12)
        warm = heat[step : step + 2]
        value = kernel.anneal(now, times, around, actions, warm, JUMPS, draws, best)
        if not np.isfinite(value):
            return
        yield float(value), best.copy()


def times_of(line: Line, lattice: Lattice, chain: Chain, kinds: tuple[int, ...]) -> ChainTimes:
    """Return the times and bytes of stages between ideals."""
    inside = lattice.bits
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
    """Return, for each ideal, those with one unit more or less."""
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
    work = lattice.bits[path] @ np.nan_to_num(line.compute.sum(axis=1).min(axis=0))[lattice.order]
    return np.array([0, *(path[i] for i in even_ends(work[1:], parts))], np.int64)
