"""The matrix that ``nvidia-smi topo -m`` prints, as a topology."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np

from ..common.errors import InputError, quote
from ..formats.source import read_source
from ..model.network.topology import Topology, check_size

#: What a pair of GPUs gets, by the way between them: seconds, bytes per second. Measured values
#: differ by machine: measure, and edit the JSON.
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


def read_nvidia(path: Path) -> Topology:
    """Return the topology that a file with the output of ``nvidia-smi topo -m`` shows.

    A link per pair of GPUs; network cards are left out. GPUs that reach each other over NVLink
    form an island.

    Raises
    ------
    InputError
        If the file has no matrix, or a cell is of an unknown kind.
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
