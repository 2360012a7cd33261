"""Rules that hold for every problem: support, colours, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...instances import Cluster, Costs, Workload
from ...instances.common.quantities import show_bytes
from .report import DeviceReport

#: Slack that rounding in sums of sizes may need.
RELATIVE_SLACK = 1e-9


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
        if d.memory_bytes > d.capacity_bytes * (1 + RELATIVE_SLACK)
    ]
