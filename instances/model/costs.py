"""Costs of each node on each kind of device: seconds of compute, transfers and messages.

The one place where times, slowdowns, links and bytes become numbers that planners, verifier and
simulator compute with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..common.arrays import Bools, Floats, Ints, frozen
from ..common.errors import InputError
from ..common.units import TIME_UNITS, UNSPECIFIED
from .cluster import ACCELERATOR, CPU, Cluster, DeviceKind, Link
from .workload import Workload


@dataclass(frozen=True, eq=False)
class Messages:
    """Times of messages between linked devices; L links, n nodes, D devices."""

    link: Ints  # (D, D): link between two devices, −1 for none
    time: Floats  # (L, n): how long a node's output takes over each link


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs by kind of device; K kinds, n nodes, D devices.

    Parameters
    ----------
    compute
        Shape (K, n): time of a node, `inf` where unsupported; in the workload's time unit.
    transfer
        Shape (K, n): time for which a device of the kind moves the node's output from host memory,
        or to it; 0 for hosts.
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
    messages
        Times between linked devices, whose data does not go through host memory; None without
        links.

    Examples
    --------
    >>> import stagecut
    >>> costs = price(stagecut.load("gpt2-xl"), stagecut.accelerators_and_cpus(2))
    >>> costs.compute.shape == (2, costs.memory_bytes.size), costs.count.tolist()
    (True, [2, 0])
    """

    compute: Floats
    transfer: Floats
    memory_bytes: Floats
    capacity_bytes: Floats
    count: Ints
    host: Bools
    kind_of: Ints
    messages: Messages | None = None

    def received(self, node: int, source: int, target: int) -> float:
        """Time that device `target` pays for the output of `node` on device `source`.

        That of a message if they are linked, else that of bringing it in from host memory.
        """
        if self.messages is not None and (link := self.messages.link[source, target]) >= 0:
            return float(self.messages.time[link, node])
        return float(self.transfer[self.kind_of[target], node])

    def sent(self, node: int, source: int, targets: Iterable[int]) -> float:
        """Time that device `source` pays for handing the output of `node` to its receivers.

        A message for each receiver on a linked device; and bringing it out to host memory, once,
        if there is another receiver.

        Parameters
        ----------
        targets
            The device of each receiver.
        """
        total, through_host = 0.0, False
        for target in targets:
            link = -1 if self.messages is None else int(self.messages.link[source, target])
            if self.messages is not None and link >= 0:
                total += float(self.messages.time[link, node])
            else:
                through_host = True
        return total + (float(self.transfer[self.kind_of[source], node]) if through_host else 0.0)


def price(workload: Workload, cluster: Cluster) -> Costs:
    """Price `workload` for `cluster`.

    Parameters
    ----------
    workload, cluster
        The graph and the devices.

    Returns
    -------
    Costs
        Times in the workload's unit.

    Raises
    ------
    InputError
        If the workload has no times for a kind of device, or transfers cannot be priced: bytes
        without a link, a link without bytes, or links for a workload without time unit.

    Notes
    -----
    O((K + L) n + D²) with L links between devices.

    Examples
    --------
    >>> import stagecut
    >>> costs = price(stagecut.load("gpt2-xl"), stagecut.accelerators_and_cpus(2))
    >>> costs.host.tolist()
    [False, True]
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
        messages=_messages(workload, cluster),
    )


def without_links(costs: Costs, *, returning: bool) -> Costs:
    """Return relaxed costs, by which all data goes through host memory and no plan costs more.

    Every device of a kind moves data at the least of the times over the links of any of them, and
    to host memory where one of them needs it. A device that gets data pays for one of these; one
    that sends some pays for at least one. So bounds for these costs hold for the true ones. With
    `returning` a device can get its own data back from host memory, in another call. Without links
    between devices the costs are the same object.
    """
    if costs.messages is None:
        return costs
    least = costs.transfer.copy()
    for k in range(len(least)):
        own = costs.kind_of == k
        used = costs.messages.link[own]
        unlinked = (used < 0).sum(axis=1) - 1  # itself is not linked with itself
        if len(used) and not costs.host[k] and not returning and not unlinked.any():
            least[k] = np.inf
        for link in np.unique(used[used >= 0]).tolist():
            least[k] = np.minimum(least[k], costs.messages.time[link])
    least[np.isinf(least)] = 0.0  # a device alone in its cluster moves nothing
    return replace(costs, transfer=frozen(least, np.float64), messages=None)


def times_column(workload: Workload, kind: DeviceKind) -> str:
    """Return the column of `Workload.times` for devices of a kind.

    InputError if the workload has no times for them.
    """
    wanted = [kind.times] if kind.times else [kind.name, CPU if kind.host else ACCELERATOR]
    for name in wanted:
        if name in workload.times:
            return name
    raise InputError(
        f"{workload.name}: no times for device kind {kind.name!r}; the workload has times for "
        f"{', '.join(workload.times)}: name one of them as the kind's `times` (in a cluster file)"
    )


def _transfer(workload: Workload, kind: DeviceKind) -> Floats:
    if kind.link is None:
        if workload.transfer is None:
            raise InputError(
                f"{workload.name}: it gives output bytes, not transfer times; "
                f"give device kind {kind.name!r} a link (latency and bandwidth)"
            )
        return workload.transfer
    return _over(workload, kind.link, f"the link of device kind {kind.name!r}")


def _messages(workload: Workload, cluster: Cluster) -> Messages | None:
    if not cluster.links:
        return None
    times = [_over(workload, pair.link, f"the link {pair}") for pair in cluster.links]
    return Messages(cluster.link_of, frozen(np.array(times), np.float64))


def _over(workload: Workload, link: Link, what: str) -> Floats:
    """Time that each node's output takes over a link, in the workload's unit."""
    if workload.output_bytes is None:
        raise InputError(f"{workload.name}: it gives transfer times, not bytes; remove {what}")
    if workload.time_unit == UNSPECIFIED:
        raise InputError(
            f"{workload.name}: its time unit is not specified, so bytes over {what} cannot be "
            "priced; set the workload's time_unit"
        )
    return link.seconds_of(workload.output_bytes) / TIME_UNITS[workload.time_unit]
