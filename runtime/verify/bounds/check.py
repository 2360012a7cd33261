"""Check of a plan's bound, independent of the search that found it.

A certificate is checked by its evidence: prices (`prices`), hubs (`max_load`), a price of memory
(`sharding`). Any other bound is compared with bounds that follow from the workload alone
(`max_load`, `latency`, `job`), and for contiguous splits and mappings with all chains of stages
(`stage_chains`, `job`, `mapping`): it is proved, whatever its origin, if one of them is as high.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ....instances import (
    DeviceMapping,
    Latency,
    PipelineJob,
    Plan,
    Planned,
    ReplicaPlacement,
    Sharding,
    Split,
    Throughput,
    UncheckedError,
    Workload,
    is_iteration,
    plan_of,
    price,
    without_links,
)
from ....instances.common.errors import quote
from ....instances.common.units import show_time
from ....instances.formats.plan_json import PriceCertificate, ShardingCertificate, read_certificate
from ....instances.model.workload import kept_bytes
from ..verify import CLAIM_TOLERANCE
from . import BoundCheck, check_target
from .job import divided_work_bound, no_iteration_below, stream_bound
from .latency import latency_bound
from .mapping import no_mapping_below, stage_time_bound
from .max_load import check_hubs, keeps_order, max_load_bound
from .prices import check_prices
from .sharding import check_sharding_bound
from .stage_chains import no_chain_below, no_intervals_below


def check_bound(workload: Workload, plan: Plan | Planned) -> BoundCheck:
    """Check that the plan's bound is proved: by its certificate, or by the workload alone.

    Parameters
    ----------
    workload
        Workload that the plan was made for.
    plan
        A plan of any problem, or the `Result` that holds it. The page on certificates says which
        bounds can be checked.

    Returns
    -------
    BoundCheck
        Proved value and target; takes seconds to a minute for a thousand nodes.

    Raises
    ------
    InputError
        If the plan was made for another workload.
    VerificationError
        If the certificate does not prove the bound.
    UncheckedError
        If there is no bound; if it has no certificate that can be checked, and is above the bounds
        that follow from the workload alone; or if the check would be too large.

    Examples
    --------
    >>> import stagecut
    >>> workload = stagecut.load("gpt2-xl")
    >>> plan = stagecut.solve(workload, stagecut.accelerators_and_cpus(2), method="greedy").plan
    >>> check = check_bound(workload, plan)
    >>> check.value >= plan.bound
    True
    """
    plan = plan_of(plan)
    plan.check_made_for(workload)
    problem = plan.problem
    if isinstance(problem, PipelineJob):
        plan = replace(plan, problem=problem.for_workload(workload))
    if not isinstance(problem, Throughput | Sharding):
        return _check_without_certificate(workload, plan)
    given = read_certificate(plan.certificate, workload.n, len(plan.cluster.kinds))
    if isinstance(problem, Sharding) and not math.isinf(plan.bound):
        evidence = given if isinstance(given, ShardingCertificate) else None
        return check_sharding_bound(workload, plan, problem, evidence)
    if given is None or isinstance(problem, Sharding) or isinstance(given, ShardingCertificate):
        return _check_without_certificate(workload, plan)
    check_target(plan, given.target)
    costs = without_links(price(workload, plan.cluster), returning=False)
    if isinstance(given, PriceCertificate):
        return check_prices(workload, costs, problem, given)
    return check_hubs(workload, costs, problem, given)


def _check_without_certificate(workload: Workload, plan: Plan) -> BoundCheck:
    """Compare a bound with bounds that follow from the workload alone."""
    origin = plan.certificate.get("origin")
    if math.isinf(plan.bound):
        raise UncheckedError("bound: there is none to check; plan with method auto for one")
    source = f"it comes from {quote(origin)}" if origin else "it does not say where it comes from"
    proved = bound_without_certificate(workload, plan)
    if not plan.bound <= proved * (1 + CLAIM_TOLERANCE) and _proved_by_chains(workload, plan):
        proved = plan.bound
    if not plan.bound <= proved * (1 + CLAIM_TOLERANCE):
        raise UncheckedError(
            f"bound: not checked: {source}, without a certificate that can be checked; rely on "
            f"{show_time(proved, workload.time_unit)}, which follows from the workload alone"
        )
    return BoundCheck(plan.bound, proved, plan.bound)


def _proved_by_chains(workload: Workload, plan: Plan) -> bool:
    """Return whether the plan is a chain of stages, and no chain is better than its bound."""
    problem, target = plan.problem, plan.bound * (1 - CLAIM_TOLERANCE)
    if not 0 < target < math.inf:
        return False
    if isinstance(problem, Throughput):
        costs = price(workload, plan.cluster)
        return keeps_order(costs, problem) and (
            no_intervals_below(workload, costs, problem, target)
            or no_chain_below(workload, costs, problem, target)
        )
    if isinstance(problem, DeviceMapping):
        assert isinstance(plan.solution, ReplicaPlacement)
        given = plan.solution if plan.of_given_stages else None
        return problem.objective == "stage-time" and no_mapping_below(
            workload, plan.cluster, problem, target, given
        )
    return (
        is_iteration(problem)
        and problem.split == Split.CONTIGUOUS
        and problem.chunks_per_device == 1
        and no_iteration_below(workload, plan.cluster, problem, target)
    )


def bound_without_certificate(workload: Workload, plan: Plan) -> float:
    """Return the best lower bound on the objective that follows from the workload alone; ≥ 0."""
    problem, cluster = plan.problem, plan.cluster
    match problem:
        case Throughput():
            return max_load_bound(workload, price(workload, cluster), problem)
        case PipelineJob() if is_iteration(problem):
            # a device with load L per microbatch is busy for M L
            one = _of_microbatch(workload, problem)
            split = Split.NONCONTIGUOUS if problem.chunks_per_device > 1 else problem.split
            max_load = Throughput(split=split, overlap=problem.overlap)
            costs = price(one, cluster)
            busy = problem.batch * max_load_bound(one, costs, max_load, transfers=False)
            if problem.split != Split.CONTIGUOUS or busy >= plan.bound:
                return busy
            return max(busy, divided_work_bound(workload, costs, problem, plan.bound))
        case Latency():
            costs = without_links(price(workload, cluster), returning=True)
            return latency_bound(workload, costs, problem.calls, plan.bound)
        case PipelineJob():
            return stream_bound(workload, cluster, problem)
        case DeviceMapping() if problem.objective == "stage-time":
            return stage_time_bound(workload, cluster, problem)
    return 0.0


def _of_microbatch(workload: Workload, problem: PipelineJob) -> Workload:
    """Return the workload with the memory that a device needs in any order of its pieces.

    A chain's stage, and with a backward pass all stages of a device, hold the activations of a
    microbatch at the same time; other pieces need not, so that only resident memory counts.
    """
    shared = problem.chunks_per_device > 1
    if problem.split == Split.CONTIGUOUS and (workload.backward.any() or not shared):
        return workload
    _, resident, _ = kept_bytes(workload)
    return replace(workload, memory_bytes=resident)
