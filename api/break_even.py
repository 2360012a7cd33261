"""Break-even number of microbatches between plans of least max-load and of least makespan."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ..instances import PipelineJob, Plan, Throughput, Workload
from ..instances.common.kernel import NotCompiled, compiled_only_if
from ..runtime import evaluate
from ..runtime.simulate.simulator import simulate
from ..solvers import Limits
from .solve import solve

#: Microbatches looked at: the powers of two up to this one.
MAX_MICROBATCHES = 1024
#: Gap of the contiguous plans that are compared with.
GAP = 0.02


@dataclass(frozen=True)
class BreakEven:
    """From which number of microbatches on a plan of least max-load is the faster one.

    Parameters
    ----------
    microbatches
        Of the powers of two up to `MAX_MICROBATCHES` the least with which an iteration of the plan
        takes no longer than the best contiguous plan that was found for it; None if none.
    schedule
        The schedule of both.
    over_memory
        What device needs more memory than it has under that schedule; empty if none does.
    """

    microbatches: int | None
    schedule: str
    over_memory: str = ""


def break_even(workload: Workload, plan: Plan, seconds: float) -> BreakEven | None:
    """Return from which number of microbatches on a plan beats contiguous plans for an iteration.

    The time of an iteration grows by the plan's max-load with every microbatch, and that of the
    best contiguous plan by no less; so the plan stays ahead once it is.

    Parameters
    ----------
    plan
        Of a throughput problem, for a workload with a backward pass.
    seconds
        For the search of contiguous plans.

    Returns
    -------
    BreakEven or None
        None if contiguous plans could not be found in this time, or not without compiling, which
        takes longer than the answer is worth.
    """
    try:
        with compiled_only_if(lambda: False):
            return _break_even(workload, plan, seconds)
    except NotCompiled:
        return None


def _break_even(workload: Workload, plan: Plan, seconds: float) -> BreakEven | None:
    assert isinstance(plan.problem, Throughput)
    asked = plan.problem
    schedule = "gpipe" if asked.pipeline == "gpipe" else "1f1b"
    deadline = time.monotonic() + seconds
    others: list[Plan] = []
    powers = MAX_MICROBATCHES.bit_length()
    low, high = 0, powers  # the plan is behind below `low`, and ahead from `high` on
    while low < high:
        middle = (low + high) // 2
        problem = PipelineJob(
            1 << middle,
            schedule,
            relayed=asked.relayed,
            overlap=asked.overlap,
            placement_rules=replace(asked.placement_rules, pins=(), fixed=()),  # of devices
        )
        makespan = simulate(workload, plan, schedule, 1 << middle).makespan
        known = [evaluate(workload, plan.cluster, problem, other.solution) for other in others]
        if any(r.objective < makespan and not r.violations for r in known):
            low = middle + 1
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        limits = Limits(seconds=left, gap=GAP)
        found = solve(workload, plan.cluster, problem, limits=limits).plan
        if found is None:
            return None
        others.append(found)
        low, high = (middle + 1, high) if found.objective < makespan else (low, middle)
    run = simulate(workload, plan, schedule, 1 << min(high, powers - 1))
    over = next(iter(run.over_memory), "")
    return BreakEven(None if high == powers else 1 << high, schedule, over)
