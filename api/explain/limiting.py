"""Limiting device of a plan, with the reasons as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...formulations.task import Task, pose
from ...instances import (
    Latency,
    PipelineJob,
    Plan,
    Problem,
    Throughput,
    Workload,
    is_iteration,
    is_stream,
)
from ...instances.common.quantities import show_bytes, show_percent, show_time
from ...runtime import Report
from ...runtime.simulate.simulator import simulate
from ...runtime.verify.report import Load
from ..gain import units_of

#: From this share on a memory is called full, and a part called large.
FULL, LARGE = 0.95, 0.5
#: Microbatches per stage up to which they are few, and how much longer a first stage is long.
FEW, LONGER = 4, 1.25

#: Up to this gap a plan is optimal.
OPTIMAL = 1e-6


def limiting(workload: Workload, plan: Plan, loads: tuple[Load, ...]) -> str:
    """Return the name of the device, or stage, that limits: the busiest, or the longest waited for.

    For a request that is the device with most time on its critical path.
    """
    if isinstance(plan.problem, Latency):
        path = _on_path(workload, plan)
        return max(path, key=lambda name: path[name])
    return max(loads, key=lambda load: load.busy).name


def reasons(
    workload: Workload, plan: Plan, report: Report, loads: tuple[Load, ...], name: str
) -> Iterator[str]:
    """Yield sentences on the limiting part, evenness of work, memory, and the bound."""
    yield from (f"It breaks a rule: {line}." for line in report.violations)
    if not math.isfinite(report.objective):
        return
    unit, problem = workload.time_unit, plan.problem
    load = next((load for load in loads if load.name == name), None)
    if load is not None:
        yield _busy(load, report, problem, unit)
        yield from _parts(workload, plan, load)
    if isinstance(problem, Latency):
        yield _path(workload, plan, report)
    elif is_iteration(problem) and load is not None:
        yield from _waiting(load, report, problem, unit)
    if isinstance(problem, Throughput) and problem.pipeline == "gpipe":
        forward, backward = (
            max(report.devices, key=lambda d: getattr(d, side)) for side in ("forward", "backward")
        )
        yield (
            f"Under gpipe the passes count apart: {forward.name} has the longest forward pass, "
            f"{show_time(forward.forward, unit)}, {backward.name} the longest backward pass, "
            f"{show_time(backward.backward, unit)}."
        )
    if not (isinstance(problem, Latency) or is_stream(problem)):
        yield from _evenness(plan, loads, unit)
    if is_iteration(problem):
        yield from _long_first(problem, loads)
    yield from _memory(loads, name)
    if math.isfinite(plan.bound):
        gap = (report.objective - plan.bound) / report.objective if report.objective else 0.0
        origin = plan.certificate.get("origin")
        by = f"the bound is {show_time(plan.bound, unit)}{f' ({origin})' if origin else ''}"
        if gap <= OPTIMAL:
            yield f"No plan is better: {by}."
        else:
            yield f"No plan is better by more than {show_percent(gap, 2)}: {by}."


def _busy(load: Load, report: Report, problem: Problem, unit: str) -> str:
    parts = [
        f"{show_time(value, unit)} {what}"
        for value, what in (
            (load.compute, "compute"),
            (load.transfer, "transfers"),
            (load.synchronise, "synchronisation"),
        )
        if value
    ]
    share = load.busy / report.objective if report.objective else 0.0
    span = "the request" if isinstance(problem, Latency) else show_time(report.objective, unit)
    joined = " beside " if getattr(problem, "overlap", False) else " + "
    return (
        f"{load.name} limits: in {span} it is busy for {show_time(load.busy, unit)} "
        f"({show_percent(share, 0)}), {joined.join(parts) or 'nothing'}."
    )


def _parts(workload: Workload, plan: Plan, load: Load) -> Iterator[str]:
    """Yield a sentence on the indivisible part of the device's work, if it is most of it."""
    if is_stream(plan.problem):
        own = [workload.index[node] for node in load.nodes]
        if len(own) == 1:
            yield f"It has one layer alone, {workload.ids[own[0]]}, which cannot be cut."
        return
    task: Task[Problem] = pose(workload, plan.cluster, plan.problem)
    own = [workload.index[node] for node in load.nodes]
    if not own:
        return
    units = units_of(task)[own]
    kind = next(d.kind for d in plan.cluster.devices if d.name in (load.name, *_pool(plan, load)))
    work = np.bincount(units, task.costs.compute[kind, own])
    largest = int(work.argmax())
    share = work[largest] / work.sum() if work.sum() else 0.0
    if share < LARGE:
        return
    nodes = [v for v, u in zip(own, units.tolist(), strict=True) if u == largest]
    colours = sorted({str(workload.colour_labels[c]) for c in workload.colours[nodes] if c >= 0})
    what = f"node {workload.ids[nodes[0]]}"
    if len(nodes) > 1:
        what = f"{len(nodes)} nodes that must be together"
        if len(colours) == 1:
            what += f" (colour {colours[0]})"
    yield f"{show_percent(share, 0)} of its compute is one part that cannot be cut: {what}."


def _pool(plan: Plan, load: Load) -> list[str]:
    """Return the names of the devices of a pool of CPUs, which a request counts as one."""
    pools = [kind.name for kind in plan.cluster.kinds if kind.host]
    return [
        d.name
        for d in plan.cluster.devices
        if load.name in pools and plan.cluster.kinds[d.kind].name == load.name
    ]


def _waiting(load: Load, report: Report, problem: PipelineJob, unit: str) -> Iterator[str]:
    waits = report.objective - load.busy
    if waits > 1e-9 * report.objective:
        yield (
            f"The other {show_time(waits, unit)} ({show_percent(waits / report.objective, 0)}) it "
            f"waits while the pipeline of {problem.batch} microbatches under "
            f"{problem.schedule} fills and drains; more microbatches, or another schedule "
            "(--schedule all), make that share smaller."
        )


def _on_path(workload: Workload, plan: Plan) -> dict[str, float]:
    """Return the time of each device on the critical path of a request."""
    spent: dict[str, float] = {}
    for step in simulate(workload, plan).critical_path():
        spent[step.where] = spent.get(step.where, 0.0) + step.end - step.start
    return spent


def _path(workload: Workload, plan: Plan, report: Report) -> str:
    unit = workload.time_unit
    spent = _on_path(workload, plan)
    listed = ", ".join(f"{name} {show_time(spent[name], unit)}" for name in spent if spent[name])
    return (
        f"What the request of {show_time(report.objective, unit)} waits for, one after the other: "
        f"{listed}. What other devices do beside that costs nothing."
    )


def _evenness(plan: Plan, loads: tuple[Load, ...], unit: str) -> Iterator[str]:
    """Yield a sentence on the evenness of compute, where all devices in use are alike."""
    kinds = {plan.cluster.devices[d].kind for d in plan.placement.tolist()}
    named = {device.name: device.kind for device in plan.cluster.devices}
    loads = tuple(load for load in loads if named[load.name] in kinds)
    if len(kinds) > 1 or len(loads) < 2:
        return
    total = sum(load.compute for load in loads)
    even, most = total / len(loads), max(load.compute for load in loads)
    yield (
        f"The {len(loads)} devices together compute for {show_time(total, unit)}: spread evenly, "
        f"{show_time(even, unit)} each; the most that one has is "
        f"{show_percent(most / even - 1 if even else 0.0)} above that."
    )
    idle = [load.name for load in loads if not load.nodes]
    if idle:
        yield f"Without any work: {', '.join(idle)}."


def _long_first(problem: PipelineJob, loads: tuple[Load, ...]) -> Iterator[str]:
    """Yield a sentence on a long first stage of a chain with few microbatches."""
    used = [load for load in loads if load.nodes]
    few = problem.batch <= FEW * len(used)
    if len(used) < 2 or problem.split != "contiguous" or problem.chunks_per_device > 1 or not few:
        return
    first, others = used[0].busy, max(load.busy for load in used[1:])
    if first > LONGER * others:
        yield (
            f"{used[0].name}, with the first stage, is busy {show_percent(first / others - 1, 0)} "
            f"longer than any other: with few microbatches ({problem.batch} in "
            f"{len(used)} stages) the others wait for fill and drain, in which it works."
        )


def _memory(loads: tuple[Load, ...], name: str) -> Iterator[str]:
    limited = [load for load in loads if math.isfinite(load.capacity_bytes)]
    if not limited:
        yield "Memory does not limit: no device has a limit."
        return
    full = [load for load in limited if load.memory_bytes >= FULL * load.capacity_bytes]
    if not full:
        most = max(limited, key=lambda load: load.memory_bytes / max(load.capacity_bytes, 1e-300))
        yield (
            f"Memory does not limit: the fullest, {most.name}, has {show_bytes(most.memory_bytes)} "
            f"of {show_bytes(most.capacity_bytes)}."
        )
        return
    others = [load.name for load in full if load.name != name]
    listed = ", ".join(
        f"{load.name} with {show_bytes(load.memory_bytes)} of {show_bytes(load.capacity_bytes)}"
        for load in full
    )
    why = f"; no more of the work of {name} can move there" if others else ""
    yield f"Memory is full: {listed}{why}."
