"""How data moves between devices while a plan runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..instances import InputError, Link
from ..instances.arrays import Floats, Ints, frozen
from ..instances.units import TIME_UNITS, UNSPECIFIED
from .stages import Stages

Sharing = Literal["fifo", "fair"]


@dataclass(frozen=True)
class HostMemory:
    """Data goes through host memory, as in the placement paper: both ends pay, hosts nothing.

    Parameters
    ----------
    overlap
        False: a device moves data or computes. True: a copy engine per device moves its data,
        in and out, first come first served, beside compute.
    all_reduce
        Link between replicas of a stage; only replicated plans need it.
    """

    overlap: bool = False
    all_reduce: Link | None = None


@dataclass(frozen=True, eq=False)
class Links:
    """Data goes from device to device over links; L links, D devices.

    A message takes its link for bytes / bandwidth and arrives a latency later; messages of other
    pairs on the same link compete with it.

    Parameters
    ----------
    link
        Shape (D, D): link from one device to another; −1 on the diagonal.
    latency_s, bytes_per_s
        Shape (L,).
    sharing
        ``fifo``: one message after the other, first come first served. ``fair``: n messages get
        an n-th of the bandwidth each.
    overlap
        True: devices compute meanwhile. False: both ends are busy for the time that the message
        takes on a free link.

    Raises
    ------
    InputError
        If a number does not fit.
    """

    link: Ints
    latency_s: Floats
    bytes_per_s: Floats
    sharing: Sharing = "fifo"
    overlap: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "link", frozen(self.link, np.int64))
        object.__setattr__(self, "latency_s", frozen(self.latency_s, np.float64))
        object.__setattr__(self, "bytes_per_s", frozen(self.bytes_per_s, np.float64))
        size = len(self.bytes_per_s)
        if self.link.ndim != 2 or self.link.shape[0] != self.link.shape[1]:
            raise InputError("network: link must be a square table, a row and column per device")
        if self.link.max(initial=-1) >= size or len(self.latency_s) != size:
            raise InputError(f"network: the table names links beyond the {size} that are given")
        if not ((self.bytes_per_s > 0).all() and (self.latency_s >= 0).all()):
            raise InputError("network: bandwidths must be above 0, latencies at least 0")
        if self.sharing not in ("fifo", "fair"):
            raise InputError(f"network: sharing is {self.sharing!r}; use fifo or fair")


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


def shared(devices: int, link: Link, *, sharing: Sharing = "fair", overlap: bool = True) -> Links:
    """Return a network in which all devices share one link, as on a bus."""
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
    """Return how many of a workload's units of time are in a second.

    Raises
    ------
    InputError
        If the workload names no unit.
    """
    if time_unit == UNSPECIFIED:
        raise InputError(
            "network: the workload's time unit is not specified, so bytes over a link cannot be "
            "priced; set its time_unit, or use the host-mediated network"
        )
    return 1 / TIME_UNITS[time_unit]


def message_times(stages: Stages, network: Links) -> Floats:
    """Return, shape (E,), how long the data of each edge takes on free links, in the stages' unit.

    Where replicas have different links, the slowest counts.
    """
    times = np.zeros(len(stages.edges))
    if not stages.payload_bytes.any():
        return times
    scale = units_per_second(stages.time_unit)
    for e, (a, b) in enumerate(stages.edges.tolist()):
        size = float(stages.payload_bytes[e])
        used = {
            int(network.link[p, q])
            for p in stages.replicas[a // 2]
            for q in stages.replicas[b // 2]
            if p != q
        }
        if size > 0 and used:
            seconds = (network.latency_s[i] + size / network.bytes_per_s[i] for i in used)
            times[e] = float(max(seconds)) * scale
    return times


def settle(stages: Stages, network: Network) -> Stages:
    """Return the stages with what their devices pay for transfers in this network.

    Over links, both ends of a message are busy for as long as it takes, or not at all if the
    network overlaps.

    Raises
    ------
    InputError
        If the network has not one row per device.
    """
    if isinstance(network, HostMemory):
        return stages
    if len(network.link) != len(stages.devices):
        raise InputError(
            f"network: its table is for {len(network.link)} devices; "
            f"the plan has {len(stages.devices)}"
        )
    receive, send = np.zeros(2 * stages.count), np.zeros(2 * stages.count)
    if not network.overlap:
        times = message_times(stages, network)
        np.add.at(send, stages.edges[:, 0], times)
        np.add.at(receive, stages.edges[:, 1], times)
    return replace(
        stages,
        receive=frozen(receive.reshape(-1, 2), np.float64),
        send=frozen(send.reshape(-1, 2), np.float64),
    )


def ring_all_reduce_s(network: Network, ring: Sequence[int], size_bytes: float) -> float:
    """Return the seconds of a ring all-reduce: 2(R−1)/R·bytes/bandwidth + 2(R−1)·latency.

    The slowest link on the ring counts.

    Raises
    ------
    InputError
        If the network gives no link between replicas.
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
        used = [int(network.link[a, b]) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
        bandwidth = float(network.bytes_per_s[used].min())
        latency = float(network.latency_s[used].max())
    return 2 * (number - 1) / number * size_bytes / bandwidth + 2 * (number - 1) * latency
