"""Outlines of plan files: assignment, objective and bound, read without the workload."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from ..common.errors import prefix_errors
from ..common.units import NodeId
from ..model.cluster import Cluster
from ..model.pipeline_job import is_stream
from ..model.plan import Plan, Planned, gap_between, plan_of
from ..model.problem import DeviceMapping, Problem, names_stages, objective_unit
from ..model.sharding import Sharding
from ..model.workload import Workload
from .plan_json import CODECS, PlanFile, read_problem, write_plan
from .solutions_json import check_devices
from .source import PLAN, Source, converted, read_file, read_source
from .stagecut_json import make_cluster

#: Options of problems that are shown even with their default values.
ALWAYS_SHOWN = ("microbatches", "schedule", "split")


@dataclass(frozen=True)
class Outline:
    """Plan without its workload: assignment, objective and bound, for comparisons."""

    workload: tuple[str, str]  # name and fingerprint
    # objective, bound, time_unit, method, problem: as in the plan; `problem` with its options
    objective: float
    bound: float
    time_unit: str
    method: str
    problem: str
    # name, kind and nodes of each device; of each stage, if the plan has stages; of each property,
    # with the operators whose first output has it, for shardings
    devices: tuple[tuple[str, str, frozenset[NodeId]], ...]

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return gap_between(self.objective, self.bound)


def outline(workload: Workload, plan: Plan | Planned) -> Outline:
    """Return the outline of a plan; InputError if it was made for another workload."""
    file = msgspec.convert(msgspec.to_builtins(write_plan(plan_of(plan), workload)), PlanFile)
    return _outline(Source("plan", "plan", "", None), file)


def read_outline(path: str | Path) -> Outline:
    """Read the outline of a plan from its file.

    InputError if the file is no plan, or its solution does not say where each node is.
    """
    source = read_source(path)
    return _outline(source, read_file(source, PlanFile, PLAN))


def _outline(source: Source, file: PlanFile) -> Outline:
    problem, solution = _solution(source, file)
    return Outline(
        workload=(file.workload.name, file.workload.fingerprint),
        objective=file.objective,
        bound=-math.inf if file.bound is None else file.bound,
        time_unit=objective_unit(problem, file.time_unit),
        method=file.method,
        problem=_problem(file.problem),
        devices=tuple(_parts(source, file, solution)),
    )


def _solution(source: Source, file: PlanFile) -> tuple[Problem, dict[str, list[dict[str, Any]]]]:
    """Return the problem and the solution in a plan file, the latter as JSON of its record."""
    with prefix_errors(source.file, "plan"):
        problem, codec = read_problem(source, file.problem)
        record = converted(file.solution, codec.record, "solution: ")
    return problem, msgspec.to_builtins(record)


def _parts(
    source: Source, file: PlanFile, solution: dict[str, list[dict[str, Any]]]
) -> list[tuple[str, str, frozenset[NodeId]]]:
    """Return name, kind and nodes of a solution's devices, stages or properties."""
    parts = next(iter(solution.values()))
    if "operators" in solution:
        return _by_property(parts)
    if parts and "device" not in parts[0]:
        return [_stage(number, part) for number, part in enumerate(parts)]
    cluster = make_cluster(source, file.cluster.kinds, file.cluster.links)
    nodes: list[set[NodeId]] = [set() for _ in cluster.devices]
    with prefix_errors(source.file, "plan"):
        check_devices((part["device"] for part in parts), cluster)
    for part in parts:
        nodes[part["device"]].update(part["nodes"])
    return [
        (device.name, cluster.kinds[device.kind].name, frozenset(own))
        for device, own in zip(cluster.devices, nodes, strict=True)
    ]


def _by_property(operators: list[dict[str, Any]]) -> list[tuple[str, str, frozenset[NodeId]]]:
    """Return the operators of a sharding grouped by the property of their first output."""
    nodes: dict[str, set[NodeId]] = {}
    for part in operators:
        how = "x".join(s.partition("->")[2].split(",")[0] for s in part["signatures"])
        nodes.setdefault(how, set()).add(part["node"])
    return [(how, how, frozenset(nodes[how])) for how in sorted(nodes)]


def _stage(number: int, part: dict[str, Any]) -> tuple[str, str, frozenset[NodeId]]:
    """Return a stage of a training plan, or of a mapped one."""
    if "degree" not in part:
        return f"stage {number} × {len(part['devices'])}", "stage", frozenset(part["nodes"])
    name = f"stage {number} × {part['replicas']}"
    if part["degree"] > 1:
        name += f" of degree {part['degree']}"
    return name, part["kind"], frozenset(entry["node"] for entry in part["nodes"])


def _problem(options: dict[str, Any]) -> str:
    """Return a problem as text, such as ``throughput, contiguous``, without default options."""
    words = []
    usual = {item.name: item.default for item in fields(CODECS[options["name"]].problem)}
    for key, value in options.items():
        if key not in ALWAYS_SHOWN and key in usual and value == usual[key]:
            continue
        if key == "placement_rules" and isinstance(value, dict):
            words += ["placement rules"] * any(value.values())
        elif isinstance(value, dict):
            words.append(str(value.get("name", key)))
        elif isinstance(value, str):
            words.append(f"CPUs {value}" if key == "cpu_split" else value)
        elif value:
            words.append(key if value is True else f"{key} {value}")
    return ", ".join(words)


def posed(source: Source) -> tuple[str, Problem, Cluster]:
    """Return the workload's fingerprint, the problem and the cluster that a plan was made for."""
    file = read_file(source, PlanFile, PLAN)
    with prefix_errors(source.file, "plan"):
        problem, _ = read_problem(source, file.problem)
        cluster = make_cluster(source, file.cluster.kinds, file.cluster.links)
        return file.workload.fingerprint, problem, cluster


def placed_ids(source: Source) -> tuple[Problem, tuple[NodeId, ...]]:
    """Return the problem of the plan in one of our files, and the ids of the nodes it places."""
    problem, parts = _placed(source)
    return problem, tuple(node for _, nodes in parts for node in nodes)


def placed_numbers(source: Source, problem: Problem) -> tuple[tuple[NodeId, int], ...]:
    """Return the nodes that a plan file places, with the numbers that rules of `problem` name.

    Nodes may be missing. InputError if the file numbers devices where the rules name stages.
    """
    made, parts = _placed(source)
    of_stages = names_stages(problem)
    if isinstance(made, DeviceMapping | Sharding) or (of_stages and not names_stages(made)):
        source.fail(f"it is a plan for {made.name}, whose parts are no stages of {problem.name}")
    if is_stream(made) and not of_stages:
        source.fail(f"it is a plan for training, whose stages are no devices of {problem.name}")
    return tuple(
        (node, i if of_stages else device)
        for i, (device, nodes) in enumerate(parts)
        for node in nodes
    )


def _placed(source: Source) -> tuple[Problem, list[tuple[int, list[NodeId]]]]:
    """Return a plan's problem; and the device (−1 without one) and the nodes of each part."""
    problem, solution = _solution(source, read_file(source, PlanFile, PLAN))
    found = []
    for part in next(iter(solution.values())):
        nodes = [n["node"] if isinstance(n, dict) else n for n in part.get("nodes", ())]
        found.append((int(part.get("device", -1)), nodes))
    return problem, found
