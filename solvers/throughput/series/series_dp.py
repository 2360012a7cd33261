"""Contiguous splits of a series of segments: the least max-load, by bisection.

For a limit T, let f_s(J) be the fewest devices of the most frequent kind with which stages within T
come up to the state J (`tree`), where s says how many devices of each other kind are used:

    f_s(J) = min over I ⊂ J of  1 + f_s(I)       if  load_0(I, J) ≤ T,
                                f_{s − e_κ}(I)   if  load_κ(I, J) ≤ T.

The load is a sum of what I and what J cost, but for nets that both cut. So all I of a segment for
which that is the same are one look-up for J: the best of those up to some cost, and with at least
some bytes. Time and memory are near-linear in the number of states, not in pairs of them.

T is halved between bound and incumbent. Some loads are only bounded from below: those of stages
within a segment with interchangeable branches, and those between large segments that both have pins
of a net. Then it may happen that no plan is found for a limit that is not refuted.

Loads and bytes are differences of sums over the whole graph, which numbers that no plan pays would
fill with rounding. So what is above what a device can have counts as twice that, and all numbers
are rounded down to a grid on which these sums are exact: what is refuted is refuted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ....formulations.task import Task
from ....formulations.throughput.certificate import PROOF_MARGIN
from ....formulations.throughput.ideals import IdealPipeline, pipeline
from ....instances import Placement, Solution, Throughput
from ....instances.common.arrays import Floats, Ints
from ...core.search import Search
from .table import FewestDevices, SeriesTable, table
from .tree import SegmentStates, divide, last_state, neighbours, nets, series, states

#: The check of bounds goes over all ideals, of which a series may have far more than it has states.
ORIGIN = "dp over a series of segments, unchecked beyond 60,000 ideals"

#: States, and sets of devices of other kinds than the most frequent, at most.
MOST, MOST_SETS = 2_000_000, 16
#: How close bound and objective must be, relatively.
CLOSE = 1e-7


def series_dp(task: Task[Throughput], search: Search[Solution]) -> None:
    """Find the least max-load over contiguous splits, if the graph is a series of small segments.

    There must be an incumbent. The bound is one for splits that are chains of ideals.
    """
    problem = task.problem
    if problem.pipeline == "gpipe" or problem.overlap or task.cluster.links:
        return
    if not np.isfinite(search.objective):
        return
    pipe = pipeline(task)
    kinds = np.argsort(-pipe.count, kind="stable")
    if np.prod(pipe.count[kinds[1:]] + 1) > MOST_SETS:
        return
    exact = _exact(pipe, kinds, search.objective)
    costs = _costs(pipe, exact, search)
    if costs is None:
        return
    search.note(f"series: {costs.size} states in {len(costs.states) - 1} segments")
    devices = np.concatenate(
        [np.flatnonzero(task.costs.kind_of == kind) for kind in pipe.kinds[kinds]]
    )
    low, high = max(search.bound, 0.0), search.objective
    while high - low > CLOSE * high and not search.should_stop():
        limit = (low + high) / 2
        asked = _rounded_up(limit * (1 + PROOF_MARGIN), exact.step)
        fewest = FewestDevices(costs, pipe.count[kinds], asked)
        if not fewest.feasible:
            low = limit
            search.raise_bound(low * (1 - PROOF_MARGIN), ORIGIN)
            continue
        stages = fewest.plan(pipe.graph.size)
        if stages is not None:
            device, order = (devices[one] for one in stages)
            search.offer(
                Placement(pipe.graph.expand(device), tuple(order.tolist()) if pipe.relayed else ())
            )
        high = min(limit, search.objective)


class _Exact(NamedTuple):
    """Numbers of a pipeline, rounded down to grids on which all sums of them are exact.

    Parameters
    ----------
    time, weight
        Shapes (K, U) and (K, E), by kind.
    size, room
        Bytes of units, shape (U,), and what devices have, shape (K,); the latter none below its
        own.
    longest
        A load that no plan exceeds that is asked for.
    step
        Of the grid of times.
    """

    time: Floats
    weight: Floats
    size: Floats
    room: Floats
    longest: float
    step: float


def _exact(pipe: IdealPipeline, kinds: Ints, longest: float) -> _Exact:
    """Return the rounded numbers for plans within a load, by kind in the given order."""
    load, memory = pipe.rows[0], pipe.rows[-1]
    time = np.minimum(load.unit[kinds], 2 * longest)
    weight = np.minimum(load.net[kinds], 2 * longest)
    # the largest sum: twice the work of a kind, the nets that both ends cut, and a limit
    step = _step_of(float((2 * time.sum(axis=1) + 4 * weight.sum(axis=1)).max()) + 2 * longest)
    limited = memory.room[kinds][np.isfinite(memory.room[kinds])]
    most = float(limited.max(initial=0.0))
    size = np.minimum(memory.unit[0], 2 * most if most > 0 else 1.0)
    grid = _step_of(float(size.sum()) + most)
    return _Exact(
        time=_rounded_down(time, step),
        weight=_rounded_down(weight, step),
        size=_rounded_down(size, grid),
        room=np.array([_rounded_up(one, grid) for one in memory.room[kinds].tolist()]),
        longest=_rounded_up(longest, step),
        step=step,
    )


def _costs(pipe: IdealPipeline, exact: _Exact, search: Search[Solution]) -> SeriesTable | None:
    """Return the states of a pipeline with stage loads; None if there are too many."""
    near = neighbours(pipe.graph)
    listed: list[SegmentStates] = []
    number = 0
    for units in series(near, pipe.orders[0]):
        found = states(divide(pipe.graph, near, units), near)
        number += found.size if found else 0
        if found is None or number > MOST or search.should_stop():
            return None
        listed.append(found)
    listed.append(last_state())
    over = nets(pipe.graph, listed, exact.weight)
    room = exact.size, exact.room
    return table(listed, over, exact.time, room, exact.longest, search, relayed=pipe.relayed)


def _step_of(total: float) -> float:
    """Return the step of a grid on which sums up to a finite total are exact, by a factor of 2."""
    exponent = math.frexp(total)[1]
    return math.ldexp(1.0, max(exponent - 52, -1022))


def _rounded_down(numbers: Floats, step: float) -> Floats:
    """Return the largest grid points that are not above some numbers."""
    return np.asarray(np.floor(numbers / step) * step)


def _rounded_up(limit: float, step: float) -> float:
    """Return the least grid point that is not below a limit; `inf` for `inf`."""
    return limit if math.isinf(limit) else math.ceil(limit / step) * step
