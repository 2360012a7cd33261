"""Verification of training jobs' plans from the definition: seconds, bytes, the job's demands."""

from __future__ import annotations

import math

from ...instances import InputError, VerificationError
from ...instances.costs.calibration import Calibration, calibration
from ...instances.costs.layout import check_layout
from ...instances.costs.memory import rank_memory
from ...instances.job.plan import JobPlan, costs_hash
from ...instances.job.problem import on_one_device
from ..estimate import iteration_time

#: Relative difference up to which claimed and computed seconds count as the same.
SAME = 1e-9


def verify_job_plan(plan: JobPlan, table: Calibration | None = None) -> None:
    """Evaluate a plan anew by a table of efficiencies, and hold its claims against that.

    By default that is the shipped table. Raises `VerificationError` if the layout contradicts the
    model, the cluster or the job, needs more bytes than there are, takes other seconds than
    claimed, or the certificate contradicts itself.
    """
    table = table or calibration(plan.cluster.accelerator.family, plan.job.settings.software)
    made = costs_hash(plan.model, plan.cluster, plan.job, table)
    if (made, table.name) != (plan.certificate.costs, plan.certificate.calibration):
        raise VerificationError(
            "costs: the plan was made with other costs than these; solve it again, or give the "
            "measurements that it was made with"
        )
    try:
        check_layout(plan.model, plan.layout, plan.cluster)
    except InputError as error:
        raise VerificationError(f"layout: {error}") from None
    _check_asked(plan)
    seconds = iteration_time(plan.model, plan.layout, plan.cluster, table).seconds
    if not math.isclose(seconds, plan.seconds, rel_tol=SAME):
        raise VerificationError(
            f"seconds: the plan claims {plan.seconds:.9g}; it takes {seconds:.9g}"
        )
    _check_memory(plan)
    if plan.bound > plan.seconds * (1 + SAME):
        raise VerificationError(
            f"bound: the plan claims that nothing is faster than {plan.bound:.9g} s, and takes "
            f"{plan.seconds:.9g}"
        )
    _check_rows(plan)
    if plan.bound > plan.certificate.bound * (1 + SAME):
        raise VerificationError(
            f"certificate: its rows prove {plan.certificate.bound:.9g} s, and the plan claims "
            f"{plan.bound:.9g}"
        )


def _check_asked(plan: JobPlan) -> None:
    """Hold the layout against what the job asks and fixes."""
    job, layout = plan.job, plan.layout
    template = job.template
    for name in ("global_batch", "sequence", "recipe", "software", "context_kind"):
        if getattr(layout, name) != getattr(template, name):
            raise VerificationError(
                f"{name}: the job asks for {getattr(template, name)}, and the plan has "
                f"{getattr(layout, name)}"
            )
    if not job.allows(plan.model, layout):
        raise VerificationError("layout: the job does not allow it: a degree, schedule or module")
    if on_one_device(layout) != template:
        raise VerificationError("layout: it changes what the job leaves at its default")


def _check_rows(plan: JobPlan) -> None:
    """Hold the certificate against what its rows can say, whatever the points take."""
    known: set[tuple[int, ...]] = set()
    for row in plan.certificate.rows:
        if row.degrees in known:
            wrong = "two rows have them"
        elif min(row.points.values(), default=0) < 0:
            wrong = "it counts fewer than 0 points"
        elif row.bound is not None and not 0 <= row.bound <= plan.seconds * (1 + SAME):
            wrong = f"it claims {row.bound:.9g} s; the plan takes {plan.seconds:.9g}"
        else:
            known.add(row.degrees)
            continue
        raise VerificationError(f"certificate: TP, CP, PP, DP, EP, ETP {row.degrees}: {wrong}")


def _check_memory(plan: JobPlan) -> None:
    """Hold the bytes of every pipeline rank against its devices' memory."""
    for rank, limit in enumerate(plan.job.memory_limits(plan.layout, plan.cluster)):
        needed = rank_memory(plan.model, plan.layout, rank).needed
        if needed > limit:
            raise VerificationError(
                f"memory: pipeline rank {rank} needs {needed / 2**30:.2f} GiB, and its devices "
                f"have {limit / 2**30:.2f}"
            )
