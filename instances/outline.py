"""What of a plan can be read without its workload: enough to compare it with another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .errors import shown
from .plan import Plan, gap_between
from .plan_json import PlanFile
from .source import Source, read_source
from .stagecut_json import PLAN, make_cluster, read_file
from .units import NodeId
from .workload import Workload


@dataclass(frozen=True)
class Outline:
    """What of a plan can be compared without its workload.

    Parameters
    ----------
    workload
        Name and fingerprint.
    objective, bound, method, problem
        As in the plan; `problem` with its options.
    devices
        Name, kind and nodes of each device.
    """

    workload: tuple[str, str]
    objective: float
    bound: float
    method: str
    problem: str
    devices: tuple[tuple[str, str, frozenset[NodeId]], ...]

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return gap_between(self.objective, self.bound)


def outline(workload: Workload, plan: Plan) -> Outline:
    """Return the outline of a plan.

    Raises
    ------
    InputError
        If the plan was made for another workload.
    """
    plan.check_made_for(workload)
    nodes: list[set[NodeId]] = [set() for _ in range(plan.cluster.size)]
    for v, d in enumerate(plan.placement.tolist()):
        nodes[d].add(workload.ids[v])
    devices = tuple(
        (device.name, plan.cluster.kinds[device.kind].name, frozenset(own))
        for device, own in zip(plan.cluster.devices, nodes, strict=True)
    )
    made_for = (plan.workload_name, plan.workload_fingerprint)
    options = {key: getattr(plan.problem, key) for key in plan.problem.__dataclass_fields__}
    problem = _problem(plan.problem.name, options)
    return Outline(made_for, plan.objective, plan.bound, plan.method, problem, devices)


def read_outline(path: str | Path) -> Outline:
    """Read the outline of a plan from its file.

    Raises
    ------
    InputError
        If the file is no plan, or its solution does not say where each node is.
    """
    source = read_source(path)
    file = read_file(source, PlanFile, PLAN)
    cluster = make_cluster(source, file.cluster.kinds, file.cluster.links)
    nodes: list[set[NodeId]] = [set() for _ in range(cluster.size)]
    for d, own in _placed(source, file.solution, cluster):
        if not 0 <= d < cluster.size:
            source.fail(f"solution: device {d} is not one of the cluster's 0 to {cluster.size - 1}")
        nodes[d].update(own)
    return Outline(
        workload=(file.workload.name, file.workload.fingerprint),
        objective=file.objective,
        bound=-math.inf if file.bound is None else file.bound,
        method=file.method,
        problem=_problem(
            str(file.problem.get("name")), {k: v for k, v in file.problem.items() if k != "name"}
        ),
        devices=tuple(
            (device.name, cluster.kinds[device.kind].name, frozenset(own))
            for device, own in zip(cluster.devices, nodes, strict=True)
        ),
    )


def _placed(
    source: Source, solution: dict[str, Any], cluster: Cluster
) -> list[tuple[int, list[NodeId]]]:
    """Return device and nodes of each part of a solution: device, call, or stage.

    A stage is where its first device is.
    """
    parts = next((solution[key] for key in ("devices", "calls", "stages") if key in solution), None)
    if not isinstance(parts, list):
        source.fail("solution: it has no list of devices, calls or stages; plan again")
    free = {
        kind.name: sum(k.count for k in cluster.kinds[:i]) for i, kind in enumerate(cluster.kinds)
    }
    placed = []
    for part in parts:
        try:
            if "kind" in part:  # of a training plan
                device = free[part["kind"]]
                free[part["kind"]] += part["replicas"] * part["degree"]
                own = [entry["node"] for entry in part["nodes"]]
            else:
                device = part["device"] if "device" in part else part["devices"][0]
                own = list(part["nodes"])
            placed.append((int(device), own))
        except (TypeError, KeyError, IndexError, ValueError):
            source.fail(f"solution: {shown(part)} does not say its device and nodes")
    return placed


def _problem(name: str, options: dict[str, Any]) -> str:
    """Return a problem in words, such as ``throughput, contiguous, pipedream``."""
    words = [key if value is True else str(value) for key, value in options.items() if value]
    return ", ".join([name, *words])
