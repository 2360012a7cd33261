"""Verification of training jobs: seconds and memory of a layout, the job's limits, and the bound.

The bound is proved without anything from the search that found it. Every outer point of the
declared space is listed here again, as a layout, and refuted at the bound of its row in the
certificate, which is at least the plan's. A point is refuted if its work, divided over its ranks,
takes as long as the bound; if its ranks together have too little memory; if, without a pipeline, no
number of recomputed layers is faster; or if a program has no solution below the bound
(`bounds/layout_rows.py`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...instances import InputError, VerificationError
from ...instances.costs.calibration import Calibration, calibration
from ...instances.costs.layers import LayerPrices
from ...instances.costs.layout import FULL, OFFLOAD, JobSchedule, Layout, Recompute, check_layout
from ...instances.costs.memory import RankStages, rank_memory
from ...instances.job.launchers import runs
from ...instances.job.plan import JobPlan, costs_hash
from ...instances.job.problem import TrainingJob, on_one_device
from ..estimate import iteration_time, iteration_times
from .bounds.layout_probes import Probes
from .bounds.layout_rows import PointRefutation

#: Relative difference up to which claimed and computed seconds count as the same.
SAME = 1e-9
#: Points are refuted at the bound less this share of it, as solvers keep rows to 1e-6 or so.
MARGIN = 1e-5


def verify_job_plan(plan: JobPlan, table: Calibration | None = None) -> None:
    """Evaluate a plan by a table of efficiencies, and compare its claims with the result.

    By default that is the shipped table. Raises `VerificationError` if the layout contradicts the
    model, the cluster or the job, needs more memory than there is, or does not take the seconds
    claimed, or if the certificate contradicts itself.
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
    """Check that the layout has what the job asks for, and changes nothing that it fixes."""
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
    """Check that no row of the certificate contradicts another one or the plan."""
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
    """Check that every pipeline rank fits into its devices' memory."""
    for rank, limit in enumerate(plan.job.memory_limits(plan.layout, plan.cluster)):
        needed = rank_memory(plan.model, plan.layout, rank).needed
        if needed > limit:
            raise VerificationError(
                f"memory: pipeline rank {rank} needs {needed / 2**30:.2f} GiB, and its devices "
                f"have {limit / 2**30:.2f}"
            )


@dataclass(frozen=True)
class JobBoundCheck:
    """Result of a bound's check: points refuted, those of them by a program, and seconds."""

    points: int
    programs: int
    seconds: float


def check_job_bound(plan: JobPlan, table: Calibration | None = None) -> JobBoundCheck:
    """Prove that no plan of the declared space is faster than a plan's bound.

    The plan was made with the efficiencies of `table`, by default the shipped ones. Raises
    `VerificationError` if the plan is not what it claims, if its certificate does not count the
    points that there are, or if a point is not refuted.
    """
    begin = time.monotonic()
    verify_job_plan(plan, table)
    table = table or calibration(plan.cluster.accelerator.family, plan.job.settings.software)
    prices = LayerPrices(plan.model, plan.cluster, table)
    points = list(outer_points(plan))
    _check_counts(plan, points)
    bounds = {
        row.degrees: math.inf if row.bound is None else row.bound for row in plan.certificate.rows
    }
    probes = Probes(plan.job, prices)
    for layout in points:
        bound = bounds[_degrees(layout)]
        least = bound * (1 - MARGIN)
        point = PointRefutation(probes, layout)
        if layout.pipeline > 1:
            refuted = point.refuted(least)
        else:
            refuted = point.slower(least) or _refuted_without_pipeline(plan, layout, prices, least)
        if not refuted:
            claimed = f"{bound:.6g} s is" if bound < math.inf else "that nothing fits is"
            raise VerificationError(
                f"bound: {claimed} not proved at TP {layout.tensor}, CP "
                f"{layout.context}, PP {layout.pipeline}, DP {layout.data}, EP {layout.expert}, "
                f"ZeRO {layout.zero}, microbatch {layout.microbatch}, {layout.schedule} x "
                f"{layout.chunks}"
            )
    return JobBoundCheck(len(points), probes.programs, time.monotonic() - begin)


# The declared space.


def outer_points(plan: JobPlan) -> Iterator[Layout]:
    """Yield every outer point of a plan's job, as a layout without explicit stages."""
    model, cluster, job = plan.model, plan.cluster, plan.job
    devices = cluster.devices
    parts = [k for k in range(1, devices + 1) if devices % k == 0]
    most = {block.experts.experts for block in model.layer_types if block.experts is not None}
    profiled = any(block.profiled is not None for block in model.layer_types)
    tensors = job.allowed("tensor") or [
        k for k in parts if k <= min(cluster.domain, cluster.per_node)
    ]
    contexts = job.allowed("context") or [k for k in parts if k == 1 or k * 1024 <= job.sequence]
    experts = (job.allowed("expert") or [k for k in parts if max(most) % k == 0]) if most else [1]
    shares = (job.allowed("expert_tensor") or [1]) if most else [1]
    batches = job.allowed("microbatch") or ([1] if profiled else [*range(1, 9), 16])
    modes = _modes(plan)
    away = itertools.product(*map(job.parts, OFFLOAD))
    hosts: list[dict[str, Any]] = [dict(zip(OFFLOAD, own, strict=True)) for own in away]
    for t, c, e, e_t in itertools.product(tensors, contexts, experts, shares):
        for p in job.allowed("pipeline") or range(1, model.layers + 1):
            if devices % (t * c * p) or (p > 1 and not job.pipelines(model)):
                continue
            d = devices // (t * c * p)
            if job.allowed("data") is not None and d not in (job.allowed("data") or ()):
                continue
            for b in batches:
                if job.global_batch % (b * d) or (t * c * d) % (e * e_t):
                    continue
                one = replace(
                    job.template, tensor=t, context=c, pipeline=p, data=d, expert=e,
                    expert_tensor=e_t, microbatch=b,
                    sequence_parallel=job.settings.sequence_parallel and t > 1,
                )  # fmt: skip
                if p > 1 and one.microbatches > 4096:
                    continue
                for passes, there in itertools.product(_passes(plan, one), hosts):
                    if _legal(plan, passes):
                        yield from _runnable(plan, replace(passes, **there), modes)


def _runnable(plan: JobPlan, passes: Layout, modes: list[frozenset[Recompute]]) -> Iterator[Layout]:
    """Yield a point with every set of recomputed modules that the launcher can run there."""
    some = replace(passes, recompute=FULL, recompute_layers=0)
    counted = FULL in modes and plan.job.counts_layers(some)
    for mode in modes:
        if counted and not mode and not plan.model.mtp:
            continue  # the same as full recomputation of no layer, but for predictions
        one = replace(passes, recompute=mode)
        if runs(plan.job.launcher, one, plan.model) is None:
            yield one
    if counted and runs(plan.job.launcher, some, plan.model) is None:
        yield some


def _modes(plan: JobPlan) -> list[frozenset[Recompute]]:
    """Return the sets of recomputed modules that the model has, and the empty one."""
    model, found = plan.model, [frozenset[Recompute](), *plan.job.modes]
    there = {Recompute.FULL}
    for block in model.layer_types:
        if block.profiled is not None:
            continue
        there |= {Recompute.LAYERNORM, Recompute.OPERATORS}
        if block.attention is not None and block.attention.latent:
            there.add(Recompute.MLA_UP_PROJECTION)
        if block.feed_forward is not None:
            there.add(Recompute.MLP)
        if block.experts is not None:
            there |= {Recompute.MOE, Recompute.MOE_ACTIVATION}
            if block.experts.shared is not None:
                there.add(Recompute.SHARED_EXPERTS)
    kept = {mode for mode in found if mode <= there}
    return sorted(kept, key=sorted)


def _passes(plan: JobPlan, one: Layout) -> Iterator[Layout]:
    """Yield a division with every schedule, number of chunks and ZeRO stage."""
    job: TrainingJob = plan.job
    copies = one.replicas
    if any(block.experts is not None for block in plan.model.layer_types):
        copies = max(copies, one.expert_data)  # tensor-parallel ranks may hold whole experts
    stages = job.zero_stages(one.pipeline)
    if copies == 1:  # nothing is divided; ZeRO 3 frees activations layer by layer
        away = any(job.parts("offload_optimizer"))  # launchers want ZeRO 1 for it
        stages = tuple(z for z in stages if z in (min(stages), 3) or (away and z == 1))
    chunks = job.allowed("chunks") or range(1, 13)
    orders = [JobSchedule.ONE_F_ONE_B] if one.pipeline == 1 else job.orders
    for schedule, v, z in itertools.product(orders, chunks, stages):
        in_v = schedule in (JobSchedule.ZB_V, JobSchedule.DUALPIPE_V)
        several = in_v or schedule is JobSchedule.INTERLEAVED
        if several != (v > 1) or (in_v and v != 2):
            continue
        layers, count = plan.model.layers, v * one.pipeline
        extra = range(3 + len(plan.model.mtp))
        divides = count <= layers and any((layers + k) % count == 0 for k in extra)
        if several and not divides and layers < 3 * count:
            continue
        yield replace(one, schedule=schedule, chunks=v, zero=z)


def _legal(plan: JobPlan, layout: Layout) -> bool:
    try:
        check_layout(plan.model, layout, plan.cluster)
    except InputError:
        return False
    return True


def _degrees(one: Layout) -> tuple[int, ...]:
    return one.tensor, one.context, one.pipeline, one.data, one.expert, one.expert_tensor


def _check_counts(plan: JobPlan, points: list[Layout]) -> None:
    """Check that the certificate counts the points that there are."""
    found: dict[tuple[int, ...], int] = {}
    for one in points:
        key = _degrees(one)
        found[key] = found.get(key, 0) + 1
    claimed = {row.degrees: sum(row.points.values()) for row in plan.certificate.rows}
    if found != claimed:
        wrong = sorted(k for k in found.keys() | claimed.keys() if found.get(k) != claimed.get(k))
        raise VerificationError(
            f"certificate: TP, CP, PP, DP, EP, ETP {wrong[0]}: it counts "
            f"{claimed.get(wrong[0], 0)} points; there are {found.get(wrong[0], 0)}"
        )


# Points without a pipeline.


def _refuted_without_pipeline(
    plan: JobPlan, layout: Layout, prices: LayerPrices, least: float
) -> bool:
    """Whether no number of recomputed layers fits and takes less than `least` seconds."""
    plans = [layout]
    if plan.job.counts_layers(layout):
        plans = [replace(layout, recompute_layers=k) for k in range(plan.model.layers + 1)]
        away = layout.offload_activations  # recomputed layers move fewer bytes to the host
        if not away and iteration_times(plans[:1], prices)[0].seconds >= least:
            return True  # none is faster than that without recomputation
    seconds = [one.seconds for one in iteration_times(plans, prices)]
    faster = [one for one, takes in zip(plans, seconds, strict=True) if takes < least]
    stages = RankStages.of(plan.model, layout)
    (limit,) = plan.job.memory_limits(layout, plan.cluster)
    return all(rank_memory(plan.model, one, 0, stages).needed > limit for one in faster)
