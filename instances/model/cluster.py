"""Clusters: kinds of devices with counts and memories, and their links."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real

import numpy as np

from ..common.arrays import Floats, Ints, frozen
from ..common.errors import InputError, all_differ, quote
from ..common.units import LARGEST, SMALLEST
from .summary import Tabled

ACCELERATOR = "accelerator"
CPU = "cpu"

#: Most devices of a kind: no search can use more, and a mistyped count must not fill the memory.
MAX_DEVICES = 100_000


#: Most devices of a cluster with links between them: the table of pairs grows with the square.
MAX_LINKED_DEVICES = 2_000


@dataclass(frozen=True)
class Link:
    """A link by the postal model: sending b bytes takes latency + b / bandwidth.

    Parameters
    ----------
    latency_s
        Seconds until the first byte arrives.
    bytes_per_s
        Bandwidth.

    Raises
    ------
    InputError
        If the latency is negative, or the bandwidth is not above 0.

    Examples
    --------
    >>> Link(latency_s=1e-6, bytes_per_s=1e9).seconds(1000)
    2e-06
    """

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        for key in ("latency_s", "bytes_per_s"):
            object.__setattr__(self, key, number(getattr(self, key), f"link: {key}"))
        if not (self.latency_s >= 0 and math.isfinite(self.latency_s)):
            raise InputError(f"link: latency_s is {self.latency_s:g}; it must be at least 0")
        if not self.bytes_per_s >= SMALLEST:
            raise InputError(f"link: bytes_per_s is {self.bytes_per_s:g}; it must be above 0")

    def seconds(self, size_bytes: float) -> float:
        """Seconds that a message of `size_bytes` takes; nothing takes nothing."""
        return self.latency_s + size_bytes / self.bytes_per_s if size_bytes > 0 else 0.0

    def seconds_of(self, size_bytes: Floats) -> Floats:
        """Seconds of a message of each size, 0 where nothing is sent; shape of `size_bytes`."""
        times: Floats = np.where(
            size_bytes > 0, self.latency_s + size_bytes / self.bytes_per_s, 0.0
        )
        return times


@dataclass(frozen=True)
class PairLink:
    """A link between two devices, both ways: their data does not go through host memory.

    Parameters
    ----------
    ends
        Names of two devices, or of kinds: then each device of the one is linked with each of the
        other; a kind with itself links its devices with each other.
    link
        Latency and bandwidth of a message.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.instances import PairLink
    >>> nvlink = PairLink(("accelerator", "accelerator"), stagecut.Link(1e-6, 1e11))
    >>> kinds = (stagecut.DeviceKind("accelerator", 2),)
    >>> stagecut.Cluster(kinds, (nvlink,)).link_of.tolist()
    [[-1, 0], [0, -1]]
    """

    ends: tuple[str, str]
    link: Link

    def __post_init__(self) -> None:
        ends = tuple(self.ends)
        if len(ends) != 2 or not all(isinstance(end, str) for end in ends):
            raise InputError(f"cluster: a link between {quote(self.ends)}; name two ends")
        object.__setattr__(self, "ends", ends)
        if not isinstance(self.link, Link):
            raise InputError(f"link {self}: {quote(self.link)} is not a Link")

    def __str__(self) -> str:
        return " – ".join(quote(end).strip('"') for end in self.ends)


def number(value: object, what: str) -> float:
    """Return `value` as a float; InputError if it is no number, NaN, or finite and too large."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{what} is {quote(value)}; it must be a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.nan
    if math.isnan(found) or LARGEST < abs(found) < math.inf:
        raise InputError(f"{what} is {quote(value)}; it must be a number up to {LARGEST:g}")
    return found


@dataclass(frozen=True)
class DeviceKind:
    """A kind of identical devices.

    Parameters
    ----------
    name
        Such as ``accelerator``, ``cpu``, ``a100``.
    count
        Number of devices.
    memory_bytes
        Memory of each; `inf` for no limit. Whole bytes count exactly; sums of sizes that are not
        whole may pass it by 1e-9 of it, half a byte at most, for rounding.
    host
        True for devices that compute in host memory (CPU cores): they pay no transfer and have
        no memory limit of their own.
    times
        Column of `Workload.times` with their times; default: `name` if there is such a column, else
        ``accelerator`` or ``cpu``.
    slowdown
        Factor on those times.
    link
        Link to host memory, for workloads that give bytes; None to use their transfer times.

    Raises
    ------
    InputError
        If the count, the memory or the slowdown is out of range.

    Examples
    --------
    >>> DeviceKind("a100", 4, memory_bytes=40e9, times="accelerator").count
    4
    """

    name: str
    count: int
    memory_bytes: float = math.inf
    host: bool = False
    times: str | None = None
    slowdown: float = 1.0
    link: Link | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError("cluster: a device kind has no name; give it one")
        if isinstance(self.count, bool) or not isinstance(self.count, Integral) or self.count < 0:
            raise InputError(
                f"{self.name}: count is {quote(self.count)}; it must be a whole number ≥ 0"
            )
        object.__setattr__(self, "count", int(self.count))
        if self.count > MAX_DEVICES:
            raise InputError(
                f"{self.name}: count is {quote(self.count)}; at most {MAX_DEVICES} are planned for"
            )
        for key in ("memory_bytes", "slowdown"):
            object.__setattr__(self, key, number(getattr(self, key), f"{self.name}: {key}"))
        if not isinstance(self.host, bool | np.bool_):
            raise InputError(f"{self.name}: host is {quote(self.host)}; it must be true or false")
        object.__setattr__(self, "host", bool(self.host))
        if self.link is not None and not isinstance(self.link, Link):
            raise InputError(f"{self.name}: link is {quote(self.link)}; it must be a Link")
        if not self.memory_bytes >= 0:
            raise InputError(f"{self.name}: memory_bytes is {self.memory_bytes:g}; must be ≥ 0")
        if not (self.slowdown >= SMALLEST and math.isfinite(self.slowdown)):
            raise InputError(f"{self.name}: slowdown is {self.slowdown:g}; it must be above 0")
        if self.host and not math.isinf(self.memory_bytes):
            raise InputError(
                f"{self.name}: a host device shares host memory and takes no memory limit; "
                "leave memory_bytes out or set host to false"
            )


@dataclass(frozen=True)
class Device:
    """One device: `kind` numbers its `DeviceKind` in the cluster.

    Parameters
    ----------
    name
        Unique in its cluster.
    kind
        Position of its kind in `Cluster.kinds`.

    Examples
    --------
    >>> accelerators_and_cpus(2).devices[1]
    Device(name='accelerator 1', kind=0)
    """

    name: str
    kind: int


@dataclass(frozen=True)
class Cluster(Tabled):
    """The devices to plan for, numbered kind by kind in the order of `kinds`.

    Parameters
    ----------
    kinds
        Kinds of devices.
    links
        Links between accelerators: what one sends the other goes over their link and not through
        host memory. Of several that name a pair the last one counts.

    Raises
    ------
    InputError
        If there is no device at all, two kinds or devices have one name, or a link names what is
        no accelerator.

    Examples
    --------
    >>> import stagecut
    >>> fast = stagecut.DeviceKind("h100", 2, memory_bytes=80e9, times="accelerator")
    >>> slow = stagecut.DeviceKind("a100", 1, 40e9, times="accelerator", slowdown=2.0)
    >>> [device.name for device in stagecut.Cluster((fast, slow)).devices]
    ['h100 0', 'h100 1', 'a100']
    """

    kinds: tuple[DeviceKind, ...]
    links: tuple[PairLink, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(self.kinds))
        for kind in self.kinds:
            if not isinstance(kind, DeviceKind):
                raise InputError(f"cluster: {quote(kind)} is not a DeviceKind")
        names = [kind.name for kind in self.kinds]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"cluster: two device kinds are called {name!r}; rename one")
        if not any(kind.count for kind in self.kinds):
            raise InputError("cluster: no devices; give at least one accelerator or CPU core")
        if any(f"{name} " in other for name in names for other in names):  # such as "a" and "a 0"
            all_differ((device.name for device in self.devices), "cluster: device")
        object.__setattr__(self, "links", tuple(self.links))
        if self.links:
            self.link_of  # noqa: B018  # checks them

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Every device, in order."""
        return tuple(
            Device(kind.name if kind.count == 1 else f"{kind.name} {i}", k)
            for k, kind in enumerate(self.kinds)
            for i in range(kind.count)
        )

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @cached_property
    def link_of(self) -> Ints:
        """Shape (D, D): number of the link between two devices, −1 for none."""
        if self.size > MAX_LINKED_DEVICES:
            raise InputError(
                f"cluster: links between {self.size} devices; at most {MAX_LINKED_DEVICES} can be "
                "linked"
            )
        linkable = [(d, x) for d, x in enumerate(self.devices) if not self.kinds[x.kind].host]
        named: dict[str, list[int]] = {kind.name: [] for kind in self.kinds if not kind.host}
        for d, device in linkable:
            named[self.kinds[device.kind].name].append(d)
        for d, device in linkable:
            named.setdefault(device.name, [d])
        table = np.full((self.size, self.size), -1)
        seen: set[frozenset[str]] = set()
        for i, pair in enumerate(self.links):
            if not isinstance(pair, PairLink):
                raise InputError(f"cluster: {quote(pair)} is not a PairLink")
            for end in pair.ends:
                if end not in named:
                    raise InputError(f"cluster: link {pair}: no accelerator or kind {quote(end)}")
            if frozenset(pair.ends) in seen:
                raise InputError(f"cluster: link {pair} is given twice; remove one")
            seen.add(frozenset(pair.ends))
            a, b = (named[end] for end in pair.ends)
            if a == b and len(a) == 1:
                raise InputError(
                    f"cluster: link {pair} joins a device with itself; name two devices"
                )
            table[np.ix_(a, b)] = table[np.ix_(b, a)] = i
        np.fill_diagonal(table, -1)
        return frozen(table, np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of kinds and links, in order."""
        stated = (self.kinds, self.links) if self.links else self.kinds
        return hashlib.sha256(repr(stated).encode()).hexdigest()

    def summary(self) -> dict[str, object]:
        """Return the number and memory of each kind of devices, and the number of links."""
        facts: dict[str, object] = {}
        for kind in self.kinds:
            memory = "" if math.isinf(kind.memory_bytes) else f" of {kind.memory_bytes:.6g} bytes"
            facts[kind.name] = f"{kind.count}{memory}"
        return {**facts, "links between devices": len(self.links)}

    def with_counts(
        self,
        accelerators: int | None = None,
        cpus: int | None = None,
        memory_bytes: float | None = None,
    ) -> Cluster:
        """Return the cluster with other counts or another memory per accelerator.

        Raises
        ------
        InputError
            If a count is given and the cluster has several such kinds.
        """
        kinds = list(self.kinds)
        for count, host, name in ((accelerators, False, ACCELERATOR), (cpus, True, CPU)):
            if count is None:
                continue
            which = [i for i, kind in enumerate(kinds) if kind.host == host]
            if len(which) > 1:
                named = ", ".join(kinds[i].name for i in which)
                raise InputError(
                    f"--{name}s: the cluster has several kinds ({named}); "
                    "set their counts in the cluster file"
                )
            if which:
                kinds[which[0]] = replace(kinds[which[0]], count=count)
            else:
                kinds.append(DeviceKind(name, count, host=host))
        if memory_bytes is not None:
            kinds = [k if k.host else replace(k, memory_bytes=memory_bytes) for k in kinds]
        return Cluster(tuple(kinds), self.links)

    def without_hosts(self) -> Cluster:
        """Return the cluster without the devices that compute in host memory.

        The cluster itself if there are no others, or devices are linked.
        """
        if self.links or not any(kind.count for kind in self.kinds if not kind.host):
            return self
        kinds = (replace(kind, count=0) if kind.host else kind for kind in self.kinds)
        return Cluster(tuple(kinds))


def accelerators_and_cpus(
    accelerators: int, cpus: int = 0, memory_bytes: float = math.inf
) -> Cluster:
    """Return a cluster of identical accelerators, and CPU cores on one host.

    Parameters
    ----------
    accelerators, cpus
        Number of each.
    memory_bytes
        Memory of each accelerator.

    Returns
    -------
    Cluster
        The kind ``accelerator``, and after it the kind ``cpu``.

    Raises
    ------
    InputError
        If a number is no count of devices, or there are no devices at all.

    Examples
    --------
    >>> accelerators_and_cpus(2, 1).devices[2].name
    'cpu'
    """
    kinds = (DeviceKind(ACCELERATOR, accelerators, memory_bytes), DeviceKind(CPU, cpus, host=True))
    return Cluster(kinds)
