"""A region as arrays, as the kernel that divides it reads it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....instances.common.arrays import Floats, Ints
from .regions import Series


class RegionArrays(NamedTuple):
    """The separator before a region, its n units and the separator behind it: 0 … n+1.

    Only what lies in the region counts of predecessors and of nets: who reads the output of a node.
    """

    compute: Floats  # (n+2,), 0 for separators, as those below
    cpu: Floats
    memory: Floats
    before_start: Ints  # predecessors, as compressed rows
    before: Ints
    nets: Ints  # source of each net
    weight: Floats
    pin_start: Ints  # readers, as compressed rows
    pins: Ints


def compressed(rows: list[list[int]]) -> tuple[Ints, Ints]:
    """Return where each row begins, and all of them one behind the other."""
    start = np.cumsum([0, *map(len, rows)])
    return start.astype(np.int64), np.array([x for row in rows for x in row], np.int64)


def arrays_of(series: Series, i: int) -> RegionArrays:
    """Return region i."""
    graph, units = series.graph, list(series.regions[i])
    left = int(series.separators[i - 1]) if i else -1
    local = {unit: place for place, unit in enumerate(units, 1)}
    last = len(units) + 1
    times = np.zeros((3, last + 1))
    times[:, 1:last] = series.compute[units], series.cpu[units], series.memory[units]
    before = [[], *([local[x] for x in graph.predecessors[u] if x in local] for u in units), []]
    if i < len(series.separators):
        local[int(series.separators[i])] = last
    nets: list[int] = []
    weight: list[float] = []
    pins: list[list[int]] = []
    successors, unit_of = series.task.workload.successors, graph.unit_of
    for place, unit in enumerate([left, *units]):
        for v in graph.members[unit] if unit >= 0 else ():
            fed = {local[y] for x in successors[v] if (y := int(unit_of[x])) in local and y != unit}
            if fed and series.transfer[v] > 0:
                nets.append(place)
                weight.append(float(series.transfer[v]))
                pins.append(sorted(fed))
    return RegionArrays(
        times[0], times[1], times[2], *compressed(before),
        np.array(nets, np.int64), np.array(weight), *compressed(pins),
    )  # fmt: skip
