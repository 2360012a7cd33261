"""Networks of simulations: data through host memory, or from device to device over links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...instances import InputError, Link
from ...instances.common.arrays import Floats, Ints, frozen
from ...instances.common.choices import Choice
from ...instances.common.units import TIME_UNITS, UNSPECIFIED
from .stages import BACKWARD, StageGraph


class Sharing(Choice):
    """Sharing of a link by messages: one after the other, or all at once; see `Links`.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.simulate import shared
    >>> shared(2, stagecut.Link(0.0, 1e9), sharing="fair").sharing is Sharing.FAIR
    True
    """

    FIFO = "fifo"
    FAIR = "fair"


@dataclass(frozen=True)
class HostMemory:
    """Network with the transfer costs of the plan's problem, without competition.

    For placements: data goes through host memory; both ends pay, but hosts do not, as in the
    placement paper.

    Parameters
    ----------
    overlap
        False: a device either moves data or computes. True: a copy engine per device moves its
        data, in and out, first come first served, beside compute.
    all_reduce
        Link between replicas of a stage, which then gives the time of their all-reduce instead of
        the plan's problem.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.simulate import HostMemory
    >>> network = HostMemory(overlap=True, all_reduce=stagecut.Link(1e-5, 25e9))
    >>> network.all_reduce.seconds(25e9)
    1.00001
    """

    overlap: bool = False
    all_reduce: Link | None = None


@dataclass(frozen=True, eq=False)
class Links:
    """Network of links over which data goes from device to device; L links, Q routes, D devices.

    A message alone takes bytes / (least bandwidth on its route) and arrives a latency (the sum of
    its links') later: the postal model. Messages that share a link compete for it.

    Parameters
    ----------
    route
        Shape (D, D): number of the route from one device to another; −1 on the diagonal, and for
        pairs that exchange nothing.
    latency_s, bytes_per_s
        Shape (L,): latency and bandwidth of each link.
    sharing
        ``fair``: at any time, messages have the rates of max–min fair sharing: all rates grow
        alike until a link is full, those on it stop, the others grow on. ``fifo``: one message
        after the other, first come first served; for routes of one link.
    overlap
        True: devices compute meanwhile. False: both ends are busy for the time that the message
        takes on free links, and nothing competes.
    routes
        Links of each of the Q routes; default: each link is a route of its own.
    names
        Names of the links; default: by the devices that they join.

    Raises
    ------
    InputError
        If shapes or numbers contradict each other or are out of range.

    Examples
    --------
    >>> import stagecut
    >>> bus = stagecut.runtime.simulate.shared(2, stagecut.Link(1e-5, 25e9))
    >>> bus.route.tolist(), bus.sharing
    ([[-1, 0], [0, -1]], 'fair')
    """

    route: Ints
    latency_s: Floats
    bytes_per_s: Floats
    sharing: Sharing | str = Sharing.FIFO
    overlap: bool = True
    routes: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "route", frozen(self.route, np.int64))
        object.__setattr__(self, "latency_s", frozen(self.latency_s, np.float64))
        object.__setattr__(self, "bytes_per_s", frozen(self.bytes_per_s, np.float64))
        size = len(self.bytes_per_s)
        if not self.routes:
            object.__setattr__(self, "routes", tuple((i,) for i in range(size)))
        if self.route.ndim != 2 or self.route.shape[0] != self.route.shape[1]:
            raise InputError("network: route must be a square table, a row and column per device")
        if len(self.latency_s) != size or (self.names and len(self.names) != size):
            raise InputError("network: give latency, bandwidth and name of each link, or no names")
        if self.route.max(initial=-1) >= len(self.routes):
            raise InputError(f"network: it names routes beyond the {len(self.routes)} given")
        for links in self.routes:
            if not links or not 0 <= min(links) <= max(links) < size:
                raise InputError(f"network: route {links}: links run 0 to {size - 1}")
        if not ((self.bytes_per_s > 0).all() and (self.latency_s >= 0).all()):
            raise InputError("network: bandwidths must be above 0, latencies at least 0")
        object.__setattr__(self, "sharing", Sharing.of("network: sharing", self.sharing))
        if self.sharing == Sharing.FIFO and any(len(links) > 1 for links in self.routes):
            raise InputError("network: fifo is for routes of one link; use fair")

    @cached_property
    def route_latency_s(self) -> Floats:
        """Shape (Q,): sum of the latencies of a route's links."""
        return np.array([self.latency_s[list(links)].sum() for links in self.routes])

    @cached_property
    def route_bytes_per_s(self) -> Floats:
        """Shape (Q,): least bandwidth of a route's links."""
        return np.array([self.bytes_per_s[list(links)].min() for links in self.routes])


Network = HostMemory | Links


def point_to_point(devices: int, link: Link, *, overlap: bool = True) -> Links:
    """Return a network in which every ordered pair of devices has a link of its own."""
    table = np.full((devices, devices), -1, dtype=np.int64)
    apart = ~np.eye(devices, dtype=bool)
    table[apart] = np.arange(devices * (devices - 1))
    size = devices * (devices - 1)
    return Links(
        table, np.full(size, link.latency_s), np.full(size, link.bytes_per_s), overlap=overlap
    )


def shared(
    devices: int, link: Link, *, sharing: Sharing | str = Sharing.FAIR, overlap: bool = True
) -> Links:
    """Return a network in which all devices share one link, as on a bus.

    Parameters
    ----------
    devices
        Number of devices.
    link
        The link that they share.
    sharing, overlap
        As in `Links`.

    Returns
    -------
    Links
        With one link, on the route of every pair.

    Examples
    --------
    >>> import stagecut
    >>> shared(3, stagecut.Link(1e-5, 25e9), sharing="fifo").sharing is Sharing.FIFO
    True
    """
    table = np.zeros((devices, devices), dtype=np.int64)
    np.fill_diagonal(table, -1)
    return Links(
        table,
        np.array([link.latency_s]),
        np.array([link.bytes_per_s]),
        sharing=sharing,
        overlap=overlap,
    )


def units_per_second(time_unit: str) -> float:
    """Return the number of time units in a second; InputError if the unit is not specified."""
    if time_unit == UNSPECIFIED:
        raise InputError(
            "network: the workload's time unit is not specified, so bytes over a link cannot be "
            "priced; set its time_unit, or use the host-mediated network"
        )
    return 1 / TIME_UNITS[time_unit]


def message_times(stages: StageGraph, network: Links) -> Floats:
    """Return the time of each edge's data on a free route, shape (E,), in the stages' unit.

    Where replicas have different routes, the slowest counts.
    """
    times = np.zeros(len(stages.edges))
    if not stages.payload_bytes.any():
        return times
    scale = units_per_second(stages.time_unit)
    for e, (a, b) in enumerate(stages.edges.tolist()):
        size = float(stages.payload_bytes[e])
        used = {
            int(network.route[p, q])
            for p in stages.replicas[a // 2]
            for q in stages.replicas[b // 2]
            if p != q
        }
        if size > 0 and used:
            seconds = (
                network.route_latency_s[i] + size / network.route_bytes_per_s[i] for i in used
            )
            times[e] = float(max(seconds)) * scale
    return times


def priced_in(stages: StageGraph, network: Network) -> StageGraph:
    """Return the stages with the transfer times of their devices in this network.

    Over links, both ends of a message are busy for as long as it takes, or not at all if the
    network overlaps. InputError if the network is for another number of devices.
    """
    if isinstance(network, HostMemory):
        return stages
    if len(network.route) != len(stages.devices):
        raise InputError(
            f"network: its table is for {len(network.route)} devices; "
            f"the plan has {len(stages.devices)}"
        )
    receive, send = np.zeros(2 * stages.count), np.zeros(2 * stages.count)
    if not network.overlap:
        times = message_times(stages, network)
        np.add.at(send, stages.edges[:, 0], times)
        np.add.at(receive, stages.edges[:, 1], times)
    return replace(
        stages,
        receive=receive.reshape(-1, 2),
        send=send.reshape(-1, 2),
    )


def all_reduce_times(stages: StageGraph, network: Network) -> Floats:
    """Return the time of the all-reduce of each stage's replicas, shape (P,), in the stages' unit.

    `HostMemory.all_reduce` takes precedence over the time that the plan's problem defines, and that
    over a ring on the links. Stages of one replica, or without a backward pass, have none.
    InputError if none of the three is given.
    """
    times = np.zeros(stages.count)
    own = isinstance(network, HostMemory) and network.all_reduce is not None
    for s, ring in enumerate(stages.replicas):
        if len(ring) == 1 or not stages.present[s, BACKWARD]:
            continue
        if stages.all_reduce is not None and not own:
            times[s] = stages.all_reduce[s]
            continue
        seconds = ring_all_reduce_s(network, ring, float(stages.weight_bytes[s]))
        if seconds:
            times[s] = seconds * units_per_second(stages.time_unit)
    return times


def ring_all_reduce_s(network: Network, ring: Sequence[int], size_bytes: float) -> float:
    """Return the seconds of a ring all-reduce: 2(R−1)/R·bytes/bandwidth + 2(R−1)·latency.

    The slowest route between neighbours on the ring counts. InputError if the network gives no link
    between replicas.
    """
    number = len(ring)
    if number == 1 or size_bytes == 0:
        return 0.0
    if isinstance(network, HostMemory):
        if network.all_reduce is None:
            raise InputError(
                "network: the plan has replicas; give HostMemory(all_reduce=Link(...)) "
                "to price their all-reduce"
            )
        bandwidth, latency = network.all_reduce.bytes_per_s, network.all_reduce.latency_s
    else:
        used = [int(network.route[a, b]) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
        bandwidth = float(network.route_bytes_per_s[used].min())
        latency = float(network.route_latency_s[used].max())
    return 2 * (number - 1) / number * size_bytes / bandwidth + 2 * (number - 1) * latency
