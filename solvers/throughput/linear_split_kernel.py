"""Cut orders of the units into one segment per device: first splits for the local search."""

from __future__ import annotations

import math

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph
from ...formulations.throughput.whole_bytes import room_of
from ...instances import Throughput
from ...instances.common.arrays import Ints
from ...instances.common.kernel import kernel
from .column_generation.frontier import Incidence


def linear_split(
    task: Task[Throughput],
    graph: Hypergraph,
    shape: Incidence,
    order: Ints,
    devices: Ints,
    cutoff: float,
) -> Ints | None:
    """Return the best split of `order` into segments held by `devices`, one after the other.

    That is the device of each unit, shape (U,); None if no split of a max-load up to `cutoff` fits.
    A segment may be empty. Takes O(D · U · pins) time.
    """
    kind_of = task.costs.kind_of[devices]
    part, inside = np.zeros(graph.size, np.int64), np.zeros(len(shape.net_ptr) - 1, np.int64)
    ends = len(devices) + 1, len(order) + 1
    load = _cut(
        order, (shape.unit_ptr, shape.unit_nets, np.diff(shape.net_ptr)),
        (
            graph.compute.sum(axis=1), graph.weight.sum(axis=1), graph.memory_bytes,
            room_of(task.costs.capacity_bytes),
        ), kind_of, cutoff,
        (part, inside, np.full(ends, np.inf), np.zeros(ends, np.int64)),
    )  # fmt: skip
    if math.isinf(load):
        return None
    where: Ints = devices[part]
    return where


@kernel
def _cut(order, nets, costs, kind_of, cutoff, made):
    """Write the segment of each unit by the best cut of `order`; return the max-load or `inf`.

    Shapes, for U units, E nets, K kinds, D devices: order (U,); nets: unit_ptr (U + 1,) into
    unit_nets, and pins (E,); costs: compute (K, U), weight (K, E), memory (U,) and room (K,) in
    bytes; kind_of (D,). `made`: the segments, (U,), and scratch: zeros (E,), and twice
    (D + 1, U + 1), first `inf`.
    """
    size, devices = len(order), len(kind_of)
    unit_ptr, unit_nets, pins = nets
    compute, weight, memory, room = costs
    part, inside, best, came = made
    best[0, 0] = 0.0
    for d in range(devices):
        k = kind_of[d]
        for end in range(size + 1):
            best[d + 1, end] = best[d, end]
            came[d + 1, end] = end
        for begin in range(size):
            if best[d, begin] == np.inf:
                continue
            time, paid, held = 0.0, 0.0, 0.0
            inside[:] = 0
            for end in range(begin + 1, size + 1):
                v = order[end - 1]
                time += compute[k, v]
                held += memory[v]
                if time > cutoff or time == np.inf or held > room[k]:
                    break
                for j in range(unit_ptr[v], unit_ptr[v + 1]):
                    e = unit_nets[j]
                    inside[e] += 1
                    if inside[e] == 1:
                        paid += weight[k, e]
                    if inside[e] == pins[e]:
                        paid -= weight[k, e]
                load = max(best[d, begin], time + paid)
                if load < best[d + 1, end]:
                    best[d + 1, end] = load
                    came[d + 1, end] = begin
    end = size
    for d in range(devices, 0, -1):
        begin = came[d, end]
        for i in range(begin, end):
            part[order[i]] = d - 1
        end = begin
    return best[devices, size]
