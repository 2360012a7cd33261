"""Measurements of messages between ranks, and clusters and topologies made from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...instances import Cluster, DeviceKind, Link, PairLink
from ...instances.common.arrays import Floats, frozen
from ...instances.common.choices import Choice
from ...instances.common.units import show_percent
from ...instances.model.cluster import ACCELERATOR
from ...instances.model.topology import Topology
from .fit import Fit, fit_postal, fit_ring

#: Largest typical error of a fit without a warning.
BAD_FIT = 0.25
#: Largest ratio of the bandwidths of pairs that are taken for one link.
WIDE_SPREAD = 2.0


class LinkDetail(Choice):
    """Detail of a measured cluster's links; see `to_cluster`.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.measure.measurement import Measurement, MessageTimes
    >>> from stagecut.runtime.measure.measurement import RankMachine, RankPair
    >>> ranks = tuple(RankMachine("host", f"cuda:{r}", "H100", 80e9) for r in range(2))
    >>> sizes = np.array([1e3, 1e6, 1e9])
    >>> timed = MessageTimes(sizes, tuple(np.full(5, 1e-5 + size / 25e9) for size in sizes))
    >>> measurement = Measurement("nccl", ranks, (RankPair(0, 1, timed),), timed)
    >>> cluster = stagecut.runtime.measure.to_cluster(measurement, LinkDetail.EACH)
    >>> len(cluster.links)
    1
    """

    AUTO = "auto"
    TYPICAL = "typical"
    EACH = "each"


@dataclass(frozen=True)
class RankMachine:
    """Host and device of a rank."""

    host: str  # name
    device: str  # such as ``cpu`` or ``cuda:1``
    model: str  # name of the device's model: ranks with the same one are alike
    memory_bytes: float  # of the device; of a CPU the rank's share of the host's


@dataclass(frozen=True, eq=False)
class MessageTimes:
    """Times of messages of K sizes."""

    size_bytes: Floats  # (K,)
    seconds: tuple[Floats, ...]  # of every message of each size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size_bytes", frozen(self.size_bytes, np.float64))
        own = tuple(frozen(times, np.float64) for times in self.seconds)
        object.__setattr__(self, "seconds", own)

    @cached_property
    def quartiles_s(self) -> Floats:
        """Lower quartile, median and upper quartile by size, shape (3, K)."""
        rows = [np.quantile(times, (0.25, 0.5, 0.75)) for times in self.seconds]
        return frozen(np.transpose(rows), np.float64)

    @property
    def median_s(self) -> Floats:
        """Median by size, shape (K,)."""
        median: Floats = self.quartiles_s[1]
        return median


@dataclass(frozen=True, eq=False)
class RankPair:
    """Times of messages between two ranks, one way."""

    first: int
    second: int
    timed: MessageTimes

    @cached_property
    def fit(self) -> Fit:
        """Link fitted to the pair's messages."""
        return fit_postal(self.timed.size_bytes, self.timed.median_s)


@dataclass(frozen=True, eq=False)
class Measurement:
    """Times of messages between all pairs of R ranks, and of all-reduces over all of them."""

    backend: str  # of torch.distributed: ``gloo`` or ``nccl``
    ranks: tuple[RankMachine, ...]  # where each runs; at least two
    pairs: tuple[RankPair, ...]  # each pair once
    all_reduce: MessageTimes  # of all ranks together

    @cached_property
    def ring(self) -> Fit:
        """Link fitted to the all-reduces, as rings."""
        return fit_ring(self.all_reduce.size_bytes, self.all_reduce.median_s, len(self.ranks))

    @property
    def link(self) -> Link:
        """Link of a typical pair: median latency, median bandwidth."""
        links = [pair.fit.link for pair in self.pairs]
        return Link(
            float(np.median([link.latency_s for link in links])),
            float(np.median([link.bytes_per_s for link in links])),
        )

    @property
    def spread(self) -> float:
        """Largest bandwidth of a pair over the smallest."""
        speeds = [pair.fit.link.bytes_per_s for pair in self.pairs]
        return max(speeds) / min(speeds)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the numbers, a line each."""
        found = []
        bad = [pair for pair in self.pairs if pair.fit.typical_error > BAD_FIT]
        if bad:
            worst = max(bad, key=lambda pair: pair.fit.typical_error)
            found.append(
                f"latency + bytes / bandwidth fits {len(bad)} of {len(self.pairs)} pairs badly: "
                f"ranks {worst.first} and {worst.second} typically by "
                f"{show_percent(worst.fit.typical_error, 0)}; look at the picture, and measure "
                "again on a quiet machine or for longer"
            )
        if self.ring.typical_error > BAD_FIT:
            found.append(
                "the all-reduce does not take the time of a ring's, typically by "
                f"{show_percent(self.ring.typical_error, 0)}; look at the picture"
            )
        return found


def to_cluster(measurement: Measurement, links: LinkDetail | str = LinkDetail.AUTO) -> Cluster:
    """Return the cluster of a measurement, in which device d is rank d.

    Neighbouring ranks with devices of one model are a kind.

    Parameters
    ----------
    measurement
        Measurement by `measure`.
    links
        ``typical``: the link of every kind is the typical pair's; a device that moves a tensor is
        busy as long as the message takes. ``each``: every pair has its own link besides.
        ``auto``: ``each`` if the fastest pair has more than `WIDE_SPREAD` times the bandwidth of
        the slowest.

    Returns
    -------
    Cluster
        Memory and links in bytes and seconds.

    Raises
    ------
    InputError
        If `links` is none of its choices.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.measure.measurement import Measurement, MessageTimes
    >>> from stagecut.runtime.measure.measurement import RankMachine, RankPair
    >>> ranks = tuple(RankMachine("host", f"cuda:{r}", "H100", 80e9) for r in range(2))
    >>> sizes = np.array([1e3, 1e6, 1e9])
    >>> timed = MessageTimes(sizes, tuple(np.full(5, 1e-5 + size / 25e9) for size in sizes))
    >>> measurement = Measurement("nccl", ranks, (RankPair(0, 1, timed),), timed)
    >>> cluster = stagecut.runtime.measure.to_cluster(measurement)
    >>> cluster.kinds[0].name, f"{cluster.kinds[0].link.bytes_per_s:.3g}"
    ('H100', '2.5e+10')
    """
    links = LinkDetail.of("links", links)
    runs: list[list[RankMachine]] = []
    for machine in measurement.ranks:
        if runs and runs[-1][0].model == machine.model:
            runs[-1].append(machine)
        else:
            runs.append([machine])
    seen: dict[str, int] = {}
    kinds = []
    for run in runs:
        model = run[0].model
        seen[model] = seen.get(model, 0) + 1
        kinds.append(
            DeviceKind(
                model if seen[model] == 1 else f"{model} #{seen[model]}",
                len(run),
                min(machine.memory_bytes for machine in run),
                times=ACCELERATOR,
                link=measurement.link,
            )
        )
    cluster = Cluster(tuple(kinds))
    if links == LinkDetail.TYPICAL or (
        links == LinkDetail.AUTO and measurement.spread <= WIDE_SPREAD
    ):
        return cluster
    names = [device.name for device in cluster.devices]
    return Cluster(
        cluster.kinds,
        tuple(PairLink((names[p.first], names[p.second]), p.fit.link) for p in measurement.pairs),
    )


def to_topology(measurement: Measurement) -> Topology:
    """Return the topology in which every pair of ranks has its own link; islands are hosts."""
    hosts = list(dict.fromkeys(machine.host for machine in measurement.ranks))
    links = [pair.fit.link for pair in measurement.pairs]
    return Topology(
        name="measured",
        devices=tuple(
            f"rank {r}: {machine.host} {machine.device}"
            for r, machine in enumerate(measurement.ranks)
        ),
        links=np.array([(pair.first, pair.second) for pair in measurement.pairs], np.int64),
        latency_s=np.array([link.latency_s for link in links]),
        bytes_per_s=np.array([link.bytes_per_s for link in links]),
        island=np.array([hosts.index(machine.host) for machine in measurement.ranks]),
    )
