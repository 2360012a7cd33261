"""Reader of placement JSON: the published profiled graphs for device placement."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cluster import ACCELERATOR, CPU, accelerators_and_cpus
from .workload import Workload


def read_placement(data: dict[str, Any], name: str) -> Workload:
    """Return the workload that `data`, a parsed placement JSON, describes."""
    nodes, edges = data["nodes"], data["edges"]
    index = {node["id"]: v for v, node in enumerate(nodes)}
    transfer = np.zeros(len(nodes))
    output = np.zeros(len(nodes))
    for edge in edges:
        transfer[index[edge["sourceId"]]] = edge["cost"]
        output[index[edge["sourceId"]]] = edge.get("size", 0.0)
    labels: dict[int, int] = {}
    colours = [
        labels.setdefault(node["colorClass"], len(labels)) if "colorClass" in node else -1
        for node in nodes
    ]
    return Workload(
        name=name,
        ids=tuple(node["id"] for node in nodes),
        edges=np.array([(index[e["sourceId"]], index[e["destId"]]) for e in edges]),
        times={
            ACCELERATOR: np.array(
                [n["fpgaLatency"] if n["supportedOnFpga"] else np.inf for n in nodes]
            ),
            CPU: np.array([n["cpuLatency"] for n in nodes]),
        },
        memory_bytes=np.array([n.get("size", 0.0) for n in nodes]),
        transfer=transfer,
        output_bytes=output,
        backward=np.array([bool(n["isBackwardNode"]) for n in nodes]),
        colours=np.array(colours),
        colour_labels=tuple(labels),
        names=tuple(n.get("name", str(n["id"])) for n in nodes),
        cluster=accelerators_and_cpus(data["maxFPGAs"], data["maxCPUs"], data["maxSizePerFPGA"]),
    )
