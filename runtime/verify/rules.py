"""Rules that hold for every problem: support, colours, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...instances import Cluster, Costs, Workload
from ...instances.common.arrays import Floats
from ...instances.common.quantities import show_bytes
from .report import DeviceReport

#: Share of a memory that rounding in sums of sizes may need, and the most bytes: whole bytes, whose
#: sums are exact below 2^53, count exactly.
RELATIVE_SLACK, MOST_SLACK, EXACT = 1e-9, 0.5, 2.0**53


def allowed(memory_bytes: float) -> float:
    """Return how many bytes a device may hold whose memory has so many.

    Examples
    --------
    >>> allowed(3.0), allowed(12e9), allowed(math.inf)
    (3.000000003, 12000000000.5, inf)
    """
    slack = RELATIVE_SLACK * memory_bytes
    return memory_bytes + (min(slack, MOST_SLACK) if memory_bytes < EXACT else slack)


def allowed_each(memory_bytes: Floats) -> Floats:
    """Return the same for each of several memories."""
    return np.array([allowed(one) for one in memory_bytes.tolist()])


def unsupported(workload: Workload, cluster: Cluster, costs: Costs, where: list[int]) -> list[str]:
    """Nodes on devices that do not support them; `where` is the device of each node."""
    return [
        f"node {workload.ids[v]} is on {cluster.devices[d].name}, which does not support it"
        for v, d in enumerate(where)
        if math.isinf(costs.compute[costs.kind_of[d], v])
    ]


def torn_colours(workload: Workload, places: Sequence[str]) -> list[str]:
    """Colours whose nodes are in several places; `places` names the place of each node."""
    torn = []
    for colour, members in enumerate(workload.colour_classes):
        used = dict.fromkeys(places[v] for v in members)
        if len(used) > 1:
            names = ", ".join(used)
            torn.append(f"colour {workload.colour_labels[colour]} is spread over {names}")
    return torn


def over_memory(devices: tuple[DeviceReport, ...]) -> list[str]:
    """Devices that hold more bytes than they have."""
    return [
        f"{d.name} holds {show_bytes(d.memory_bytes)}, "
        f"{show_bytes(d.memory_bytes - d.capacity_bytes)} more than its "
        f"{show_bytes(d.capacity_bytes)}"
        for d in devices
        if d.memory_bytes > allowed(d.capacity_bytes)
    ]
