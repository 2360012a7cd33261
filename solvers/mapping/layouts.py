"""Constructions of mappings on grids and islands, optimal or a good start.

*p2p on a grid*: a box grid has a Hamiltonian path; cut into R pieces of S, every message goes one
hop. *All-reduce on a grid*: a box of even size with two sides of at least two has a Hamiltonian
cycle; every stage is such a box, and every ring message goes one hop. *Both*: boxes in snake order,
with bottleneck matchings between them. *Islands*: k replicas of a stage in each of R/k islands.

The first mapping, of stages cut evenly onto devices in a row, needs no compiled kernel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import product

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from ...formulations.mapping.all_cuts import partition_units
from ...formulations.mapping.costs import MappingCosts
from ...formulations.mapping.kernels import matching_size
from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution
from ...instances.common.arrays import Floats, Ints, even_ends
from ...instances.common.units import divisors
from ..core.search import Search
from .partition import orders


def layouts(costs: MappingCosts) -> Iterator[tuple[Ints, Ints]]:
    """Yield constructed mappings as `slots`, shape (S, R), and `sends_to`, shape (S−1, R)."""
    s, r = costs.stages, costs.replicas
    straight = np.tile(np.arange(r), (max(0, s - 1), 1))
    if not costs.fits.all() or costs.unlike:
        slots = _by_device(costs)
        yield slots, matched(costs, slots)
    orders = [snake(costs.shape)] if costs.shape else []
    orders.append(np.lexsort((np.arange(costs.size), costs.island)))
    for order in orders:
        used = order[: s * r]
        yield used.reshape(r, s).T.copy(), straight  # a replica after the other: neighbours send
        slots = used.reshape(s, r)  # a stage after the other: neighbours reduce
        yield slots, matched(costs, slots)
    for slots in (*_boxes(costs), *_island_layouts(costs)):
        yield slots, matched(costs, slots)


def _by_device(costs: MappingCosts) -> Ints:
    """Return slots, shape (S, R), for which the stages that fit fewest devices choose first.

    Of those that fit equally many, the longest chooses first. A stage for which too few devices are
    left gets others.
    """
    slots = np.empty((costs.stages, costs.replicas), np.int64)
    free = np.lexsort((np.arange(costs.size), costs.island))
    longest_first = -(costs.base + costs.own.min(axis=1)) * costs.unlike
    for s in np.lexsort((longest_first, costs.fits.sum(axis=1))).tolist():
        # of the fastest the smallest that fit, so that large ones are left for other stages
        small = costs.fits[:, free].sum(axis=0)
        wanted = np.lexsort((small, costs.own[s, free], ~costs.fits[s, free]))
        slots[s] = free[np.sort(wanted[: costs.replicas])]
        free = np.delete(free, wanted[: costs.replicas])
    return slots


def matched(costs: MappingCosts, slots: Ints) -> Ints:
    """Return the bottleneck matchings between stages: least longest message; shape (S−1, R)."""
    sends_to = np.tile(np.arange(costs.replicas), (max(0, costs.stages - 1), 1))
    for s in range(costs.stages - 1):
        alpha, beta = costs.boundary[s]
        if alpha or beta:
            pairs = np.ix_(slots[s], slots[s + 1])
            sends_to[s] = _bottleneck(alpha * costs.latency[pairs] + beta * costs.inverse[pairs])
    return sends_to


def _bottleneck(cost: Floats) -> Ints:
    """Return a perfect matching row → column with the least largest cost."""
    values = np.unique(cost)
    least = bisect_left(values, len(cost), key=lambda value: matching_size(cost <= value))
    able = csr_array(cost <= values[least])
    return maximum_bipartite_matching(able, perm_type="column").astype(np.int64)


def snake(sides: tuple[int, ...]) -> Ints:
    """Return a Hamiltonian path of a box, as row-major numbers."""
    if not sides:
        return np.zeros(1, np.int64)
    inner = snake(sides[1:])
    step = int(np.prod(sides[1:]))
    rows = [k * step + (inner if k % 2 == 0 else inner[::-1]) for k in range(sides[0])]
    return np.concatenate(rows)


def cycle(sides: tuple[int, ...]) -> Ints | None:
    """Return a Hamiltonian cycle of a box, as row-major numbers; None if its sides have none.

    A box of two devices is a ring of one link.
    """
    size = int(np.prod(sides))
    long = [k for k in sides if k > 1]
    if size <= 2:
        return np.arange(size)
    if size % 2 or len(long) < 2:
        return None
    index = np.arange(size).reshape(long)
    flat = index.reshape(long[0], -1)[:, snake(tuple(long[1:]))]  # a grid of two sides in the box
    if flat.shape[0] % 2:
        flat = flat.T
    comb = [row[1:] if k % 2 == 0 else row[:0:-1] for k, row in enumerate(flat)]
    return np.concatenate([flat[::-1, 0], *comb])


def _boxes(costs: MappingCosts) -> Iterator[Ints]:
    """Yield slots, shape (S, R), of boxes of R devices with Hamiltonian cycles, in snake order."""
    if not costs.shape:
        return
    index = np.arange(costs.size).reshape(costs.shape)
    for box in product(*(divisors(side) for side in costs.shape)):
        if int(np.prod(box)) != costs.replicas:
            continue
        ring = cycle(box)
        if ring is None and costs.wraps:  # a line around the torus is a cycle too
            lines = [
                a for a, (b, side) in enumerate(zip(box, costs.shape, strict=True)) if b == side
            ]
            ring = np.arange(costs.replicas) if lines and max(box) == costs.replicas else None
        if ring is None:
            continue
        counts = tuple(side // b for side, b in zip(costs.shape, box, strict=True))
        places = list(np.ndindex(*counts))
        slots = []
        for p in snake(counts)[: costs.stages].tolist():
            cut = tuple(slice(k * b, (k + 1) * b) for k, b in zip(places[p], box, strict=True))
            slots.append(index[cut].ravel()[ring])
        yield np.array(slots)


def _island_layouts(costs: MappingCosts) -> Iterator[Ints]:
    """Yield slots, shape (S, R), with k devices of each stage in each of R/k islands."""
    members = [np.flatnonzero(costs.island == k) for k in np.unique(costs.island)]
    if len(members) < 2:
        return
    for k in divisors(costs.replicas):
        g = costs.replicas // k
        slack = [len(island) // k for island in members]
        order = sorted(range(len(members)), key=lambda i: -slack[i])
        taken = [0] * len(members)
        slots: list[Ints] = []
        at = 0
        while at + g <= len(order) and len(slots) < costs.stages:
            group = order[at : at + g]
            for _ in range(min(slack[i] for i in group)):
                if len(slots) == costs.stages:
                    break
                slots.append(np.concatenate([members[i][taken[i] : taken[i] + k] for i in group]))
                for i in group:
                    taken[i] += k
            at += g
        if len(slots) == costs.stages:
            yield np.array(slots)


def runs_in_blocks(costs: MappingCosts, block: Ints, runs: list[list[int]]) -> Ints:
    """Return slots, shape (S, R), in which blocks keep runs of stages together where they can.

    Runs take the fastest devices left, in turn; `block`, (D,), are the devices' blocks. All
    replicas of a run are in one block, the smallest that holds them, or else each in the emptiest.
    """
    slots = np.empty((costs.stages, costs.replicas), np.int64)
    free = np.ones(costs.size, np.bool_)
    for run in runs:
        slow, wanted = costs.own[run[0]], len(run) * costs.replicas
        fast = free & (slow <= np.sort(slow[free])[wanted - 1])
        left = np.bincount(block[fast])
        large = np.flatnonzero(left >= wanted)
        whole = large[left[large].argmin()] if len(large) else None
        for j in range(costs.replicas):
            home = np.bincount(block[fast]).argmax() if whole is None else whole
            own = np.flatnonzero(fast & (block == home))[: len(run)]
            own = own if len(own) == len(run) else np.flatnonzero(fast)[: len(run)]
            slots[run, j] = own
            free[own] = fast[own] = False
    return slots


def first_mapping(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Offer a mapping if there is none yet, whether the time is up or not."""
    problem = task.problem
    if search.best is not None:
        return
    unit_of, units = partition_units(task.workload)
    s, r = problem.stages, problem.replicas
    if s > units.size:
        return
    order = next(orders(units))
    stage = np.empty(units.size, np.int64)
    stage[order] = np.searchsorted(
        even_ends(np.cumsum(units.seconds[order]), s), np.arange(units.size), side="right"
    )
    topology = problem.topology
    usable = topology.usable
    used = usable[np.argsort(topology.island[usable], kind="stable")][: s * r]
    straight = np.tile(np.arange(r), (s - 1, 1))
    # messages go R devices far between stages side by side, S devices between their replicas
    rows = [used.reshape(s, r), used.reshape(r, s).T.copy()]
    for slots in rows if r < s else rows[::-1]:
        if (
            search.offer(ReplicaPlacement(stage[unit_of], slots, straight))
            and search.method == "auto"
        ):
            search.method = "layouts"  # `auto` names what found the mapping
        if search.should_stop():
            return
