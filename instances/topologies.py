"""Topologies by text, such as ``mesh2d:4x8``, or from files: devices, switches and links.

Bandwidths and latencies are round numbers of today's hardware: a fast link (NVLink) carries
300 GB/s, a network link 25 GB/s (200 Gbit/s), a grid link 50 GB/s. Files are our own JSON, or the
output of ``nvidia-smi topo -m``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from .common.arrays import Ints
from .common.choices import Routing
from .common.errors import InputError, prefix_errors, quote
from .formats.source import NEWEST, TOPOLOGY, Record, Whole, read_file, read_source
from .formats.stagecut_json import finite
from .formats.writing import json_text, write_whole
from .model.topology import Topology, check_links, check_size
from .model.topology import topology_from_networkx as topology_from_networkx


class TopologyLinkRecord(Record):
    """A link between two nodes, numbered devices first; bandwidth null for no limit."""

    ends: tuple[Whole, Whole]
    latency_s: float
    bytes_per_s: float | None


class TopologyFile(Record):
    """A topology file; see `Topology`. Memory null for no limit, `slowdown` 1 by default."""

    format: Literal["stagecut-topology"]
    version: Literal[1]
    name: str
    devices: list[str]
    links: list[TopologyLinkRecord]
    switches: int = 0
    island: list[Whole] = msgspec.field(default_factory=list)
    excluded: list[int] = msgspec.field(default_factory=list)
    routing: Routing = Routing.HOPS
    shape: list[int] = msgspec.field(default_factory=list)
    wraps: bool = False
    memory_bytes: list[float | None] = msgspec.field(default_factory=list)
    slowdown: list[float] = msgspec.field(default_factory=list)


def load_topology(path: str | Path) -> Topology:
    """Return the topology in a file; InputError names file, field and remedy."""
    source = read_source(path)
    file = read_file(source, TopologyFile, TOPOLOGY)
    with prefix_errors(source.file, file.name):
        return make_topology(file)


def make_topology(file: TopologyFile) -> Topology:
    """Return the topology that the record describes."""
    bandwidth = [math.inf if k.bytes_per_s is None else k.bytes_per_s for k in file.links]
    return Topology(
        name=file.name,
        devices=tuple(file.devices),
        links=np.array([k.ends for k in file.links], np.int64).reshape(-1, 2),
        latency_s=np.array([k.latency_s for k in file.links], np.float64),
        bytes_per_s=np.array(bandwidth, np.float64),
        switches=file.switches,
        island=np.array(file.island, np.int64),
        excluded=tuple(file.excluded),
        routing=file.routing,
        shape=tuple(file.shape),
        wraps=file.wraps,
        memory_bytes=np.array(
            [math.inf if size is None else size for size in file.memory_bytes], np.float64
        ),
        slowdown=np.array(file.slowdown, np.float64),
    )


def write_topology(topology: Topology) -> dict[str, object]:
    """Return the file of `topology`, as JSON values."""
    memory, limited = topology.memory_bytes, np.isfinite(topology.memory_bytes).any()
    rows = zip(
        topology.links.tolist(),
        topology.latency_s.tolist(),
        topology.bytes_per_s.tolist(),
        strict=True,
    )
    return {
        "format": TOPOLOGY,
        "version": NEWEST[TOPOLOGY],
        "name": topology.name,
        "devices": list(topology.devices),
        "links": [
            {"ends": ends, "latency_s": latency, "bytes_per_s": finite(bandwidth)}
            for ends, latency, bandwidth in rows
        ],
        "switches": topology.switches,
        "island": topology.island.tolist(),
        "excluded": list(topology.excluded),
        "routing": topology.routing,
        "shape": list(topology.shape),
        "wraps": topology.wraps,
        **({"memory_bytes": list(map(finite, memory.tolist()))} if limited else {}),
        **({"slowdown": topology.slowdown.tolist()} if (topology.slowdown != 1).any() else {}),
    }


def save_topology(topology: Topology, path: str | Path) -> None:
    """Write a topology as Stagecut JSON, completely or not at all."""
    write_whole(path, json_text(write_topology(topology)))


FAST, NETWORK, GRID = 300e9, 25e9, 50e9
FAST_LATENCY_S, NETWORK_LATENCY_S, GRID_LATENCY_S = 2e-6, 5e-6, 1e-6

#: Latency (seconds) and bandwidth (bytes per second) between two GPUs, by nvidia-smi's code.
#: Measured values differ by machine: measure, and edit the JSON.
WAYS = {
    "PIX": (3e-6, 24e9),  # one PCIe switch
    "PXB": (4e-6, 20e9),  # several PCIe switches
    "PHB": (5e-6, 16e9),  # the CPU's PCIe host bridge
    "NODE": (6e-6, 14e9),  # between host bridges of one NUMA node
    "SYS": (8e-6, 10e9),  # between NUMA nodes
}

#: One NVLink, each direction; NV4 means four of them.
NVLINK = (2e-6, 25e9)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_EXAMPLES = (
    "ring:8, mesh2d:4x8, torus2d:4x8, mesh3d:4x4x4, torus3d:4x4x4, fattree:4, dragonfly:4x4x2, "
    "islands:8x8, random_blk_1:64@seed=3, random_blk_2:64, uniform_dist:64, nvidia:FILE, FILE.json"
)


def topology(text: str) -> Topology:
    """Return the topology that a text names.

    ``KIND:SIDES[@KEY=VALUE,…]`` with the keys ``seed`` (random kinds, default 0), ``routing``
    (``hops`` or ``widest``) and ``exclude`` (numbers of devices, joined by +); ``nvidia:FILE``
    for the output of ``nvidia-smi topo -m``; or a Stagecut topology file.

    Parameters
    ----------
    text
        Such as ``mesh2d:4x8``, ``torus2d:4x8``, ``ring:8``, ``fattree:4``, ``islands:4x8`` or
        ``random_blk_1:64@seed=1``.

    Returns
    -------
    Topology
        Its devices are numbered in row-major order.

    Raises
    ------
    InputError
        If there is no such kind or file, or the sides do not fit; the message gives examples.

    Examples
    --------
    >>> topology("mesh2d:2x3").size
    6
    """
    plain, _, tail = text.partition("@")
    options = _options(text, tail)
    kind, _, sides = plain.partition(":")
    if kind == "nvidia":
        found = read_nvidia(Path(sides))
    elif kind in REGULAR:
        count, make = REGULAR[kind]
        numbers = _sides(text, sides)
        if len(numbers) != count:
            raise InputError(f"topology {text}: {kind} takes {count} numbers; such as {_EXAMPLES}")
        found = make(plain, numbers)
    elif kind in RANDOM:
        numbers = _sides(text, sides)
        if len(numbers) != 1:
            raise InputError(f"topology {text}: {kind} takes the number of devices alone")
        seed = _number(text, "seed", options.pop("seed", "0"))
        found = RANDOM[kind](f"{plain}@seed={seed}", numbers[0], np.random.default_rng(seed))
    elif Path(plain).suffix == ".json":
        found = load_topology(plain)
    else:
        raise InputError(f"topology: no {quote(text)}; name one such as {_EXAMPLES}")
    routing = options.pop("routing", found.routing)
    excluded = options.pop("exclude", "")
    for key in options:
        known = "use routing or exclude, and seed for random topologies"
        raise InputError(f"topology {text}: unknown key {quote(key)}; {known}")
    out = tuple(_number(text, "exclude", d) for d in excluded.split("+")) if excluded else ()
    if routing == found.routing and not out:
        return found
    return replace(found, name=text, routing=routing, excluded=(*found.excluded, *out))


def _options(text: str, tail: str) -> dict[str, str]:
    options = {}
    for item in tail.split(",") if tail else ():
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"topology {text}: {quote(item)} is not KEY=VALUE")
        options[key] = value
    return options


def _sides(text: str, sides: str) -> tuple[int, ...]:
    numbers = tuple(_number(text, "sides", side) for side in sides.split("x"))
    if min(numbers) < 1:
        raise InputError(f"topology {text}: a side is below 1")
    return numbers


def _number(text: str, what: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise InputError(
            f"topology {text}: {what}: {quote(value)} is not a whole number; such as {_EXAMPLES}"
        )
    return int(value)


def read_nvidia(path: Path) -> Topology:
    """Return the topology that a file with the output of ``nvidia-smi topo -m`` shows.

    A link per pair of GPUs; network cards are left out. GPUs that reach each other over NVLink form
    an island. InputError if the file has no matrix, or a cell is of an unknown kind.
    """
    import networkx as nx

    source = read_source(path)
    lines = [_ANSI.sub("", line) for line in source.text.splitlines()]
    head = next((k for k, line in enumerate(lines) if re.match(r"\s*GPU0\b", line)), None)
    if head is None:
        source.fail("no line of column names from GPU0 on; save the output of nvidia-smi topo -m")
    columns = re.findall(r"GPU\d+", lines[head])
    check_size(str(path), len(columns))
    rows: dict[str, list[str]] = {}
    for line in lines[head + 1 :]:
        words = line.split()
        if words and re.fullmatch(r"GPU\d+", words[0]):
            rows[words[0]] = words[1:]
    # NIC columns stand behind the GPUs', so that GPU k is the k-th word of every row.
    for name in columns:
        if len(rows.get(name, [])) < len(columns):
            source.fail(f"the row of {name} is missing or cut off; save the whole output")
    links, latency, bandwidth = [], [], []
    fast: nx.Graph[int] = nx.Graph()
    fast.add_nodes_from(range(len(columns)))
    for a, b in combinations(range(len(columns)), 2):
        way = rows[columns[a]][b]
        match = re.fullmatch(r"NV(\d+)", way)
        if match and int(match[1]) > 0:
            seconds, speed = NVLINK[0], NVLINK[1] * int(match[1])
            fast.add_edge(a, b)
        elif way in WAYS:
            seconds, speed = WAYS[way]
        else:
            known = ", ".join(WAYS)
            source.fail(f"{columns[a]} to {columns[b]}: {quote(way)} is none of NV<n>, {known}")
        links.append((a, b))
        latency.append(seconds)
        bandwidth.append(speed)
    island = np.zeros(len(columns), np.int64)
    for k, members in enumerate(nx.connected_components(fast)):
        island[sorted(members)] = k
    try:
        return Topology(
            name=f"nvidia:{path}",
            devices=tuple(columns),
            links=np.array(links, np.int64).reshape(-1, 2),
            latency_s=np.array(latency),
            bytes_per_s=np.array(bandwidth),
            island=island,
        )
    except InputError as error:
        source.fail(str(error))


def grid(name: str, sides: tuple[int, ...], wraps: bool) -> Topology:
    """A mesh, or a torus if it wraps; devices in row-major order, links between neighbours."""
    check_size(name, math.prod(sides))
    names = tuple(",".join(map(str, place)) for place in np.ndindex(*sides))
    links = grid_links(sides, wraps)
    return Topology(
        name=name,
        devices=names,
        links=links,
        latency_s=np.full(len(links), GRID_LATENCY_S),
        bytes_per_s=np.full(len(links), GRID),
        island=np.zeros(len(names), np.int64),
        shape=sides,
        wraps=wraps,
    )


def grid_links(sides: tuple[int, ...], wraps: bool) -> Ints:
    """Return the links of a mesh, or of a torus if it wraps; shape (E, 2), lower number first.

    Devices are numbered in row-major order.
    """
    index = np.arange(int(np.prod(sides))).reshape(sides)
    pairs = []
    for axis, side in enumerate(sides):
        ahead = np.roll(index, -1, axis)
        # around a side of two, the link back is the link there
        keep = slice(None) if wraps and side > 2 else slice(0, side - 1)
        cut = tuple(keep if a == axis else slice(None) for a in range(len(sides)))
        pairs.append(np.stack([index[cut].ravel(), ahead[cut].ravel()], axis=1))
    return np.sort(np.concatenate(pairs), axis=1)


def fat_tree(name: str, sides: tuple[int, ...]) -> Topology:
    """A k-ary fat tree: k pods of k/2 edge and k/2 aggregation switches, k³/4 devices."""
    (k,) = sides
    if k < 2 or k % 2:
        raise InputError(f"{name}: a fat tree needs an even number of ports, such as fattree:4")
    half = k // 2
    size = k * half * half
    check_size(name, size)
    edge, aggregation, core = size, size + k * half, size + k * k
    links = []
    for pod in range(k):
        for e in range(half):
            switch = edge + pod * half + e
            links += [((pod * half + e) * half + d, switch) for d in range(half)]
            links += [(switch, aggregation + pod * half + a) for a in range(half)]
        for a in range(half):
            up = aggregation + pod * half + a
            links += [(up, core + a * half + c) for c in range(half)]
    return _network(name, links, np.arange(size) // (half * half), k * k + half * half)


def dragonfly(name: str, sides: tuple[int, ...]) -> Topology:
    """Groups × routers × devices: routers of a group all joined, one link per pair of groups."""
    groups, routers, each = sides
    size = groups * routers * each
    check_size(name, size)
    check_links(name, size + groups * routers * (routers - 1) // 2 + groups * (groups - 1) // 2)
    links = [(d, size + d // each) for d in range(size)]
    for g in range(groups):
        links += [
            (size + g * routers + a, size + g * routers + b)
            for a, b in combinations(range(routers), 2)
        ]
    for a, b in combinations(range(groups), 2):
        links.append((size + a * routers + b % routers, size + b * routers + a % routers))
    return _network(name, links, np.arange(size) // (routers * each), groups * routers)


def _network(name: str, links: list[tuple[int, int]], island: Ints, switches: int) -> Topology:
    """A topology whose links are all network links."""
    return Topology(
        name=name,
        devices=_numbered(len(island)),
        links=np.array(links),
        latency_s=np.full(len(links), NETWORK_LATENCY_S),
        bytes_per_s=np.full(len(links), NETWORK),
        switches=switches,
        island=island,
    )


def islands(name: str, sides: tuple[int, ...]) -> Topology:
    """Nodes × devices: a fast switch inside each node, one network card per node."""
    nodes, each = sides
    size = nodes * each
    check_size(name, size)
    inside = np.stack([np.arange(size), size + np.arange(size) // each], axis=1)
    across = np.stack([size + np.arange(nodes), np.full(nodes, size + nodes)], axis=1)
    links = np.concatenate([inside, across])
    fast = np.arange(len(links)) < size
    return Topology(
        name=name,
        devices=tuple(f"node {d // each} gpu {d % each}" for d in range(size)),
        links=links,
        latency_s=np.where(fast, FAST_LATENCY_S / 2, NETWORK_LATENCY_S / 2),
        bytes_per_s=np.where(fast, FAST, NETWORK),
        switches=nodes + 1,
        island=np.arange(size) // each,
    )


def random_blocks(name: str, size: int, block: Ints, rng: np.random.Generator) -> Topology:
    """Blocks of fast links (200 to 300 GB/s), joined by random slow ones (1 to 16 GB/s).

    Every pair of devices has a link of its own; bandwidths across are drawn log-uniformly.
    """
    links, a, b = _all_pairs(name, size)
    inside = block[a] == block[b]
    slow = np.exp(rng.uniform(np.log(1e9), np.log(16e9), len(links)))
    fast = rng.uniform(200e9, 300e9, len(links))
    return Topology(
        name=name,
        devices=tuple(f"block {k} gpu {d}" for d, k in enumerate(block.tolist())),
        links=links,
        latency_s=np.where(inside, FAST_LATENCY_S, NETWORK_LATENCY_S),
        bytes_per_s=np.where(inside, fast, slow),
        island=block,
    )


def random_blk_1(name: str, size: int, rng: np.random.Generator) -> Topology:
    """Random blocks of eight devices."""
    check_size(name, size)
    return random_blocks(name, size, np.arange(size) // 8, rng)


def random_blk_2(name: str, size: int, rng: np.random.Generator) -> Topology:
    """Random blocks of two to sixteen devices."""
    check_size(name, size)
    sizes: list[int] = []
    while sum(sizes) < size:
        sizes.append(int(rng.integers(2, 17)))
    return random_blocks(name, size, np.repeat(np.arange(len(sizes)), sizes)[:size], rng)


def uniform_dist(name: str, size: int, rng: np.random.Generator) -> Topology:
    """A link per pair of devices, its bandwidth uniform between 1 and 50 GB/s."""
    check_size(name, size)
    links, _, _ = _all_pairs(name, size)
    bandwidth = rng.uniform(1e9, 50e9, len(links))
    return Topology(
        name=name,
        devices=_numbered(size),
        links=links,
        latency_s=np.full(len(links), NETWORK_LATENCY_S),
        bytes_per_s=bandwidth,
        island=np.zeros(size, np.int64),
    )


def _all_pairs(name: str, size: int) -> tuple[Ints, Ints, Ints]:
    check_links(name, size * (size - 1) // 2)
    a, b = np.triu_indices(size, 1)
    return np.stack([a, b], axis=1), a, b


def _numbered(size: int) -> tuple[str, ...]:
    return tuple(f"gpu {d}" for d in range(size))


#: Name → number of sides, generator from name and sides.
REGULAR: dict[str, tuple[int, Callable[[str, tuple[int, ...]], Topology]]] = {
    "ring": (1, lambda name, sides: grid(name, sides, True)),
    "mesh2d": (2, lambda name, sides: grid(name, sides, False)),
    "torus2d": (2, lambda name, sides: grid(name, sides, True)),
    "mesh3d": (3, lambda name, sides: grid(name, sides, False)),
    "torus3d": (3, lambda name, sides: grid(name, sides, True)),
    "fattree": (1, fat_tree),
    "dragonfly": (3, dragonfly),
    "islands": (2, islands),
}

#: Name → generator from name, number of devices and random numbers.
RANDOM: dict[str, Callable[[str, int, np.random.Generator], Topology]] = {
    "random_blk_1": random_blk_1,
    "random_blk_2": random_blk_2,
    "uniform_dist": uniform_dist,
}
