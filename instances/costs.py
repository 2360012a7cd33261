"""What each node costs on each kind of device: a workload priced for a cluster.

The one place where times, slowdowns, links and bytes become numbers that planners, verifier and
simulator compute with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import Bools, Floats, Ints, frozen
from .cluster import ACCELERATOR, CPU, Cluster, DeviceKind
from .errors import InputError
from .units import TIME_UNITS, UNSPECIFIED
from .workload import Workload


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs by kind of device; K kinds, n nodes, D devices.

    Parameters
    ----------
    compute
        Shape (K, n): time of a node, `inf` where unsupported; in the workload's time unit.
    transfer
        Shape (K, n): what a device of the kind pays to bring the node's output in from host
        memory, or out to it; 0 for hosts.
    memory_bytes
        Shape (n,).
    capacity_bytes
        Shape (K,): memory of one device, `inf` for none.
    count
        Shape (K,).
    host
        Shape (K,): whether the kind computes in host memory.
    kind_of
        Shape (D,): kind of each device.
    """

    compute: Floats
    transfer: Floats
    memory_bytes: Floats
    capacity_bytes: Floats
    count: Ints
    host: Bools
    kind_of: Ints


def price(workload: Workload, cluster: Cluster) -> Costs:
    """Price `workload` for `cluster`.

    Raises
    ------
    InputError
        If the workload has no times for a kind of device, or transfers cannot be priced: bytes
        without a link, a link without bytes, or links for a workload without time unit.
    """
    compute, transfer = [], []
    for kind in cluster.kinds:
        if not kind.count:  # nobody pays; the workload need not have times for it
            compute.append(np.full(workload.n, np.inf))
            transfer.append(np.zeros(workload.n))
            continue
        compute.append(workload.times[times_column(workload, kind)] * kind.slowdown)
        transfer.append(np.zeros(workload.n) if kind.host else _transfer(workload, kind))
    return Costs(
        compute=frozen(np.array(compute), np.float64),
        transfer=frozen(np.array(transfer), np.float64),
        memory_bytes=workload.memory_bytes,
        capacity_bytes=frozen([kind.memory_bytes for kind in cluster.kinds], np.float64),
        count=frozen([kind.count for kind in cluster.kinds], np.int64),
        host=frozen([kind.host for kind in cluster.kinds], np.bool_),
        kind_of=frozen([device.kind for device in cluster.devices], np.int64),
    )


def times_column(workload: Workload, kind: DeviceKind) -> str:
    """Return which column of `Workload.times` devices of a kind are timed by.

    Raises
    ------
    InputError
        If the workload has no times for them.
    """
    wanted = [kind.times] if kind.times else [kind.name, CPU if kind.host else ACCELERATOR]
    for name in wanted:
        if name in workload.times:
            return name
    raise InputError(
        f"{workload.name}: no times for device kind {kind.name!r}; the workload has times for "
        f"{', '.join(workload.times)}: name one of them as the kind's `times`"
    )


def _transfer(workload: Workload, kind: DeviceKind) -> Floats:
    if kind.link is None:
        if workload.transfer is None:
            raise InputError(
                f"{workload.name}: it gives output bytes, not transfer times; "
                f"give device kind {kind.name!r} a link (latency and bandwidth)"
            )
        return workload.transfer
    if workload.output_bytes is None:
        raise InputError(
            f"{workload.name}: it gives transfer times, not bytes; "
            f"remove the link of device kind {kind.name!r}"
        )
    if workload.time_unit == UNSPECIFIED:
        raise InputError(
            f"{workload.name}: its time unit is not specified, so bytes over the link of "
            f"{kind.name!r} cannot be priced; set the workload's time_unit"
        )
    seconds = [kind.link.seconds(size) for size in workload.output_bytes.tolist()]
    return np.array(seconds) / TIME_UNITS[workload.time_unit]
