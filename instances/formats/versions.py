"""Versions of the file formats: the newest and the oldest of each that are read.

A field that a version has is missing nowhere in a file of that version. What a format leaves to
whoever writes a workload, cluster or topology by hand has its default in the format's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

WORKLOAD = "stagecut-workload"
CLUSTER = "stagecut-cluster"
PLAN = "stagecut-plan"
JOB_PLAN = "stagecut-job-plan"  # of a training job
TOPOLOGY = "stagecut-topology"
PROGRAM = "stagecut-program"
RECORDING = "stagecut-recording"
SHARDED_RECORDING = "stagecut-sharded-recording"

#: The version that is written, by format.
NEWEST: Mapping[str, int] = MappingProxyType(
    {WORKLOAD: 1, CLUSTER: 1, PLAN: 5, TOPOLOGY: 1, RECORDING: 1, PROGRAM: 1, SHARDED_RECORDING: 1}
)


#: The oldest version that is read, where that is not the first.
OLDEST: Mapping[str, int] = MappingProxyType({PLAN: 4})


def upgraded(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the outermost object of one of our files as the newest version would say it."""
    form = data["format"]
    if form == PLAN and version < 5:
        _nest_links(data.get("problem"))
    return {**data, "version": NEWEST[form]}


def _nest_links(problem: Any) -> None:
    """Give the collectives of a mesh of a version before 5 their links as objects."""
    mesh = problem.get("mesh") if isinstance(problem, dict) else None
    primitives = mesh.get("primitives") if isinstance(mesh, dict) else None
    for one in primitives if isinstance(primitives, list) else ():
        if isinstance(one, dict) and "link" not in one:
            one["link"] = {k: one.pop(k) for k in ("latency_s", "bytes_per_s") if k in one}
