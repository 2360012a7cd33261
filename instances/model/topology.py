"""Topologies: devices, switches, the links between them, and the routes over these."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..common.arrays import Bools, Floats, Ints, checked, frozen
from ..common.choices import OrText, Routing
from ..common.errors import InputError, all_differ, quote
from ..common.units import LARGEST, SMALLEST
from .routing_kernel import fewest_hops, widest
from .summary import Summarised

if TYPE_CHECKING:
    import networkx as nx

#: Largest number of devices: tables of all pairs of more devices would exceed ordinary memories.
MAX_DEVICES = 8192
#: Largest number of switches: two for each of `MAX_DEVICES`.
MAX_SWITCHES = 16384
#: Largest number of links: so many take a gigabyte, one per pair of `MAX_DEVICES` several.
MAX_LINKS = 12_000_000


@dataclass(frozen=True, eq=False)
class Routes:
    """Point-to-point routes of D devices among N nodes, the same in both directions.

    The tables are computed at their first use, in O(D · E) time and O(D · N) memory.
    """

    devices: int  # D
    # start, target: neighbours of node u are target[start[u] : start[u + 1]], increasing; shapes (N
    # + 1,) and (2E,)
    start: Ints
    target: Ints
    latency: Floats  # latency, bandwidth: (2E,): of each of these links
    bandwidth: Floats
    widest: bool  # whether the widest route is taken, else that of fewest hops

    @cached_property
    def _searched(self) -> tuple[Floats, Floats, NDArray[np.int32]]:
        """Tables of latency, bandwidth and the node before, by a search from each device."""
        search = widest if self.widest else fewest_hops
        lat, band, previous = search(
            self.devices, len(self.start) - 1, self.start, self.target, self.latency, self.bandwidth
        )
        for table in (lat, band):
            for d in range(self.devices):  # `triu_indices` would take as much memory again
                table[d + 1 :, d] = table[d, d + 1 :]
        for table in (lat, band, previous):
            table.setflags(write=False)
        return lat, band, previous

    @property
    def latency_s(self) -> Floats:
        """Shape (D, D): sum of the latencies on the route; 0 on the diagonal."""
        return self._searched[0]

    @property
    def bytes_per_s(self) -> Floats:
        """Shape (D, D): least bandwidth on the route; `inf` on the diagonal, 0 without a route."""
        return self._searched[1]

    @property
    def previous(self) -> NDArray[np.int32]:
        """Shape (D, N): node before each node on its route from device d, −1 at d itself.

        The route between d < e is the one in row d.
        """
        return self._searched[2]

    @cached_property
    def component(self) -> Ints:
        """Shape (N,): connected component of each node."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        size = len(self.start) - 1
        some = (np.ones(len(self.target), np.int64), self.target, self.start)
        graph: csr_array[np.int64, tuple[int, int]] = csr_array(some, shape=(size, size))
        found: Ints = connected_components(graph, directed=False)[1].astype(np.int64)
        return found

    def path(self, a: int, b: int) -> list[int]:
        """Return the nodes on the route from device a to device b, both included."""
        low, high = min(a, b), max(a, b)
        nodes = [high]
        while nodes[-1] != low:
            nodes.append(int(self.previous[low, nodes[-1]]))
        return nodes if a == high else nodes[::-1]

    def hops(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        """Return the links on the route from a to b, each in the direction of travel."""
        return pairwise(self.path(a, b))


@dataclass(frozen=True, eq=False, repr=False)
class Topology(Summarised):
    """Devices and switches, joined by links that carry data both ways at once.

    Nodes 0 … D−1 are the devices, D … D+switches−1 only forward. A message over a link takes
    latency + bytes / bandwidth (the postal model); over a route, the sum of the latencies plus
    bytes over the least bandwidth on the way.

    Parameters
    ----------
    name
        Name; if `topology()` built it, its text.
    devices
        Names of the devices, all different.
    links
        Shape (E, 2): the two nodes of each link.
    latency_s
        Shape (E,): seconds until the first byte arrives.
    bytes_per_s
        Shape (E,): bandwidth of each direction.
    switches
        Number of nodes that only forward messages.
    island
        Shape (D,): number of the fast island (node, block) of each device; default: one island.
    excluded
        Devices that must not be used; messages still pass through them.
    routing
        ``hops``: fewest links, of those the widest route, of those the least latency.
        ``widest``: largest least bandwidth, of those the fewest links, then the least latency.
        Routes are grown link by link from the device with the lower number, and every part of
        one from there on is the route to where it ends: a part that is wider than the whole
        route can use is not given up for a shorter or faster one.
    memory_bytes
        Shape (D,): memory of each device, `inf` for no limit; default: no limits.
    slowdown
        Shape (D,): time of a device over that of the workload's accelerator; default: 1.
    shape, wraps
        Sides of a mesh (or torus, if it wraps), devices in row-major order; () for others.

    Raises
    ------
    InputError
        If a link leads nowhere, a bandwidth is not above 0, or a name occurs twice.

    Examples
    --------
    >>> import stagecut
    >>> ring = stagecut.topology("ring:4")
    >>> ring.size, len(ring.links), ring.without([3]).usable.tolist()
    (4, 4, [0, 1, 2])
    """

    name: str
    devices: tuple[str, ...]
    links: Ints
    latency_s: Floats
    bytes_per_s: Floats
    switches: int = 0
    island: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    excluded: tuple[int, ...] = ()
    routing: OrText[Routing] = Routing.HOPS
    shape: tuple[int, ...] = ()
    wraps: bool = False
    memory_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    slowdown: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        def put(key: str, value: object) -> None:
            object.__setattr__(self, key, value)

        where = self.name
        put("devices", tuple(str(device) for device in self.devices))
        put("links", checked(self.links, np.int64, f"{where}: links", columns=2))
        for key in ("latency_s", "bytes_per_s"):
            put(key, checked(getattr(self, key), np.float64, f"{where}: {key}"))
        island = checked(self.island, np.int64, f"{where}: island")
        put("island", island if len(island) else frozen(np.zeros(self.size), np.int64))
        memory = checked(self.memory_bytes, np.float64, f"{where}: memory_bytes")
        unlimited = frozen([np.inf] * self.size, np.float64)
        put("memory_bytes", memory if len(memory) else unlimited)
        slowdown = checked(self.slowdown, np.float64, f"{where}: slowdown")
        put("slowdown", slowdown if len(slowdown) else frozen(np.ones(self.size), np.float64))
        put("excluded", tuple(sorted({int(d) for d in self.excluded})))
        put("shape", tuple(int(side) for side in self.shape))
        put("routing", Routing.of(f"{where}: routing", self.routing))
        _check(self)

    @property
    def size(self) -> int:
        """Number of devices, D."""
        return len(self.devices)

    @cached_property
    def usable(self) -> Ints:
        """Numbers of the devices that are not excluded, increasing."""
        out = set(self.excluded)
        return frozen([d for d in range(self.size) if d not in out], np.int64)

    @cached_property
    def usable_index(self) -> Ints:
        """Place of each device among the usable ones, shape (D,); −1 for those excluded."""
        index = np.full(self.size, -1)
        index[self.usable] = np.arange(len(self.usable))
        return frozen(index, np.int64)

    @cached_property
    def routes(self) -> Routes:
        """The routes between devices, whose tables are computed at their first use.

        Raises
        ------
        InputError
            If a device that can be used cannot be reached from another one.
        """
        routes = route(
            self.size,
            self.size + self.switches,
            self.links,
            self.latency_s,
            self.bytes_per_s,
            widest=self.routing == Routing.WIDEST,
        )
        component = routes.component[self.usable]
        apart = self.usable[component != component[:1]]
        if len(apart):
            a, b = int(self.usable[0]), int(apart[0])
            raise InputError(
                f"{self.name}: no route from {self.devices[a]} to {self.devices[b]}; "
                f"add a link between them, or exclude device {b}"
            )
        return routes

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a mapping depends on; not of names."""
        digest = hashlib.sha256()
        rest = (self.size, self.switches, self.excluded, self.routing, self.shape, self.wraps)
        digest.update(repr(rest).encode())
        arrays = [self.links, self.latency_s, self.bytes_per_s, self.island]
        if np.isfinite(self.memory_bytes).any():
            arrays.append(self.memory_bytes)
        if (self.slowdown != 1).any():
            arrays.append(self.slowdown)
            digest.update(b"slowdown|")  # the same numbers of bytes of memory are another topology
        for array in arrays:
            digest.update(array.tobytes() + b"|")
        return digest.hexdigest()

    def summary(self) -> dict[str, object]:
        """Return name and sizes."""
        return {
            "name": self.name,
            "devices": self.size,
            "excluded": len(self.excluded),
            "switches": self.switches,
            "links": len(self.links),
            "routing": self.routing,
        }

    def without(self, devices: Iterable[int]) -> Topology:
        """Return the topology with these devices excluded, too."""
        return replace(self, excluded=(*self.excluded, *devices))

    def to_networkx(self) -> nx.Graph[int]:
        """Return the topology as a graph with its data as attributes.

        Nodes have ``name``, ``device``, ``island``, ``memory_bytes`` and ``slowdown``, links
        ``latency_s`` and ``bytes_per_s``. `topology_from_networkx` is the inverse, but for links
        that no route uses beside a better one between the same two nodes, and the grid's shape.
        """
        import networkx as nx

        graph: nx.Graph[int] = nx.Graph(name=self.name, routing=str(self.routing))
        for d, name in enumerate(self.devices):
            graph.add_node(
                d,
                name=name,
                device=True,
                island=int(self.island[d]),
                excluded=d in self.excluded,
                memory_bytes=float(self.memory_bytes[d]),
                slowdown=float(self.slowdown[d]),
            )
        for w in range(self.switches):
            graph.add_node(self.size + w, name=f"switch {w}", device=False)
        rows = zip(self.links.tolist(), self.latency_s, self.bytes_per_s, strict=True)
        for (a, b), latency, bandwidth in sorted(rows, key=lambda row: (row[2], -row[1])):
            graph.add_edge(a, b, latency_s=float(latency), bytes_per_s=float(bandwidth))
        return graph


def check_size(name: str, devices: int) -> None:
    """Raise InputError if a topology would have too many devices."""
    if devices > MAX_DEVICES:
        raise InputError(f"{name}: {devices} devices; at most {MAX_DEVICES} are mapped to")


def check_links(name: str, links: int) -> None:
    """Raise InputError if a topology would have too many links."""
    if links > MAX_LINKS:
        raise InputError(
            f"{name}: {links} links; at most {MAX_LINKS} are mapped to: take fewer devices"
        )


def _check(topology: Topology) -> None:
    where, nodes = topology.name, topology.size + topology.switches
    if not topology.devices:
        raise InputError(f"{where}: no devices; give at least one")
    check_size(where, topology.size)
    all_differ(topology.devices, f"{where}: device")
    if not 0 <= topology.switches <= MAX_SWITCHES:
        raise InputError(
            f"{where}: switches is {quote(topology.switches)}; it must be from 0 to {MAX_SWITCHES}"
        )
    check_links(where, len(topology.links))
    of_links = ("latency_s", "bytes_per_s")
    for key in (*of_links, "memory_bytes", "slowdown", "island"):
        each = "link" if key in of_links else "device"
        if len(getattr(topology, key)) != len(getattr(topology, f"{each}s")):
            raise InputError(f"{where}: {key} and {each}s differ in length; give one per {each}")
    for d in np.flatnonzero(~(topology.memory_bytes >= 0))[:1].tolist():
        value = quote(float(topology.memory_bytes[d]))
        raise InputError(f"{where}: memory_bytes of device {d} is {value}; it must be at least 0")
    wrong = ~_is_rate(topology.slowdown) | np.isinf(topology.slowdown)
    for d in np.flatnonzero(wrong)[:1].tolist():
        value = quote(float(topology.slowdown[d]))
        raise InputError(
            f"{where}: slowdown of device {d} is {value}; it must be above 0, and at most "
            f"{LARGEST:g}"
        )
    if topology.excluded and not 0 <= topology.excluded[0] <= topology.excluded[-1] < topology.size:
        raise InputError(f"{where}: excluded names a device beyond 0 to {topology.size - 1}")
    first, second = topology.links.T
    wrong = (topology.links.min(axis=1) < 0) | (topology.links.max(axis=1) >= nodes)
    for i in np.flatnonzero(wrong | (first == second))[:1].tolist():
        a, b = topology.links[i].tolist()
        if wrong[i]:
            raise InputError(f"{where}: link {i} ({a}–{b}): nodes run 0 to {nodes - 1}")
        raise InputError(f"{where}: link {i} joins node {a} to itself; remove it")
    for key, good in (
        ("latency_s", (topology.latency_s >= 0) & (topology.latency_s <= LARGEST)),
        ("bytes_per_s", _is_rate(topology.bytes_per_s)),
    ):
        for i in np.flatnonzero(~good)[:1].tolist():
            least = "a number ≥ 0" if key == "latency_s" else "above 0"
            least += f", and at most {LARGEST:g}"
            value = quote(float(getattr(topology, key)[i]))
            raise InputError(f"{where}: link {i}: {key} is {value}; it must be {least}")
    sides = topology.shape
    if sides and (min(sides) < 1 or math.prod(sides) != topology.size):
        raise InputError(f"{where}: shape {sides} does not have {topology.size} devices")


def _is_rate(values: Floats) -> Bools:
    return (values >= SMALLEST) & ((values <= LARGEST) | np.isinf(values))


def topology_from_networkx(graph: nx.Graph[int]) -> Topology:
    """Return the topology of a graph as `Topology.to_networkx` makes it.

    Nodes may be anything sortable in any order; those with ``device`` false are switches. Links
    need ``bytes_per_s``; ``latency_s`` is 0 by default. InputError if the graph is directed, a link
    has no bandwidth or one that is no number, or the topology is not valid.
    """
    nodes: list[tuple[int, dict[str, object]]] = list(graph.nodes.items())
    devices = [v for v, data in nodes if data.get("device", True)]
    switches = [v for v, data in nodes if not data.get("device", True)]
    number = {v: i for i, v in enumerate([*devices, *switches])}
    name = str(graph.graph.get("name") or "graph")
    if graph.is_directed():
        raise InputError(f"{name}: links carry data both ways; give graph.to_undirected()")
    links: list[list[int]] = []
    latency: list[float] = []
    bandwidth: list[float] = []
    for a, b, data in graph.edges(data=True):
        if "bytes_per_s" not in data:
            raise InputError(f"{name}: link {a}–{b} has no bytes_per_s; set it")
        links.append(sorted((number[a], number[b])))
        for key, values in (("latency_s", latency), ("bytes_per_s", bandwidth)):
            value = data.get(key, 0.0)
            try:
                values.append(float(value))
            except (TypeError, ValueError):
                raise InputError(
                    f"{name}: link {a}–{b}: {key} is {quote(value)}; it must be a number"
                ) from None
    return Topology(
        name=name,
        devices=tuple(str(graph.nodes[v].get("name", v)) for v in devices),
        links=np.array(links, np.int64).reshape(-1, 2),
        latency_s=np.array(latency),
        bytes_per_s=np.array(bandwidth),
        switches=len(switches),
        island=np.array([int(graph.nodes[v].get("island", 0)) for v in devices]),
        excluded=tuple(number[v] for v in devices if graph.nodes[v].get("excluded", False)),
        routing=graph.graph.get("routing", Routing.HOPS),
        memory_bytes=np.array(
            [float(graph.nodes[v].get("memory_bytes", math.inf)) for v in devices]
        ),
        slowdown=np.array([float(graph.nodes[v].get("slowdown", 1.0)) for v in devices]),
    )


def route(
    devices: int, nodes: int, links: Ints, latency_s: Floats, bytes_per_s: Floats, *, widest: bool
) -> Routes:
    """Return the routes over a graph; of parallel links the widest, then the fastest, is used."""
    from scipy.sparse import coo_array

    ends, latency, bandwidth = np.sort(links, axis=1), latency_s, bytes_per_s
    pair = ends[:, 0] * nodes + ends[:, 1]
    if (pair[1:] <= pair[:-1]).any():  # else they are in order: sorting millions takes seconds
        order = np.lexsort((latency_s, -bytes_per_s, pair))
        order = order[np.diff(pair[order], prepend=-1) > 0]
        ends, latency, bandwidth = ends[order], latency_s[order], bytes_per_s[order]
    both = np.concatenate([ends, ends[:, ::-1]])
    which = np.tile(np.arange(len(ends)), 2)
    matrix = coo_array((which + 1, (both[:, 0], both[:, 1])), shape=(nodes, nodes)).tocsr()
    matrix.sort_indices()
    link = matrix.data - 1
    return Routes(
        devices,
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int64),
        latency[link] if len(link) else np.zeros(0),
        bandwidth[link] if len(link) else np.zeros(0),
        widest,
    )
