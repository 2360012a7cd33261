"""Versions of the file formats: the newest of each, and the defaults of older files.

A field that a version has is missing nowhere in a file of that version. What a format leaves to
whoever writes a workload, cluster or topology by hand has its default in the format's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from ..model.pipeline_job import PipelineJob

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


def upgraded(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the outermost object of one of our files as the newest version would say it."""
    form = data["format"]
    if form == PLAN and version < 2:
        data = {"certificate": {}, "provenance": {}, **data}
        _fill(data, "cluster", {"links": []})
        problem = data.get("problem")
        if isinstance(problem, dict) and problem.get("name") == "throughput":
            _fill(data, "problem", {"relayed": False})
            _fill(data, "solution", {"order": []})
    if form == PLAN and version < 3:
        problem = data.get("problem")
        if isinstance(problem, dict) and problem.get("name") != "mapping":
            kept = {key: value for key, value in problem.items() if key != "max_stages"}
            rules = {"max_stages": problem.get("max_stages")}
            data = {**data, "problem": {**kept, "placement_rules": rules}}
        if isinstance(problem, dict) and problem.get("name") == "iteration":
            _fill(data, "problem", {"actions": []})
    if form == PLAN and version < 4 and isinstance(data.get("problem"), dict):
        data = {**data, "problem": _job(data["problem"])}
    if form == PLAN and version < 5:
        _nest_links(data.get("problem"))
    return {**data, "version": NEWEST[form]}


def _job(problem: dict[str, Any]) -> dict[str, Any]:
    """Return a problem of a version before 4, in which streams and iterations were two problems."""
    own = {key: value for key, value in problem.items() if key not in ("name", "objective")}
    defaults = {item.name: item.default for item in fields(PipelineJob)}
    if problem.get("name") == "iteration":
        return {"name": "pipeline", **defaults, **own}
    if problem.get("name") == "training" and problem.get("objective") == "time-per-sample":
        kept = {"schedule": "stream", "in_flight": problem.get("schedule")}
        return {"name": "pipeline", **defaults, **own, **kept}
    return problem


def _nest_links(problem: Any) -> None:
    """Give the collectives of a mesh of a version before 5 their links as objects."""
    mesh = problem.get("mesh") if isinstance(problem, dict) else None
    primitives = mesh.get("primitives") if isinstance(mesh, dict) else None
    for one in primitives if isinstance(primitives, list) else ():
        if isinstance(one, dict) and "link" not in one:
            one["link"] = {k: one.pop(k) for k in ("latency_s", "bytes_per_s") if k in one}


def _fill(data: dict[str, Any], key: str, defaults: dict[str, Any]) -> None:
    """Give the object at `key`, if it is one, the fields that it lacks."""
    if isinstance(data.get(key), dict):
        data[key] = {**defaults, **data[key]}
