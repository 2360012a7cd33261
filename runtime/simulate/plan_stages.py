"""Any plan as stages, with the schedule and the network that it is usually simulated with."""

from __future__ import annotations

from ...instances import (
    CallPlacement,
    DeviceMapping,
    InputError,
    Iteration,
    Latency,
    PipelinePlacement,
    Plan,
    ReplicaPlacement,
    StagePlacement,
    Throughput,
    Training,
    Workload,
)
from .calls import stages_of_calls
from .iteration_stages import stages_of_iteration
from .mapped_stages import stages_of_mapping, topology_links
from .network import HostMemory, Network
from .pieces import cut
from .relay import cut_relayed
from .stages import StageGraph
from .training_stages import stages_of_training


def stages_of(
    workload: Workload, plan: Plan, *, weight_share: float = 0.5, relayed: bool | None = None
) -> StageGraph:
    """Return the stages of a plan: its convex pieces, its calls, or those that it lists.

    Parameters
    ----------
    weight_share
        The part of a backward pass that computes gradients of weights.
    relayed
        Whether pieces of a placement talk to their neighbours only; default: as the plan's
        problem says.

    Raises
    ------
    InputError
        If the plan was made for another workload, or cannot be executed.
    """
    if relayed and not isinstance(plan.problem, Throughput):
        raise InputError(
            f"relayed: the plan is for {plan.problem.name}; only placements are relayed"
        )
    plan.check_made_for(workload)
    match plan.problem, plan.solution:
        case Latency(), CallPlacement(device, call):
            return stages_of_calls(workload, plan.cluster, device, call)
        case Training() as problem, StagePlacement() as solution:
            return stages_of_training(workload, plan, problem, solution, weight_share=weight_share)
        case DeviceMapping() as problem, ReplicaPlacement() as solution:
            return stages_of_mapping(workload, plan, problem, solution, weight_share=weight_share)
        case Iteration() as problem, PipelinePlacement() as solution:
            return stages_of_iteration(workload, plan, problem, solution)
        case Throughput() as problem, _ if problem.relayed if relayed is None else relayed:
            return cut_relayed(workload, plan, weight_share=weight_share)
        case _:
            return cut(workload, plan, weight_share=weight_share)


def usual_schedule(plan: Plan) -> str:
    """Return the schedule that a plan is simulated with unless another is asked for."""
    if isinstance(plan.problem, Training | Iteration):
        return plan.problem.schedule
    return "single" if isinstance(plan.problem, Latency) else "1f1b"


def usual_network(plan: Plan) -> Network:
    """Return the network that a plan is simulated with unless another is asked for.

    For mapped plans the links of their topology; else what the plan's problem says that transfers
    cost, beside compute if it says so.
    """
    if isinstance(plan.problem, DeviceMapping) and isinstance(plan.solution, ReplicaPlacement):
        return topology_links(plan.problem, plan.solution)
    return HostMemory(isinstance(plan.problem, Throughput | Iteration) and plan.problem.overlap)
