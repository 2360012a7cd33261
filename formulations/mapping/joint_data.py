"""The data of the program that partitions and maps at once: units, tensors, parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances import Workload
from ...instances.common.arrays import Floats, Ints
from ...instances.model.stage_costs import parameter_bytes
from .partition import Units, partition_units


@dataclass(frozen=True, eq=False)
class JointData:
    """What may be cut; U units.

    Parameters
    ----------
    unit_of
        Shape (n,): unit of each node.
    units
        Compute and order.
    tensors
        Maker, users and bytes of each tensor that another unit needs.
    parameters
        Shape (U,): bytes.
    """

    unit_of: Ints
    units: Units
    tensors: tuple[tuple[int, tuple[int, ...], float], ...]
    parameters: Floats


def joint_data(workload: Workload) -> JointData:
    """Return the units of a workload, and what passes between them."""
    unit_of, units = partition_units(workload)
    assert workload.output_bytes is not None  # partition_units has looked
    users: dict[int, set[int]] = {}
    for v, w in workload.edges.tolist():
        if unit_of[v] != unit_of[w] and workload.output_bytes[v] > 0:
            users.setdefault(v, set()).add(int(unit_of[w]))
    held = np.bincount(unit_of, weights=parameter_bytes(workload), minlength=units.size)
    tensors = tuple(
        (int(unit_of[v]), tuple(sorted(needed)), float(workload.output_bytes[v]))
        for v, needed in sorted(users.items())
    )
    return JointData(unit_of, units, tensors, held.astype(np.float64))
