"""Remedies: solutions of the problem with one change, searched from the plan.

Where there is no plan: the least memory, and the least number of devices, for which one was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ..instances import (
    Cluster,
    DeviceKind,
    InputError,
    Latency,
    Link,
    PairLink,
    PipelineJob,
    PipelineSchedule,
    Plan,
    Problem,
    Recomputation,
    Split,
    Throughput,
    Tied,
    Workload,
    is_iteration,
    is_stream,
)
from ..instances.common.units import FROM_PYTORCH, show_bytes, show_percent
from ..instances.model.tied_weights import are_copied, tied_as
from ..instances.model.workload import kept_bytes
from ..solvers import DEFAULT_LIMITS, Limits
from .explanation import Remedy
from .solve import solve

T = TypeVar("T")

#: Texts of changes of memory, and of none, by which their remedies are found.
MORE, NO_LIMIT, NOTHING = "more memory", "no limit on memory", "nothing (a further search)"

#: Factors on memory and on the speed of links that are tried.
MORE_MEMORY, FASTER = 1.25, 2.0
#: Most colours of several forward nodes, in order of work, that are left out, each alone.
MOST_COLOURS = 3
#: Most placement rules that are left out, each alone.
MOST_RULES = 5
#: Schedules that are tried.
FAST_SCHEDULES = (
    PipelineSchedule.ONE_F_ONE_B,
    PipelineSchedule.INTERLEAVED,
    PipelineSchedule.ZB_H1,
    PipelineSchedule.ZB_H2,
)
#: A plan within this gap needs no further search of the same problem.
CLOSE = 1e-3


@dataclass(frozen=True)
class _Case:
    """A problem with one change; the plan is a start for it if its nodes are the same."""

    change: str
    workload: Workload
    cluster: Cluster
    problem: Problem


def remedies(workload: Workload, plan: Plan, seconds: float) -> tuple[Remedy, ...]:
    """Return the effects of changes of the problem; `seconds` is the time of all searches."""
    cases = list(_cases(workload, plan))
    each = replace(DEFAULT_LIMITS[plan.problem.name], seconds=seconds / max(1, len(cases)))
    bound = -math.inf if plan.of_given_stages else plan.bound
    return _capped([_solved(case, plan, each) for case in cases], bound)


def _capped(found: list[Remedy], bound: float) -> tuple[Remedy, ...]:
    """Return remedies with the bound of unlimited memory applied to more memory, and to none.

    `bound` is the plan's own, if it holds for all plans of the unchanged problem.
    """
    free = [remedy.bound for remedy in found if remedy.change == NO_LIMIT]
    least = max(free, default=-math.inf)

    def known(change: str) -> float:
        if change == NOTHING:
            return max(bound, least)
        return least if MORE in change else -math.inf

    return tuple(replace(one, bound=max(one.bound, known(one.change))) for one in found)


def _solved(case: _Case, plan: Plan, limits: Limits) -> Remedy:
    start = None
    if len(plan.placement) == case.workload.n:
        start = replace(plan, workload_fingerprint=case.workload.fingerprint)
    try:
        result = solve(case.workload, case.cluster, case.problem, limits=limits, start=start)
    except InputError:  # such as microbatches that do not divide by one more device
        return Remedy(case.change, None, -math.inf)
    return Remedy(case.change, result.objective, result.bound)


def _cases(workload: Workload, plan: Plan) -> Iterator[_Case]:
    cluster, problem = plan.cluster, plan.problem
    if plan.gap > CLOSE:
        yield _Case(NOTHING, workload, cluster, problem)
    for k, kind in enumerate(cluster.kinds):
        if not kind.host and kind.count:
            yield _Case(
                f"one more {kind.name}", workload, _with(cluster, k, count=kind.count + 1), problem
            )
    limited = [k for k in cluster.kinds if k.count and math.isfinite(k.memory_bytes)]
    if any(kind.memory_bytes < most_bytes(workload, problem) for kind in limited):
        each = " and ".join(show_bytes(MORE_MEMORY * kind.memory_bytes) for kind in limited)
        yield _Case(
            f"{show_percent(MORE_MEMORY - 1, 0)} {MORE} ({each})",
            workload,
            memory_times(cluster, MORE_MEMORY),
            problem,
        )
        yield _Case(NO_LIMIT, workload, memory_times(cluster, math.inf), problem)
    yield from _faster_links(workload, cluster, problem)
    yield from _freed(workload, cluster, problem)
    for change, changed in (*_without_rules(problem), *_other_options(workload, problem)):
        yield _Case(change, workload, cluster, changed)


def most_bytes(workload: Workload, problem: Problem) -> float:
    """Return an upper bound on the bytes of any device.

    All nodes, and of an iteration the activations of all its microbatches: a schedule that
    waits for the end of an iteration has one version of the weights.
    """
    if is_stream(problem):
        return math.inf  # copies in stages and replicas; no limit is known without planning
    if is_iteration(problem):
        _, resident, activations = kept_bytes(workload)
        return float(resident.sum() + problem.batch * activations.sum())
    return float(workload.memory_bytes.sum())


def _with(cluster: Cluster, k: int, **changes: float) -> Cluster:
    kinds = list(cluster.kinds)
    kinds[k] = replace(kinds[k], **changes)  # type: ignore[arg-type]  # the kind checks it
    return replace(cluster, kinds=tuple(kinds))


def memory_times(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster with the memory of all accelerators multiplied by a factor."""

    def more(kind: DeviceKind) -> DeviceKind:
        return kind if kind.host else replace(kind, memory_bytes=kind.memory_bytes * factor)

    return replace(cluster, kinds=tuple(map(more, cluster.kinds)))


def _faster_links(workload: Workload, cluster: Cluster, problem: Problem) -> Iterator[_Case]:
    """Yield the problem with links that are `FASTER` times as fast, where transfers take time."""
    change = f"links {FASTER:g} times as fast"

    def faster(link: Link | None) -> Link | None:
        return link and Link(link.latency_s / FASTER, link.bytes_per_s * FASTER)

    if is_stream(problem):
        if problem.bandwidth is not None:
            quicker = replace(problem, bandwidth=FASTER * problem.bandwidth)
            yield _Case(change, workload, cluster, quicker)
        elif workload.layers is not None and workload.layers.bandwidth is not None:
            layers = replace(workload.layers, bandwidth=FASTER * workload.layers.bandwidth)
            yield _Case(change, replace(workload, layers=layers), cluster, problem)
        return
    kinds = tuple(replace(kind, link=faster(kind.link)) for kind in cluster.kinds)
    pairs = tuple(PairLink(p.ends, faster(p.link) or p.link) for p in cluster.links)
    timed = any(kind.count and not kind.host and kind.link is None for kind in cluster.kinds)
    transfer = workload.transfer
    if timed and transfer is not None:
        workload = replace(workload, transfer=transfer / FASTER)
    yield _Case(change, workload, replace(cluster, kinds=kinds, links=pairs), problem)


def _freed(workload: Workload, cluster: Cluster, problem: Problem) -> Iterator[_Case]:
    """Yield the problem without tied weights, and without large colours that can be left out."""
    tied = {int(workload.colours[copy.holder]) for tie in workload.ties for copy in tie.copies}
    if workload.ties and not are_copied(workload):
        microbatches = problem.batch if is_iteration(problem) else 1
        copies = tied_as(workload, Tied.COPIES, microbatches)
        yield _Case("tied weights in copies (--tied copies)", copies, cluster, problem)
    elif are_copied(workload):
        tied = set()
    if workload.provenance.get("generator") == FROM_PYTORCH:
        return  # other colours of a traced model are what cannot run apart
    work = min(workload.times.values(), key=lambda times: float(times.sum()))
    large = [
        c
        for c, nodes in enumerate(workload.colour_classes)
        if c not in tied and int((~workload.backward[list(nodes)]).sum()) > 1
    ]
    large.sort(key=lambda c: (-float(work[list(workload.colour_classes[c])].sum()), c))
    for c in large[:MOST_COLOURS]:
        yield _Case(
            f"colour {workload.colour_labels[c]} not kept together",
            replace(workload, colours=np.where(workload.colours == c, -1, workload.colours)),
            cluster,
            problem,
        )


def _without_rules(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield the problem without each of the user's placement rules."""
    if not isinstance(problem, Throughput | Latency | PipelineJob):
        return
    rules = problem.placement_rules
    left = [
        (f"without pin {pattern}={number}", replace(rules, pins=_others(rules.pins, i)))
        for i, (pattern, number) in enumerate(rules.pins)
    ]
    left += [
        (f"without together {' '.join(one)}", replace(rules, together=_others(rules.together, i)))
        for i, one in enumerate(rules.together)
    ]
    left += [
        (f"without apart {' '.join(one)}", replace(rules, apart=_others(rules.apart, i)))
        for i, one in enumerate(rules.apart)
    ]
    if rules.fixed:
        left.append(("without the part of a plan that is fixed", replace(rules, fixed=())))
    if rules.max_stages is not None:
        left.append((f"more than {rules.max_stages} stages", replace(rules, max_stages=None)))
    for change, fewer in left[:MOST_RULES]:
        yield change, replace(problem, placement_rules=fewer)


def _others(rules: tuple[T, ...], i: int) -> tuple[T, ...]:
    return rules[:i] + rules[i + 1 :]


def _other_options(workload: Workload, problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield the problem with other splits, schedules, replicas and all else that is ruled out."""
    if isinstance(problem, Throughput) or is_iteration(problem):
        one_chain = not (is_iteration(problem) and (problem.chunks_per_device > 1 or problem.order))
        if problem.split is Split.CONTIGUOUS and one_chain and not problem.relayed:
            yield "split noncontiguous", replace(problem, split=Split.NONCONTIGUOUS)
    if is_iteration(problem) and workload.backward.any() and not problem.actions:
        for schedule in FAST_SCHEDULES:
            chained = problem.split is Split.CONTIGUOUS or schedule != PipelineSchedule.INTERLEAVED
            if schedule != problem.schedule and chained:
                yield f"schedule {schedule}", replace(problem, schedule=schedule, chunks=None)
    if is_stream(problem):
        if problem.replicas is not None:
            yield "any number of replicas", replace(problem, replicas=None)
        if problem.degrees is not None:
            yield "any tensor degree", replace(problem, degrees=None)
        if problem.recomputation != Recomputation.FREE:
            yield (
                "recomputation where it helps",
                replace(problem, recomputation=Recomputation.FREE),
            )


#: Most steps of the search for the least memory or number of devices: up, each to twice as much,
#: and down again, each to the middle.
STEPS_UP, STEPS_DOWN = 8, 5
#: Gap at which each of these searches ends: with almost any plan.
GAP = 0.999


def made_feasible(
    workload: Workload, cluster: Cluster, problem: Problem, seconds: float
) -> tuple[Remedy, ...]:
    """Return the least memory, and the least number of devices, for which a plan is found.

    `seconds` is the time of all searches together.
    """
    limits = Limits(seconds=seconds / (2 * (STEPS_UP + STEPS_DOWN)), gap=GAP)
    found = []
    limited = [k for k in cluster.kinds if k.count and math.isfinite(k.memory_bytes)]
    if limited:
        most = max(kind.memory_bytes for kind in limited)

        def with_memory(factor: float) -> tuple[Cluster, str]:
            given = " and ".join(show_bytes(factor * kind.memory_bytes) for kind in limited)
            return memory_times(cluster, factor), f"{given} of memory on each device"

        if most > 0:
            found.append(_least(workload, problem, with_memory, limits, whole=False))
    alike = [k for k, kind in enumerate(cluster.kinds) if not kind.host and kind.count]
    if len(alike) == 1:
        (k,) = alike
        kind = cluster.kinds[k]

        def with_devices(factor: float) -> tuple[Cluster, str]:
            count = round(factor * kind.count)
            return _with(cluster, k, count=count), f"{count} × {kind.name}"

        found.append(_least(workload, problem, with_devices, limits, whole=True, one=kind.count))
    return tuple(remedy for remedy in found if remedy is not None)


def _least(
    workload: Workload,
    problem: Problem,
    changed: Callable[[float], tuple[Cluster, str]],
    limits: Limits,
    *,
    whole: bool,
    one: int = 1,
) -> Remedy | None:
    """Return the remedy of the least factor with a plan, by doubling and halving; None without."""
    low, high, best = 1.0, math.inf, None
    for step in range(STEPS_UP + STEPS_DOWN):
        if math.isinf(high) and step >= STEPS_UP:
            return None
        factor = 2 * low if math.isinf(high) else (low + high) / 2
        if whole:
            factor = round(factor * one) / one
            if factor in (low, high):
                break
        cluster, change = changed(factor)
        try:
            result = solve(workload, cluster, problem, limits=limits)
        except InputError:  # such as more devices than can be planned for
            return best
        if result.plan is None:
            low = factor
        else:
            high, best = factor, Remedy(change, result.objective, result.bound)
    return best
