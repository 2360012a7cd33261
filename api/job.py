"""Plans of training jobs: search, costs, alternatives, remedies, and the reason for no plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formulations.job.bounds import points_that_fit
from ..formulations.job.rates import rates
from ..formulations.job.space import JobSpace, job_space
from ..instances import InputError, Status
from ..instances.common.arrays import Floats, Ints
from ..instances.common.errors import quote
from ..instances.costs.calibration import Calibration
from ..instances.costs.description import ModelDescription
from ..instances.costs.hardware import TrainingCluster
from ..instances.costs.layers import LayerPrices
from ..instances.costs.layout import OFFLOAD, Layout, describe
from ..instances.costs.memory import RankMemory, fullest_rank
from ..instances.job.plan import CertificateRow, JobCertificate, JobPlan, Reason, costs_hash
from ..instances.job.problem import OPEN, TrainingJob, on_one_device
from ..instances.job.usual_layouts import UsualLayout, usual_layouts
from ..instances.model.summary import Summarised
from ..runtime.estimate import IterationTime, iteration_times
from ..solvers import Limits
from ..solvers.job.search import JobProgress, JobSearch, even_plan, search_job
from .estimate import Estimate, estimate, layer_prices
from .versions import installed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class JobCosts:
    """Costs of a job's layouts: seconds, bytes, and the fields outside of the job's space."""

    model: ModelDescription
    cluster: TrainingCluster
    job: TrainingJob
    prices: LayerPrices  # seconds of layers

    def fullest(self, layout: Layout) -> tuple[RankMemory, float]:
        """Return bytes and free bytes of the rank with least left; negative if they are too few."""
        return fullest_rank(self.model, layout, self.job.memory_limits(layout, self.cluster))

    def judge(self, layouts: Sequence[Layout]) -> Floats:
        """Return the seconds of plans, infinite where one does not fit."""
        fits = [self.fullest(one)[1] >= 0 for one in layouts]
        chosen = [one for one, there in zip(layouts, fits, strict=True) if there]
        seconds = np.full(len(layouts), np.inf)
        seconds[fits] = [time.seconds for time in iteration_times(chosen, self.prices)]
        return seconds

    def time(self, layout: Layout) -> IterationTime:
        """Return the seconds of an iteration under a layout, by term."""
        return iteration_times([layout], self.prices)[0]

    def usual(self) -> tuple[UsualLayout, ...]:
        """Return the usual layouts for such a job."""
        return usual_layouts(self.model, self.cluster, self.job.template, self.job.memory_bytes)

    def starts(self, usual: Sequence[UsualLayout]) -> list[Layout]:
        """Return the usual layouts moved into the job's space, where they can be plans of it."""
        own = [self.moved(one.layout) for one in usual if one.layout is not None]
        return [one for one in own if self.job.allows(self.model, one)]

    def moved(self, layout: Layout) -> Layout:
        """Return a layout with the job's values of the fields that no job leaves open."""
        return replace(layout, **{"mtp_stage": self.job.template.mtp_stage, **self.outside(layout)})

    def outside(self, layout: Layout) -> dict[str, Any]:
        """Return the fields that put a layout outside the job's space, with the job's values."""
        template = self.job.template
        last = layout.mtp_stage == layout.stages - 1  # by whichever number it is called
        own = on_one_device(replace(layout, mtp_stage=-1) if last else layout)
        names = [one.name for one in fields(Layout)]
        found = {
            name: getattr(template, name)
            for name in names
            if getattr(own, name) != getattr(template, name)
        }
        hosts = {name: self.job.parts(name) for name in OFFLOAD}
        return found | {n: own[0] for n, own in hosts.items() if getattr(layout, n) not in own}


def job_costs(
    model: str | Path | ModelDescription,
    cluster: str | Path | TrainingCluster,
    job: TrainingJob,
    *,
    calibration: Calibration | None = None,
    measured: str | Path | None = None,
) -> JobCosts:
    """Return the costs of a job; parameters as of `solve_job`."""
    prices = layer_prices(model, cluster, job.settings.software, calibration, measured)
    return JobCosts(prices.model, prices.cluster, job, prices)


def plan_costs(plan: JobPlan, calibration: Calibration | None = None) -> JobCosts:
    """Return the costs with which a plan was made.

    InputError if its efficiencies were others than `calibration`, or by default the shipped ones.
    """
    costs = job_costs(plan.model, plan.cluster, plan.job, calibration=calibration)
    made = costs_hash(plan.model, plan.cluster, plan.job, costs.prices.calibration)
    if made != plan.certificate.costs:
        raise InputError(
            f"plan: it was made with efficiencies {quote(plan.certificate.calibration)} that are "
            "not the given ones; give those, or solve the job again"
        )
    return costs


#: Limits of a job's search, where none are given.
JOB_LIMITS = Limits(seconds=60.0, gap=1e-3)
#: Relative differences of seconds within which published runs do not tell layouts apart: see
#: docs/validation.md.
SEPARABLE = 0.05
#: Relative errors of terms, by which close plans are ordered in their worst case: what
#: communication takes and hides is known less well than what products take.
TERM_ERRORS = {
    "tensor": 0.3, "context": 0.3, "experts": 0.3, "gradients": 0.3, "weights": 0.3, "offload": 0.3,
}  # fmt: skip
OTHER_ERROR = 0.05
#: Relative difference of seconds below which the plan that asks for less is taken.
SAME = 1e-9
#: Most plans listed, and most outer points looked at for the list.
LISTED, LOOKED_AT = 10, 400
#: Seconds for which they are looked at after a limit has ended the search, and points at once.
AFTER_LIMIT, AT_ONCE = 1.0, 16


#: Degrees t, c, p, d, e and e_t of a layout.
Degrees = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class JobCandidate:
    """Layout with other degrees, schedule or recomputation than other candidates'."""

    layout: Layout
    seconds: float  # of an iteration
    worst: float  # seconds if every term takes longer by the known error of its costs
    free: float  # free bytes of the fullest device


@dataclass(frozen=True)
class UsualChoice:
    """Layout by a common rule, with its seconds and its lag behind the plan."""

    name: str  # of the rule
    layout: Layout | None  # None if none by the rule runs
    seconds: float  # of an iteration; infinite where it does not fit
    reason: str  # why it is not the rule's first choice, or why there is none
    # term of time in which it is behind the plan most, and by how many seconds; empty if it is not
    most: tuple[str, float] | None = None
    outside: tuple[str, ...] = ()  # the fields that put it outside the job's space


@dataclass(frozen=True, repr=False)
class JobResult(Summarised):
    """Result of a search for a training job's layout.

    Parameters
    ----------
    plan
        The best plan; None if there is none.
    status
        ``optimal`` (within the gap that was asked), ``feasible`` (a limit came first),
        ``infeasible`` (nothing fits), ``no solution`` (a limit came before any plan).
    seconds
        That the search took.
    candidates
        The best plans that differ, the best first. Where a bound alone ruled a kind out, its stages
        are even, and `explain_job` may find better ones.
    close
        At most ten that the costs' known error cannot tell from the best, in the order in which to
        try them: by their worst case, then by free memory, fewer pipeline and tensor ranks.
    usual
        Layouts by common rules: ZeRO-3 over all devices, tensor parallelism inside nodes with a
        pipeline across, published guides, NVIDIA's recipe where the model has one.
    reason
        Why there is no plan.
    least_memory
        Where nothing fits: lower bound on the bytes of a device for any layout; on unlike devices
        for the smallest, if the others grow in proportion.
    programs
        Numbers of points whose relaxation, and whose program, was solved.
    calibration
        Efficiencies of all costs; None: the shipped ones.

    Examples
    --------
    >>> found = solve_job("llama3.2-1b", "h100:8", TrainingJob(global_batch=64, sequence=4096))
    >>> found.status, len(found.candidates) >= len(found.close) > 0
    ('optimal', True)
    """

    plan: JobPlan | None
    status: Status
    seconds: float
    candidates: tuple[JobCandidate, ...] = ()
    close: tuple[JobCandidate, ...] = ()
    usual: tuple[UsualChoice, ...] = ()
    reason: str = ""
    least_memory: float | None = None
    programs: tuple[int, int] = (0, 0)
    calibration: Calibration | None = field(default=None, repr=False)

    def summary(self) -> dict[str, object]:
        """Return status and seconds of the search, with the plan or the reason for none."""
        plan = {"reason": self.reason} if self.plan is None else self.plan.summary()
        return {"status": self.status, **plan, "search_s": self.seconds}

    def to_pandas(self) -> pd.DataFrame:
        """Return the candidates, a row each: layout, seconds, worst and free bytes."""
        import pandas as pd

        rows = [
            {
                "layout": describe(one.layout),
                "seconds": one.seconds,
                "worst_s": one.worst,
                "free_bytes": one.free,
            }
            for one in self.candidates
        ]
        return pd.DataFrame(rows, columns=["layout", "seconds", "worst_s", "free_bytes"])

    @property
    def estimate(self) -> Estimate:
        """Seconds and bytes of the plan by term.

        Raises
        ------
        InputError
            If there is no plan.
        """
        if self.plan is None:
            raise InputError(f"no plan: {self.reason}")
        plan = self.plan
        return estimate(plan.model, plan.layout, plan.cluster, calibration=self.calibration)


def solve_job(
    model: str | Path | ModelDescription,
    cluster: str | Path | TrainingCluster,
    job: TrainingJob,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[JobProgress], None] | None = None,
    calibration: Calibration | None = None,
    measured: str | Path | None = None,
) -> JobResult:
    """Find the layout in which a model trains fastest on a cluster, and prove it.

    Parameters
    ----------
    model
        A shipped description's name such as ``llama3-70b``, a Hugging Face ``config.json`` or its
        folder, a file of ``profile --train --layers``, or a description.
    cluster
        Such as ``h100:8x8``, a cluster file, or a cluster.
    job
        Batch, and the fixed fields of the layout.
    limits
        Time and gap at which to stop; default: `JOB_LIMITS`.
    on_progress
        Called with better plans and bounds.
    calibration, measured
        Efficiencies, as for `estimate`.

    Returns
    -------
    JobResult
        Its plan is judged by the estimate; its bound holds for the declared space of
        `stagecut.formulations.job.space`.

    Raises
    ------
    InputError
        If model or cluster is not known, or what is fixed contradicts itself or one of them.

    Examples
    --------
    >>> found = solve_job("llama3.2-1b", "h100:8", TrainingJob(global_batch=64, sequence=4096))
    >>> found.status, found.plan.gap <= 1e-3
    ('optimal', True)
    """
    begin = time.monotonic()
    limits = limits or JOB_LIMITS
    costs = job_costs(model, cluster, job, calibration=calibration, measured=measured)
    space = job_space(costs.model, costs.cluster, job)
    deadline = begin + (np.inf if limits.seconds is None else limits.seconds)
    usual = costs.usual()
    starts = costs.starts(usual)
    search = search_job(
        space, costs.prices, costs.judge, starts, gap=limits.gap, deadline=deadline,
        on_progress=on_progress,
    )  # fmt: skip
    programs = (search.relaxed, search.solved)
    _consider_near(space, search)
    if search.best is None:
        return _without_plan(costs, space, search, limits, time.monotonic() - begin)
    best = min(
        (one for one, s in search.tried.items() if s <= search.seconds * (1 + SAME)),
        key=lambda one: (one.zero, one.pipeline, one.tensor, search.tried[one]),
    )
    table = costs.prices.calibration
    certificate = JobCertificate(
        costs_hash(costs.model, costs.cluster, job, table), table.name, _rows(search)
    )
    plan = JobPlan(
        costs.model, costs.cluster, job, best, search.tried[best],
        min(search.least_bound, search.seconds), certificate, {"stagecut": installed("stagecut")},
    )  # fmt: skip
    candidates = _candidates(costs, search)
    most = search.seconds * (1 + SEPARABLE)
    close = [one for one in candidates if one.seconds <= most]
    close.sort(key=lambda one: (one.worst, -one.free, one.layout.pipeline, one.layout.tensor))
    status = Status.OPTIMAL if plan.gap <= limits.gap * (1 + 1e-9) else Status.FEASIBLE
    return JobResult(
        plan, status, time.monotonic() - begin, tuple(candidates[:LISTED]), tuple(close[:LISTED]),
        judge_usual(costs, best, usual), programs=programs, calibration=table,
    )  # fmt: skip


def _rows(search: JobSearch) -> tuple[CertificateRow, ...]:
    """Return the certificate's table from what a search knows of each point."""
    space = search.space
    groups: dict[Degrees, list[int]] = {}
    for point in range(len(space)):
        setting = space.settings[space.setting[point]]
        degrees: Degrees = (
            setting.tensor, setting.context, int(space.pipeline[point]), int(space.data[point]),
            setting.expert, setting.expert_tensor,
        )  # fmt: skip
        groups.setdefault(degrees, []).append(point)
    rows = []
    for degrees, points in groups.items():
        counts: dict[Reason, int] = {}
        for point in points:
            reason = search.reason[point]
            counts[reason] = counts.get(reason, 0) + 1
        bound = min(float(search.bound[points].min()), search.seconds)
        fits = np.isfinite(search.bound[points]).any()
        rows.append(CertificateRow(*degrees, counts, bound if fits else None))
    return tuple(rows)


def _consider_near(space: JobSpace, search: JobSearch) -> None:
    """Judge points with even stages that their bound ruled out or left open, but may be close.

    If a limit ended the search, this ends soon, and may find better plans than the search did.
    """
    if search.table is None:
        return
    end = time.monotonic() + AFTER_LIMIT if search.stopped else np.inf
    near = np.flatnonzero(search.bound <= search.seconds * (1 + SEPARABLE))
    near = near[np.argsort(search.bound[near], kind="stable")][:LOOKED_AT]
    near = near[np.isfinite(search.bound[near])]
    for first in range(0, len(near), AT_ONCE):
        if time.monotonic() > end:
            break
        points = near[first : first + AT_ONCE].tolist()
        plans = [even_plan(space, search.table, point) for point in points]
        search.consider([layout for layout in plans if layout not in search.tried])


def _candidates(costs: JobCosts, search: JobSearch) -> list[JobCandidate]:
    """Return plans by their seconds, of each kind of layout the best that is known."""
    judged = search.tried
    best: dict[Layout, Layout] = {}
    for layout, seconds in judged.items():
        kind = replace(layout, stage_layers=(), recompute_layers=None)
        if seconds < judged.get(best.get(kind, layout), np.inf) or kind not in best:
            best[kind] = layout
    order = sorted(best.values(), key=judged.__getitem__)
    found = []
    distinct: dict[str, Layout] = {}
    for layout in order:
        distinct.setdefault(describe(replace(layout, stage_layers=())), layout)
    for layout in list(distinct.values())[: 4 * LISTED]:
        worst = sum(
            seconds * (1 + TERM_ERRORS.get(term, OTHER_ERROR))
            for term, seconds in costs.time(layout).terms.items()
        )
        free = costs.fullest(layout)[1]
        found.append(JobCandidate(layout, judged[layout], float(worst), float(free)))
    return found


def judge_usual(
    costs: JobCosts, best: Layout, usual: Sequence[UsualLayout]
) -> tuple[UsualChoice, ...]:
    """Return the layouts by common rules, with their lag behind a plan's layout."""
    least = costs.time(best).terms
    found = []
    for one in usual:
        if one.layout is None:
            found.append(UsualChoice(one.name, None, np.inf, one.reason))
            continue
        time = costs.time(one.layout)
        term = max(time.terms, key=lambda name: time.terms[name] - least.get(name, 0.0))
        behind = time.terms[term] - least.get(term, 0.0)
        most = (term, behind) if behind > 0 else None
        seconds = time.seconds if costs.fullest(one.layout)[1] >= 0 else np.inf
        refused = costs.job.refused(costs.model, costs.moved(one.layout))
        outside = tuple(dict.fromkeys((*costs.outside(one.layout), *refused)))
        found.append(UsualChoice(one.name, one.layout, seconds, one.reason, most, outside))
    return tuple(found)


@dataclass(frozen=True)
class WhatIf:
    """Best plan known under a changed assumption, with a bound on all plans."""

    change: str  # the change, in words
    seconds: float  # of the best plan under the change, for as many sequences as the job has
    bound: float  # no plan under the change takes fewer seconds
    layout: Layout | None  # of the best plan; None if there is none


def what_would_help(
    plan: JobPlan, limits: Limits | None = None, *, calibration: Calibration | None = None
) -> tuple[WhatIf, ...]:
    """Return the effects of more memory, a faster network, a larger batch and free bubbles.

    Where more memory helps, offloading to host memory is tried as well, if the launcher can do it
    and the space does not become too large. `limits` are the gap of each search and the seconds of
    all together, by default 1 % and 100 s. `calibration` are the efficiencies that the plan was
    made with; default: the shipped ones.

    Examples
    --------
    >>> job = TrainingJob(global_batch=64, sequence=4096, tensor=1, context=1)
    >>> found = solve_job("llama3.2-1b", "h100:8", job)
    >>> [one.change for one in what_would_help(found.plan)][:2]
    ['twice the memory', 'twice the network']
    """
    plan_costs(plan, calibration)
    limits = limits or Limits(seconds=100.0, gap=1e-2)
    begin, cluster, job = time.monotonic(), plan.cluster, plan.job
    wider = with_memory(cluster, job.memory_bytes, 2.0)
    network = replace(cluster.network, bandwidth=2 * cluster.network.bandwidth)
    cases = [
        ("twice the memory", wider, replace(job, memory_bytes=None), 1.0),
        ("twice the network", replace(cluster, network=network), job, 1.0),
        ("twice the batch", cluster, replace(job, global_batch=2 * job.global_batch), 0.5),
    ]
    free = replace(job, launcher="any", schedules=None)
    # With other kernels than these, what they save would count as the schedules'.
    alike = job.settings.software is free.settings.software
    if plan.layout.pipeline > 1 and alike and job.orders != free.orders:
        cases.append(("zero-bubble schedules", cluster, free, 1.0))
    hosts = _parts_in_host_memory(job, (HALVES, WHOLE), sum(plan.certificate.points.values()))
    if hosts != job:
        cases.append(("parts in host memory", cluster, hosts, 1.0))
    found: list[WhatIf] = []
    for done, case in enumerate(cases):
        if case[2] is hosts and found[0].seconds >= plan.seconds * (1 - limits.gap):
            break  # memory does not bind
        own = limits
        if limits.seconds is not None:
            left = begin + limits.seconds - time.monotonic()
            if left <= 0:
                found.append(WhatIf(case[0], np.inf, 0.0, None))
                continue
            own = replace(limits, seconds=left / (len(cases) - done))
        found.append(_what_if(plan, *case, own, calibration))
    return tuple(found)


def _what_if(
    plan: JobPlan,
    change: str,
    cluster: TrainingCluster,
    job: TrainingJob,
    share: float,
    limits: Limits,
    calibration: Calibration | None,
) -> WhatIf:
    """Return the effect of a changed job; the plan's batch is `share` of the changed one's."""
    there = solve_job(plan.model, cluster, job, limits=limits, calibration=calibration).plan
    own = replace(plan.layout, global_batch=job.global_batch)  # the plan itself, which runs there
    costs = job_costs(plan.model, cluster, job, calibration=calibration)
    seconds, bound = float(costs.judge([own])[0]), 0.0
    best = own if np.isfinite(seconds) else None
    if there is not None:
        bound = there.bound
        if there.seconds <= seconds:
            best, seconds = there.layout, there.seconds
    return WhatIf(change, share * seconds, share * min(bound, seconds), best)


def _without_plan(
    costs: JobCosts, space: JobSpace, search: JobSearch, limits: Limits, seconds: float
) -> JobResult:
    """Return a result without plan: nothing fits, or the time was too short to find a plan."""
    bound = float(search.bound.min())
    if np.isfinite(bound):
        reason = "no plan within the time limit; give it more"
        if not search.stopped:  # programs count no moment in which sharded weights are gathered
            reason = (
                "no plan was found and none is ruled out: what is certainly needed fits, what a "
                "plan's fullest moments need does not; give more memory, more time does not help"
            )
        return JobResult(None, Status.NO_SOLUTION, seconds, reason=reason)
    most = SECONDS if limits.seconds is None else min(SECONDS, limits.seconds)
    reason, least = why_nothing_fits(costs, space, most)
    return JobResult(None, Status.INFEASIBLE, seconds, reason=reason, least_memory=least)


#: Most doublings of the number of nodes, and most seconds of the search for a change with which a
#: layout fits.
DOUBLINGS, SECONDS = 7, 10.0
#: Parts in host memory that are tried; the coarser ones where the space would have more than
#: `MOST_POINTS` outer points otherwise.
QUARTERS, HALVES, WHOLE = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5, 1.0), (0.0, 1.0)
MOST_POINTS = 100_000


def why_nothing_fits(costs: JobCosts, space: JobSpace, seconds: float) -> tuple[str, float]:
    """Return a line on the missing memory and its remedies, and the bytes that any plan needs.

    `seconds` are those of the search for remedies.
    """
    devices = [nodes.accelerator for nodes in costs.cluster.nodes]
    device = min(devices, key=lambda one: one.memory_bytes)
    most = costs.job.memory_bytes or np.inf
    limit, times = min(device.memory_bytes, most), _memory_factor(costs, space)
    least = limit * times
    has = f"{device.name} has {device.memory_bytes / 2**30:.1f}"
    if limit < device.memory_bytes:
        has = f"{limit / 2**30:.1f} are allowed"
    needs = f"needs at least {least / 2**30:.1f} GiB per device in any layout, and {has}"
    more = f"the {limit / 2**30:.1f} GiB of {device.name}"
    if len({min(one.memory_bytes, most) for one in devices}) > 1:
        more = f"the memory of {costs.cluster.kinds}"
        needs = f"needs at least {times:.2f} times {more} in any layout"
    if times <= 1:  # as a whole: only programs have ruled out every layout
        needs = f"needs more than {more}"
    helps = ", or ".join(islice(_changes_that_fit(costs, len(space), seconds), 2))
    return f"{costs.model.name} {needs}" + (f"; it fits {helps}" if helps else ""), least


def _memory_factor(costs: JobCosts, space: JobSpace) -> float:
    """Return the least factor on all devices' bytes, to half a percent, that the bounds admit.

    With less memory no layout fits; with so much some may.
    """
    table, points = rates(space, costs.prices), np.arange(len(space))

    def fitting(times: float) -> Ints:
        cluster = with_memory(costs.cluster, costs.job.memory_bytes, times)
        wider = replace(space, cluster=cluster, job=replace(costs.job, memory_bytes=None))
        return points_that_fit(wider, table, points)

    low = high = 1.0
    while not len(found := fitting(high)):
        high *= 2
    points = found  # with less memory, only some of these fit
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        if len(found := fitting(middle)):
            high, points = middle, found
        else:
            low = middle
    return high


def _changes_that_fit(costs: JobCosts, points: int, seconds: float) -> Iterator[str]:
    """Yield changes under which a layout that fits was found in time, the smallest first.

    `points` is the number of outer points of the space without them.
    """
    end = time.monotonic() + seconds
    usual: dict[str, Any] = {field.name: field.default for field in fields(TrainingJob)}
    for name in (*OPEN, "recompute", "schedules", "memory_bytes"):
        given = getattr(costs.job, name)
        freed = replace(costs.job, **{name: usual[name]})
        if given != usual[name] and _plan_found(costs, costs.cluster, freed, end):
            yield f"with {name} left open" if name != "memory_bytes" else "with all of its memory"
    for doubling in range(1, DOUBLINGS + 1):
        nodes = tuple(replace(one, count=one.count << doubling) for one in costs.cluster.nodes)
        more = replace(costs.cluster, nodes=nodes)
        if _plan_found(costs, more, costs.job, end):
            yield f"on {more.devices} of them" if len(nodes) == 1 else f"on {more.kinds}"
            break
    wider = _parts_in_host_memory(costs.job, (QUARTERS, HALVES, WHOLE), points)
    able = wider != costs.job
    layout = _plan_found(costs, costs.cluster, wider, end, SEPARABLE) if able else None
    if layout is not None:
        parts = [(name, getattr(layout, name)) for name in OFFLOAD if getattr(layout, name)]
        words = " and ".join(f"{100 * part:g} % of {OFFLOAD[name]}" for name, part in parts)
        given = ",".join(f"{name}={part:g}" for name, part in parts)
        yield f"with {words} in host memory (--set {given})"


def _parts_in_host_memory(
    job: TrainingJob, choices: Sequence[tuple[float, ...]], points: int
) -> TrainingJob:
    """Return a job that may offload parts to host memory, as far as its launcher can.

    The parts are the first of `choices` with which a space of `points` outer points does not become
    too large; without any, the job itself is returned.
    """
    able = [name for name in OFFLOAD if name in job.settings.offload]
    for parts in choices:
        wider = {name: tuple(sorted({*job.parts(name), *parts})) for name in able}
        times = math.prod(len(wider[name]) / len(job.parts(name)) for name in able)
        if points * times <= MOST_POINTS:
            given: dict[str, Any] = wider
            return replace(job, **given)
    return job


def _plan_found(
    costs: JobCosts, cluster: TrainingCluster, job: TrainingJob, end: float, gap: float = 0.99
) -> Layout | None:
    """Return a layout that fits and is found before the time `end`; None without one."""
    if time.monotonic() > end:
        return None
    try:
        space = job_space(costs.model, cluster, job)
    except InputError:  # nothing keeps what the job gives
        return None
    prices = LayerPrices(costs.model, cluster, costs.prices.calibration)
    there = replace(costs, cluster=cluster, job=job, prices=prices)
    return search_job(space, prices, there.judge, gap=gap, deadline=end).best


def with_memory(cluster: TrainingCluster, most: float | None, times: float) -> TrainingCluster:
    """Return a cluster whose devices have `times` the bytes that may be used, `most` each."""
    nodes = []
    for one in cluster.nodes:
        size = times * min(one.accelerator.memory_bytes, most or np.inf)
        nodes.append(replace(one, accelerator=replace(one.accelerator, memory_bytes=size)))
    return replace(cluster, nodes=tuple(nodes))
