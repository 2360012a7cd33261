"""The ideals of units: all of them, where memory and time allow, or where they are few."""

from __future__ import annotations

import math

import numpy as np
import psutil

from ....formulations.throughput.ideals import Pipeline
from ....instances import Solution
from ....instances.common.arrays import Ints
from ...core.lattice import Lattice, count_ideals, list_ideals
from ...core.search import Search
from .stage_dp import bytes_needed, states_of

#: Ideals that are simply listed; beyond, they are counted first. Classes looked at for counting.
LISTED_AT_ONCE = 300_000
COUNTING_EFFORT = 300_000

#: What is left where ideals are not listed.
FALLBACK = "the plan is the best of some topological orders"

#: Ideals for each unit, and bytes of them all, up to which they are few.
FEW_IDEALS, FEW_BYTES = 8, 1 << 30

#: Share of the free memory that a lattice and its tables may take.
MEMORY_SHARE = 0.6


def few_ideals(pipe: Pipeline, search: Search[Solution]) -> Lattice | None:
    """Return the lattice unless it has many ideals for its units, or takes much memory."""
    units = pipe.graph.size
    most = min(FEW_IDEALS * units, FEW_BYTES // (units // 8 + 1))
    if any(_most_ready(order, pipe.graph.edges) > math.log2(most) for order in pipe.orders):
        return None
    lattice = list_ideals(pipe.orders[0], pipe.graph.edges, most, search)
    return lattice if lattice.complete else None


def _most_ready(order: Ints, edges: Ints) -> int:
    """Return how many units at most are ready together along an order; any of them are an ideal."""
    size = len(order)
    rank = np.empty(size, np.int64)
    rank[order] = np.arange(size)
    ready = np.zeros(size, np.int64)
    np.maximum.at(ready, rank[edges[:, 1]], rank[edges[:, 0]] + 1)
    opens, closes = np.bincount(ready, minlength=size), np.ones(size, np.int64)
    return int((np.cumsum(opens) - np.cumsum(closes)).max() + 1)


def all_ideals(pipe: Pipeline, search: Search[Solution]) -> Lattice | None:
    """List the ideals if there is room and time for them; else say what is missing."""
    order, edges = pipe.orders[0], pipe.graph.edges
    began = search.seconds
    lattice = list_ideals(order, edges, LISTED_AT_ONCE, search)
    if lattice.complete or search.should_stop():
        return lattice if lattice.complete else None
    seconds = (search.seconds - began) / lattice.size
    needed = bytes_needed(1, lattice, len(states_of(pipe.count).used))
    most = int(MEMORY_SHARE * psutil.virtual_memory().available / needed)
    number, counted = count_ideals(len(order), edges, COUNTING_EFFORT)
    least = "" if counted else "at least "
    if number <= most:
        if number * seconds > search.seconds_left:
            search.note(
                f"dp: listing {least}{number:.4g} ideals takes {number * seconds:.3g} s, and "
                f"{search.seconds_left:.3g} s are left; {FALLBACK}"
            )
            return None
        lattice = list_ideals(order, edges, most, search, number if counted else LISTED_AT_ONCE)
        if lattice.complete or search.should_stop():
            return lattice if lattice.complete else None
        number, least = lattice.size, "at least "
    search.note(
        f"dp: {least}{number:.4g} ideals take {least}{number * needed / 2**30:.3g} GiB, "
        f"more than is free; {FALLBACK}"
    )
    return None
