"""Speed-up of plans over one device, and the reason where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..formulations.job.line import chain_edges
from ..formulations.sharding.costs import is_divided, sharding_costs
from ..formulations.task import Task, pose
from ..formulations.throughput.hypergraph import colour_units, merge_cycles, pipeline_units
from ..instances import (
    PipelineJob,
    Problem,
    Sharding,
    ShardingObjective,
    Throughput,
    Workload,
    is_iteration,
    program_of,
)
from ..instances.common.arrays import Floats, Ints
from ..instances.common.units import show_percent, show_time
from ..instances.model.workload import kept_bytes
from ..solvers import Result

#: Distance of a speed-up from 1 below which a plan counts as neither faster nor slower.
NOTHING = 0.005


@dataclass(frozen=True)
class Gain:
    """Speed-up of a plan over one device."""

    # time of the same work on one device of the fastest kind that can do all of it, whether or not
    # it has the memory; `inf` if there is none
    one_device: float
    # `one_device` over the plan's objective; `inf` if one device cannot do the work
    speed_up: float
    reason: str = ""  # why there is no gain; empty if there is

    def text(self, unit: str) -> str:
        """Return the speed-up in words; of times in `unit`."""
        text = f"{self.speed_up:.2f} × one device ({show_time(self.one_device, unit)})"
        if not self.reason:
            return text
        slower = self.speed_up < 1 - NOTHING
        return f"{text}: {'slower than one device' if slower else 'nothing gained'}, {self.reason}"


def gain(workload: Workload, result: Result) -> Gain | None:
    """Return the speed-up of a result's plan over one device.

    None without a plan, and for other problems than throughput, iteration and the time of a
    sharding.
    """
    plan = result.plan
    if plan is None:
        return None
    problem = plan.problem
    if isinstance(problem, Sharding):
        if problem.objective != ShardingObjective.TIME:
            return None
        alone = math.fsum(operator.time for operator in program_of(workload).operators)
        return _over(alone, result, lambda: _reason_of_sharding(workload, result, alone))
    if not (isinstance(plan.problem, Throughput) or is_iteration(plan.problem)):
        return None
    task = pose(workload, plan.cluster, plan.problem)
    times = np.where(task.costs.count > 0, task.costs.compute.sum(axis=1), np.inf)
    fastest = int(times.argmin())
    microbatches = plan.problem.batch if is_iteration(plan.problem) else 1
    alone = microbatches * float(times[fastest])
    return _over(alone, result, lambda: _reason(task, result, alone, fastest))


def _over(alone: float, result: Result, reason: Callable[[], str]) -> Gain:
    """Return the speed-up of a result's plan over one device, which takes the time `alone`."""
    objective = result.objective
    assert objective is not None
    if not 0 < objective < math.inf:
        return Gain(alone, math.inf if alone else 1.0)
    speed_up = alone / objective
    return Gain(alone, speed_up, reason() if speed_up < 1 + NOTHING else "")


def _reason_of_sharding(workload: Workload, result: Result, alone: float) -> str:
    """Return the reason why a sharding is no faster than one device."""
    assert result.plan is not None
    assert isinstance(result.plan.problem, Sharding)
    problem = result.plan.problem
    if problem.mesh.size == 1:
        return "there is one device"
    costs = sharding_costs(pose(workload, result.plan.cluster, problem))
    if not any(is_divided(costs, axis) for axis, size in enumerate(problem.mesh.shape) if size > 1):
        sizes = " x ".join(map(str, problem.mesh.shape))
        return f"no operator can be divided among {sizes} devices: all do the same"
    if not _proved(result, alone):
        return _open(result, alone)
    if problem.fixed or problem.memory_bytes is not None:
        what = "keeps what is fixed" if problem.fixed else "fits into the memory"
        return f"no sharding that {what} is faster"
    return "what the devices exchange costs at least what dividing the work saves"


def _proved(result: Result, alone: float) -> bool:
    """Whether this plan is proved optimal, or that no plan is faster than one device."""
    return result.status == "optimal" or alone <= result.bound * (1 + NOTHING)


def _open(result: Result, alone: float) -> str:
    return f"none was found; the bound leaves room for {alone / result.bound:.2f} × one device"


def _reason(
    task: Task[Throughput | PipelineJob], result: Result, alone: float, fastest: int
) -> str:
    """Return the reason for no speed-up; `alone` is the time on one device of kind `fastest`."""
    if task.cluster.size == 1:
        return "there is one device"
    if is_iteration(task.problem) and task.problem.batch == 1:
        return "one microbatch is on one device at a time; give more --microbatches"
    if part := _indivisible(task):
        return part
    _, resident, activation = kept_bytes(task.workload)
    needed = (
        float((resident + activation).sum())
        if is_iteration(task.problem)
        else float(task.workload.memory_bytes.sum())
    )
    capacity, count = float(task.costs.capacity_bytes[fastest]), task.costs.count[fastest]
    if needed > capacity * count:
        together = "the devices of the fastest kind together do not have"
        one = "the device of the fastest kind does not have"
        return f"{together if count > 1 else one} the memory for all of it"
    if needed > capacity:
        return (
            "no device of the fastest kind has the memory for all of it, and sharing the work "
            "costs what it saves"
        )
    if _proved(result, alone):
        if task.problem.placement_rules:
            return "no plan that keeps the placement rules is faster"
        return (
            "whatever is moved to another device costs more in transfers and waiting than it saves"
        )
    return _open(result, alone)


def _indivisible(task: Task[Problem]) -> str:
    """Return the indivisible part with all of the work as text; empty if there is none."""
    workload = task.workload
    time = task.costs.compute[task.costs.count > 0].min(axis=0)
    nodes, part, colours = largest_part(task, time, np.arange(workload.n))
    if part * (1 + NOTHING) < 1:
        return ""
    share = f"{show_percent(part)} of the work"
    if len(nodes) == 1:
        return f"node {workload.ids[nodes[0]]} alone is {share}"
    if len(colours) == 1 and (workload.colours[nodes] >= 0).all():
        return f"the {len(nodes)} nodes of colour {colours[0]!r} share a device: {share}"
    closed = f"colour {colours[0]!r}" if len(colours) == 1 else "colours"
    return (
        f"{len(nodes)} nodes share a device, because of {closed} and the contiguous split: {share}"
    )


def largest_part(
    task: Task[Problem], time: Floats, among: Ints
) -> tuple[list[int], float, list[object]]:
    """Return the longest indivisible part of some nodes: nodes, share of the time, colours."""
    units = units_of(task)[among]
    work = np.bincount(units, time[among])
    largest = int(work.argmax())
    nodes = among[units == largest].tolist()
    colours = sorted({c for c in task.workload.colours[nodes].tolist() if c >= 0})
    share = float(work[largest] / work.sum()) if work.sum() else 0.0
    return nodes, share, [task.workload.colour_labels[c] for c in colours]


def units_of(task: Task[Problem]) -> Ints:
    """Return the group of each node that must share a device, shape (n,)."""
    problem = task.problem
    if (isinstance(problem, Throughput) or is_iteration(problem)) and problem.split == "contiguous":
        if is_iteration(problem):
            return merge_cycles(colour_units(task), chain_edges(task.workload))
        if isinstance(problem, Throughput) and problem.cpu_split == "contiguous":
            return pipeline_units(task)
    return colour_units(task)
