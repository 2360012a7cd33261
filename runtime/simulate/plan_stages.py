"""Any plan as stages, with the schedule and the network that it is usually simulated with."""

from __future__ import annotations

from ...instances import (
    CallPlacement,
    DeviceMapping,
    InputError,
    Iteration,
    Latency,
    PipelinePlacement,
    Placement,
    Plan,
    ReplicaPlacement,
    StagePlacement,
    TensorSharding,
    Throughput,
    Training,
    Workload,
)
from ..schedules.actions import Schedule
from .calls import stages_of_calls
from .iteration_stages import iteration_schedule, stages_of_iteration
from .mapped_stages import stages_of_mapping, topology_links
from .network import HostMemory, Network
from .pieces import cut, weight_share_of
from .relay import cut_relayed
from .stages import StageGraph
from .training_stages import stages_of_training

#: How many microbatches are simulated, and run, unless the plan or the caller says otherwise.
DEFAULT_MICROBATCHES = 8


def stages_of(
    workload: Workload,
    plan: Plan,
    *,
    weight_share: float | None = None,
    relayed: bool | None = None,
) -> StageGraph:
    """Return the stages of a plan: its convex pieces, its calls, or those that it lists.

    Parameters
    ----------
    weight_share
        The part of a backward pass that computes gradients of weights; default: the plan's, else
        a half.
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
    if isinstance(plan.solution, TensorSharding):
        raise InputError("the plan is a sharding: it has no stages; stagecut simulate shows it")
    weight_share = weight_share_of(plan) if weight_share is None else weight_share
    match plan.problem, plan.solution:
        case Latency(), CallPlacement(device, call):
            return stages_of_calls(workload, plan.cluster, device, call)
        case Training() as problem, StagePlacement() as solution:
            return stages_of_training(workload, plan, problem, solution, weight_share=weight_share)
        case DeviceMapping() as problem, ReplicaPlacement() as solution:
            return stages_of_mapping(workload, plan, problem, solution, weight_share=weight_share)
        case Iteration() as problem, PipelinePlacement() as solution:
            return stages_of_iteration(
                workload, plan.cluster, problem, solution, weight_share=weight_share
            )
        case Throughput() as problem, _ if problem.relayed if relayed is None else relayed:
            return cut_relayed(workload, plan, weight_share=weight_share)
        case _, Placement() as solution:
            device = solution.device.tolist()
            return cut(workload, plan.cluster, device, weight_share=weight_share)
        case _:
            raise InputError(
                f"plan: it is for {plan.problem.name}; only placements can be cut into pieces"
            )


def usual_schedule(plan: Plan) -> str | Schedule:
    """Return the schedule that a plan is simulated with unless another is asked for."""
    if isinstance(plan.problem, Training | Iteration):
        return named_schedule(plan, plan.problem.schedule)
    return "single" if isinstance(plan.problem, Latency) else "1f1b"


def named_schedule(plan: Plan, name: str) -> str | Schedule:
    """Return a schedule by its name; of ``given``, the plan's own rows on its devices."""
    problem, solution = plan.problem, plan.solution
    if isinstance(problem, Iteration) and isinstance(solution, PipelinePlacement):
        own = iteration_schedule(problem, solution, plan.cluster.size)
        return own if name == problem.schedule else name
    return name


def schedule_to_run(plan: Plan, schedule: str | None, microbatches: int | None) -> tuple[str, int]:
    """Return schedule and microbatches that a plan is run with, given what is asked for.

    What a plan for an iteration was made for is what runs. Default of others: ``1f1b`` and 8.

    Raises
    ------
    InputError
        If something else is asked for than the plan was made for.
    """
    if not isinstance(plan.problem, Iteration):
        return schedule or "1f1b", microbatches or DEFAULT_MICROBATCHES
    planned = plan.problem.schedule, plan.problem.microbatches
    for what, asked, own in zip(
        ("schedule", "microbatches"), (schedule, microbatches), planned, strict=True
    ):
        if asked is not None and asked != own:
            raise InputError(
                f"{what}: {asked}; the plan was made for {own}: leave it out, or plan with "
                f"--{what} {asked}"
            )
    return planned


def usual_network(plan: Plan) -> Network:
    """Return the network that a plan is simulated with unless another is asked for.

    For mapped plans the links of their topology; else what the plan's problem says that transfers
    cost, beside compute if it says so.
    """
    if isinstance(plan.problem, DeviceMapping) and isinstance(plan.solution, ReplicaPlacement):
        return topology_links(plan.problem, plan.solution)
    return HostMemory(isinstance(plan.problem, Throughput | Iteration) and plan.problem.overlap)
