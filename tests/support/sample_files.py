"""Small valid files of each format, to load, damage and mutate."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from stagecut import Cluster, DeviceKind, Link, Plan, Throughput, Workload
from stagecut.instances import Placement
from stagecut.instances.formats.files import dumps
from stagecut.runtime import evaluate


def placement() -> dict[str, Any]:
    """Return a placement JSON of 5 nodes with every optional field used and left out once."""
    return {
        "maxSizePerFPGA": 100.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": 4, "name": "a", "supportedOnFpga": 1, "cpuLatency": 10.0,
                "fpgaLatency": 1.0, "isBackwardNode": 0, "colorClass": 9, "size": 8.0,
                "layerId": 3,
            },
            {
                "id": 0, "supportedOnFpga": True, "cpuLatency": 20, "fpgaLatency": 2,
                "isBackwardNode": False,
            },
            {
                "id": 2, "supportedOnFpga": False, "cpuLatency": 5.0, "isBackwardNode": 0,
                "size": 16, "isArtificial": True,
            },
            {
                "id": 7, "supportedOnFpga": 0, "cpuLatency": 5.0, "fpgaLatency": "no",
                "isBackwardNode": True, "colorClass": 9,
            },
            {
                "id": 3, "supportedOnFpga": True, "cpuLatency": 5.0, "fpgaLatency": 0.5,
                "isBackwardNode": 1, "colorClass": None, "size": None,
            },
        ],
        "edges": [
            {"sourceId": 4, "destId": 0, "cost": 0.25, "size": 64.0},
            {"sourceId": 4, "destId": 2, "cost": 0.25, "size": 32.0},
            {"sourceId": 4, "destId": 0, "cost": 0.25, "size": 64.0},
            {"sourceId": 0, "destId": 2, "cost": 0.5, "size": 16},
            {"sourceId": 2, "destId": 3, "cost": 0, "size": 0},
            {"sourceId": 3, "destId": 7, "cost": 1.5, "size": 1.0},
        ],
    }  # fmt: skip


def workload() -> Workload:
    """Return a workload with everything that our JSON can hold."""
    return Workload(
        name="sämple",
        ids=("in", 7, "ä→b", 2**70),
        edges=np.array([(0, 1), (0, 2), (1, 3), (2, 3)]),
        times={"accelerator": np.array([0.1, 1 / 3, np.inf, 1e-300]), "cpu": np.arange(4.0)},
        memory_bytes=np.array([1.0, 2.0, 3.0, 2.0**60]),
        transfer=np.array([0.1, 0.2, 0.3, 0.0]),
        output_bytes=np.array([1e6, 2e6, 3e6, 0.0]),
        backward=np.array([False, False, False, True]),
        colours=np.array([2, -1, -1, 2]),
        colour_labels=("unused", 5, "shared"),
        names=("in", "seven", "x\ny", "big"),
        time_unit="ms",
        extra={"flops": np.array([1.0, np.nan, 2.5, 0.1])},
        cluster=cluster(),
        provenance={"source": "made up", "licence": "MIT"},
    )


def cluster() -> Cluster:
    """Return a cluster with links, limits, slowdowns and hosts."""
    return Cluster(
        (
            DeviceKind("fast", 2, 2.0**61, times="accelerator", link=Link(1e-5, 12.5e9)),
            DeviceKind("slow", 1, times="accelerator", slowdown=1.7, link=Link(0.0, np.inf)),
            DeviceKind("cpu", 2, host=True),
        )
    )


def plan() -> Plan:
    """Return a plan for `workload()` on `cluster()`."""
    made_for, where = workload(), cluster()
    problem = Throughput(split="contiguous", cpu_split="free", pipeline="gpipe", overlap=True)
    solution = Placement(np.array([0, 2, 3, 0]))
    objective = evaluate(made_for, where, problem, solution).objective
    return Plan(
        workload_name=made_for.name,
        workload_fingerprint=made_for.fingerprint,
        cluster=where,
        problem=problem,
        solution=solution,
        objective=objective,
        bound=objective * 0.97,
        method="by hand",
        time_unit=made_for.time_unit,
        certificate={
            "origin": "nobody",
            "prices": [0.1, float("inf"), float("-inf")],
            "k": {"a": 1},
        },
        provenance={"seed": 3, "stagecut": "0"},
    )


def document(value: Workload | Cluster | Plan) -> dict[str, Any]:
    """Return our JSON of `value`, parsed."""
    parsed: dict[str, Any] = json.loads(dumps(value, workload()))
    return parsed
