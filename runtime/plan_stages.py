"""Any plan as stages: the simulator's one way in."""

from __future__ import annotations

from ..instances import Calls, Plan, Workload
from .calls import stages_of_calls
from .pieces import cut
from .stages import Stages


def stages_of(workload: Workload, plan: Plan, *, weight_share: float = 0.5) -> Stages:
    """Return the stages of a plan: its convex pieces, or its calls if it is for latency.

    Parameters
    ----------
    weight_share
        The part of a backward pass that computes gradients of weights.

    Raises
    ------
    InputError
        If the plan was made for another workload, or cannot be executed.
    """
    if isinstance(plan.solution, Calls):
        plan.check_made_for(workload)
        return stages_of_calls(workload, plan.cluster, plan.solution.device, plan.solution.call)
    return cut(workload, plan, weight_share=weight_share)


def usual_schedule(plan: Plan) -> str:
    """Return the schedule that a plan is simulated with unless another is asked for."""
    return "single" if isinstance(plan.solution, Calls) else "1f1b"
