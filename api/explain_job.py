"""Explanation of a training job's plan, decision by decision, and differences of two plans.

For each decision of a plan (tensor degree, ZeRO stage, …) alone: the best layout known with another
value, and a bound for all such layouts. Two plans are compared by the terms of their seconds and of
their fullest rank's bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from ..formulations.job.space import JobSpace, job_space
from ..instances.costs.calibration import Calibration
from ..instances.costs.layout import OFFLOAD, Layout, without_counts
from ..instances.costs.memory import RankStages, passes_in_flight, rank_memory, stage_kept
from ..instances.costs.stages import message_time, stage_times
from ..instances.job.plan import JobPlan, Reason
from ..instances.model.cluster import Link
from ..runtime.simulate.network import point_to_point
from ..runtime.simulate.result import Simulation
from ..runtime.simulate.simulator import simulate_stages
from ..runtime.simulate.stages import chain
from ..solvers.job.search import search_job
from .job import UsualChoice, judge_usual, plan_costs

#: Fields of a layout that are explained, a decision each.
DECISIONS = (
    "tensor", "context", "pipeline", "chunks", "data", "expert", "zero", "microbatch", "schedule",
    "recompute", *OFFLOAD,
)  # fmt: skip
#: Decisions that one pipeline rank does not have.
OF_PIPELINES = ("schedule", "chunks")
#: Relative gap at which a search with another decision ends.
ALTERNATIVE_GAP = 5e-3


@dataclass(frozen=True)
class DecisionAlternative:
    """Best layout known with another value of one field of a plan's layout, and a bound."""

    field: str  # of `Layout`
    layout: Layout | None  # the best layout found with another value; None if none was found
    seconds: float  # of its iteration; infinite without a layout
    bound: float  # no layout of the declared space with another value takes fewer seconds
    # seconds by term that it takes longer than the plan, the largest first; negative if shorter
    behind: Mapping[str, float]


@dataclass(frozen=True)
class JobExplanation:
    """Explanation of a plan: terms of its time and memory, and each decision's alternatives."""

    plan: JobPlan
    terms: Mapping[str, float]  # seconds of its iteration
    memory: Mapping[str, float]  # bytes of its fullest rank by term, and what is free
    decisions: tuple[DecisionAlternative, ...]  # the fastest alternative first
    usual: tuple[UsualChoice, ...]  # layouts by common rules
    points: Mapping[Reason, int]  # number of outer points by the reason that rules them out


def explain_job(
    plan: JobPlan, *, calibration: Calibration | None = None, seconds: float = 20.0
) -> JobExplanation:
    """Return the explanation of a plan: its terms, and the alternatives to each decision alone.

    `calibration` are the efficiencies that it was made with; default: the shipped ones. `seconds`
    is the time of all searches together, whose results so far count when it is up; 0: no
    alternatives.

    Examples
    --------
    >>> from stagecut.api.job import solve_job
    >>> from stagecut.instances.job.problem import TrainingJob
    >>> found = solve_job("llama3.2-1b", "h100:8", TrainingJob(global_batch=64, sequence=4096))
    >>> why = explain_job(found.plan)
    >>> all(one.bound <= one.seconds for one in why.decisions)
    True
    """
    begin = time.monotonic()
    costs = plan_costs(plan, calibration)
    space = job_space(costs.model, costs.cluster, plan.job)
    terms = costs.time(plan.layout).terms
    columns = _columns(space)
    own = {name: _value(plan.layout, name, space) for name in DECISIONS}
    others = {name: columns[name] != own[name] for name in DECISIONS}
    for name in OF_PIPELINES:
        others[name] &= (space.pipeline > 1) & (plan.layout.pipeline > 1)
    others = {name: other for name, other in others.items() if other.any() and seconds}
    usual = costs.usual()
    search = partial(search_job, space, costs.prices, costs.judge)
    again = search(
        [plan.layout, *costs.starts(usual)], gap=ALTERNATIVE_GAP, deadline=begin + seconds / 4
    )
    known, bounds = dict(again.tried), again.bound.copy()  # what all searches have found

    def best_other(name: str) -> Layout | None:
        layouts = [
            one
            for one in known
            if _value(one, name, space) != own[name]
            and (one.pipeline > 1 or name not in OF_PIPELINES)
        ]
        return min(layouts, key=known.__getitem__, default=None)

    for done, (name, other) in enumerate(others.items()):
        start = best_other(name)
        now = time.monotonic()
        deadline = now + (begin + seconds - now) / (len(others) - done)
        alternative = search(
            [] if start is None else [start],
            gap=ALTERNATIVE_GAP,
            deadline=deadline,
            known=np.where(other, bounds, np.inf),
        )
        known.update(alternative.tried)
        bounds[other] = alternative.bound[other]
    decisions = []
    for name, other in others.items():
        best = best_other(name)
        took = np.inf if best is None else known[best]
        behind = {} if best is None else _behind(costs.time(best).terms, terms)
        bound = min(float(bounds[other].min()), took)
        decisions.append(DecisionAlternative(name, best, took, bound, behind))
    decisions.sort(key=lambda one: (one.seconds, one.bound))
    most, free = costs.fullest(plan.layout)
    return JobExplanation(
        plan, terms, {**vars(most), "free": free}, tuple(decisions),
        judge_usual(costs, plan.layout, usual), plan.certificate.points,
    )  # fmt: skip


def _value(layout: Layout, name: str, space: JobSpace) -> object:
    """Return a decision's value; of recomputation the modules, empty if layers are counted."""
    if name == "recompute":
        by_layer = space.job.counts_layers(layout)
        return "" if by_layer else " ".join(sorted(layout.recompute))
    return str(layout.schedule) if name == "schedule" else getattr(layout, name)


def _columns(space: JobSpace) -> dict[str, Any]:
    """Return the decisions at all points, each of shape (points,)."""
    found = {
        name: np.array([_value(one, name, space) for one in space.settings])[space.setting]
        for name in ("tensor", "context", "expert", "microbatch", "recompute", *OFFLOAD)
    }
    for name in ("pipeline", "chunks", "data", "zero"):
        found[name] = getattr(space, name)
    found["schedule"] = np.array([str(one) for one in space.schedules])[space.schedule]
    return found


def _behind(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the differences of terms, `one` less `other`, the largest first."""
    found = {name: one[name] - other[name] for name in one if one[name] != other[name]}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class JobDifference:
    """Differences of two plans of training jobs: fields, seconds and bytes."""

    # asked, layout: both values of each field that differs
    asked: Mapping[str, tuple[object, object]]
    layout: Mapping[str, tuple[object, object]]
    seconds: tuple[float, float]  # of an iteration of each
    terms: Mapping[str, float]  # seconds that the second takes longer, the largest first
    memory: Mapping[str, float]  # bytes that the second's fullest rank takes more, the same


def diff_jobs(
    one: JobPlan,
    two: JobPlan,
    *,
    calibrations: tuple[Calibration | None, Calibration | None] = (None, None),
) -> JobDifference:
    """Return the differences of two plans: jobs as posed, layouts, seconds and bytes by term.

    `calibrations` are the efficiencies that each was made with; default: the shipped ones.

    Examples
    --------
    >>> from stagecut.api.job import solve_job
    >>> from stagecut.instances.job.problem import TrainingJob
    >>> job = TrainingJob(global_batch=64, sequence=4096, tensor=1)
    >>> wide = TrainingJob(global_batch=64, sequence=4096, tensor=2)
    >>> plans = [solve_job("llama3.2-1b", "h100:8", one).plan for one in (job, wide)]
    >>> diff_jobs(*plans).layout["tensor"]
    (1, 2)
    """
    asked: dict[str, tuple[object, object]] = {}
    if one.model != two.model:
        asked["model"] = (one.model.name, two.model.name)
    if one.cluster != two.cluster:
        asked["cluster"] = (one.cluster.kinds, two.cluster.kinds)
    asked |= _fields(one.job, two.job)
    costs = list(map(plan_costs, (one, two), calibrations))
    pairs = list(zip(costs, (one.layout, two.layout), strict=True))
    terms = [own.time(layout).terms for own, layout in pairs]
    memory = [vars(own.fullest(layout)[0]) for own, layout in pairs]
    return JobDifference(
        asked,
        _fields(*(without_counts(plan.model, plan.layout) for plan in (one, two))),
        (one.seconds, two.seconds),
        _behind(terms[1], terms[0]),
        _behind(memory[1], memory[0]),
    )


def _fields(one: object, two: object) -> dict[str, tuple[object, object]]:
    """Return the fields of two dataclasses of one type that differ."""
    names = [field.name for field in fields(one)]  # type: ignore[arg-type]
    pairs = {name: (getattr(one, name), getattr(two, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def simulate_job(plan: JobPlan, *, calibration: Calibration | None = None) -> Simulation:
    """Return the simulation of a plan: each pipeline rank's actions in seconds, and its bytes.

    It covers the schedule alone: the traffic of replicas and the optimizer step that follow it are
    left out. Where a schedule splits backward passes, all stages split theirs in the same
    proportion, that of the sums. Besides activations, each rank holds a constant number of bytes,
    chosen such that its peak is that of `rank_memory`. `calibration` as of `explain_job`.

    Examples
    --------
    >>> from stagecut.api.job import solve_job
    >>> from stagecut.instances.job.problem import TrainingJob
    >>> job = TrainingJob(global_batch=16, sequence=4096, pipeline=2)
    >>> found = solve_job("llama3.2-1b", "h100:8", job)
    >>> simulate_job(found.plan).makespan < found.plan.seconds
    True
    """
    layout, model = plan.layout, plan.model
    prices = plan_costs(plan, calibration).prices
    stages = stage_times(layout, prices)
    divided = RankStages.of(model, layout)
    weight = sum(one.weights for one in stages) / sum(one.backward for one in stages)
    device, kept = [0] * layout.stages, [0.0] * layout.stages
    activations = [stage_kept(model, layout, stage, divided) for stage in range(layout.stages)]
    for rank in range(layout.pipeline):
        own = layout.rank_stages(rank)
        most = max(
            sum(count * activations[stage] for stage, count in moment.items())
            for moment in passes_in_flight(layout, rank)
        )
        kept[own[0]] = rank_memory(model, layout, rank, divided).needed - most
        for stage in own:
            device[stage] = rank
    graph = chain(
        [one.forward for one in stages],
        [one.backward for one in stages],
        device=device,
        payload_bytes=[1.0] * (layout.stages - 1),
        weight_bytes=kept,
        activation_bytes=activations,
        weight_share=weight,
        batch=layout.microbatches,
    )
    ranks = tuple(f"rank {rank}" for rank in range(layout.pipeline))
    graph = replace(graph, time_unit="s", devices=ranks)
    network = point_to_point(layout.pipeline, Link(message_time(layout, prices), 1e30))
    return simulate_stages(graph, layout.schedule.value, layout.microbatches, network=network)
