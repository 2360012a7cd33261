"""Balanced partition: an operator graph cut into S stages, none much longer than the others.

    minimise max_s  t_s + κ · (bytes that cross the boundary behind stage s)

over assignments of units (nodes that must stay together) to stages 0 … S−1 that never run back.
κ is the *communication coefficient*, in seconds per byte. A tensor crosses each boundary between
the first and the last stage that make or need it, once (`instances.stage_costs`): with its maker
and users merged into a *net*, boundary s costs κ · Σ {w_e : min stage of e ≤ s < max stage of e}.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from ...instances import InputError, Workload, accelerators_and_cpus
from ...instances.common.arrays import Floats, Ints, frozen
from ...instances.model.contiguity import pipeline_edges
from ...instances.model.problem import Throughput
from ...instances.model.stage_costs import StageCosts, accelerator_seconds
from ..task import pose
from ..throughput.hypergraph import pipeline_units


@dataclass(frozen=True, eq=False)
class Units:
    """Units of a workload and nets of tensors; U units, E nets with two pins or more."""

    seconds: Floats  # (U,): compute
    edges: Ints  # (m, 2): the first unit's stage must not be after the second's; no cycles
    net_start: Ints  # net_start, pins: units of net e are pins[net_start[e] : net_start[e + 1]]
    pins: Ints
    net_bytes: Floats  # (E,)

    @property
    def size(self) -> int:
        """Number of units, U."""
        return len(self.seconds)


def partition_units(workload: Workload) -> tuple[Ints, Units]:
    """Return the unit of each node, shape (n,), and the units. InputError as of `stage_costs`."""
    task = pose(workload, accelerators_and_cpus(1), Throughput("contiguous"))
    unit_of = pipeline_units(task)
    every = np.arange(workload.n)
    order = unit_of[np.array(pipeline_edges(workload), np.int64).reshape(-1, 2)]
    if workload.output_bytes is None:
        raise InputError(f"{workload.name}: output_bytes is missing; links need sizes, not times")
    size = int(unit_of.max()) + 1
    rows = np.concatenate([every, workload.edges[:, 0]])
    columns = np.concatenate([unit_of, unit_of[workload.edges[:, 1]]])
    incidence = csr_array((np.ones(len(rows)), (rows, columns)), shape=(workload.n, size))
    incidence.sum_duplicates()
    degree = np.diff(incidence.indptr)
    used = (degree > 1) & (workload.output_bytes > 0)
    keep = np.repeat(used, degree)
    units = Units(
        seconds=np.bincount(unit_of, weights=accelerator_seconds(workload), minlength=size).astype(
            np.float64
        ),
        edges=np.unique(order[order[:, 0] != order[:, 1]], axis=0).reshape(-1, 2),
        net_start=np.concatenate([[0], np.cumsum(degree[used])]).astype(np.int64),
        pins=incidence.indices[keep].astype(np.int64),
        net_bytes=frozen(workload.output_bytes[used], np.float64),
    )
    return unit_of, units


def stage_objective(costs: StageCosts, coefficient: float) -> float:
    """Return max_s t_s + κ · bytes behind stage s."""
    sent = np.append(costs.forward_bytes + costs.backward_bytes, 0.0)
    return float((costs.compute_s + coefficient * sent).max())
