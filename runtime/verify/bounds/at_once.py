"""What follows from a workload alone, by problem: bounds that need no evidence."""

from __future__ import annotations

from dataclasses import replace

from ....instances import (
    DeviceMapping,
    Iteration,
    Latency,
    Plan,
    Split,
    Throughput,
    Training,
    Workload,
    price,
    without_links,
)
from ....instances.common.units import TIME_UNITS
from ....instances.model.kept_bytes import kept_bytes
from ....instances.model.stage_costs import accelerator_seconds
from .chains.divided import divided_work_bound
from .latency import latency_bound
from .max_load import max_load_bound
from .training import training_bound


def bound_at_once(workload: Workload, plan: Plan) -> float:
    """Return the best bound on the objective of a plan's problem that needs no evidence; ≥ 0."""
    problem, cluster = plan.problem, plan.cluster
    match problem:
        case Throughput():
            return max_load_bound(workload, price(workload, cluster), problem)
        case Iteration():
            # a device that does the work of a microbatch in time L is busy for M L
            one = _of_microbatch(workload, problem)
            split = Split.NONCONTIGUOUS if problem.chunks_per_device > 1 else problem.split
            max_load = Throughput(split=split, overlap=problem.overlap)
            costs = price(one, cluster)
            busy = problem.microbatches * max_load_bound(one, costs, max_load, transfers=False)
            if problem.split != Split.CONTIGUOUS or busy >= plan.bound:
                return busy
            return max(busy, divided_work_bound(workload, costs, problem, plan.bound))
        case Latency():
            costs = without_links(price(workload, cluster), returning=True)
            return latency_bound(workload, costs, problem.calls, plan.bound)
        case Training():
            return training_bound(workload, cluster, problem)
        case DeviceMapping() if problem.objective == "stage-time":
            return _stage_time(workload, problem)
    return 0.0


def _of_microbatch(workload: Workload, problem: Iteration) -> Workload:
    """Return the workload with the bytes that a device holds at once, whatever its order of work.

    The stage of a device, and with a backward pass the stages of a chain that share one, hold the
    activations of a microbatch all together; other pieces need not.
    """
    shared = problem.chunks_per_device > 1
    if problem.split == Split.CONTIGUOUS and (workload.backward.any() or not shared):
        return workload
    _, resident, _ = kept_bytes(workload)
    return replace(workload, memory_bytes=resident)


def _stage_time(workload: Workload, problem: DeviceMapping) -> float:
    """Return the heaviest block, or the work over all stages, of all microbatches, in the unit."""
    seconds = accelerator_seconds(workload)
    together = [float(seconds[list(nodes)].sum()) for nodes in workload.colour_classes]
    heaviest = max([float(seconds.max(initial=0.0)), *together])
    least = max(heaviest, float(seconds.sum()) / problem.stages)
    return least * problem.microbatches / TIME_UNITS[workload.time_unit]
