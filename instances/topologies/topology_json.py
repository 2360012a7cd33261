"""JSON format of topologies: devices, switches and links, editable by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from ..common.choices import Routing
from ..common.errors import prefix_errors
from ..formats.source import Record, Source, Whole, read_source
from ..formats.stagecut_json import finite, read_file
from ..formats.versions import NEWEST, TOPOLOGY
from ..formats.writing import layout, write_whole
from ..model.network.topology import Topology


class TopologyLinkRecord(Record):
    """A link between two nodes, numbered devices first; bandwidth null for no limit."""

    ends: tuple[Whole, Whole]
    latency_s: float
    bytes_per_s: float | None


class TopologyFile(Record):
    """A topology file; see `Topology`. Memory null for no limit."""

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


def load_topology(path: str | Path) -> Topology:
    """Return the topology in a file; InputError names file, field and remedy."""
    return read_topology(read_source(path))


def read_topology(source: Source) -> Topology:
    """Return the topology in one of our files."""
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
    }


def save_topology(topology: Topology, path: str | Path) -> None:
    """Write a topology as our own JSON, whole or not at all."""
    write_whole(path, layout(write_topology(topology)))
