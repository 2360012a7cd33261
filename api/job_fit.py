"""Why no layout of a training job fits its devices, and which change lets one fit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from ..formulations.job.bounds import first_bounds
from ..formulations.job.memory import memory_limit
from ..formulations.job.rates import rates
from ..formulations.job.space import JobSpace, job_space
from ..instances import InputError
from ..instances.costs.hardware import TrainingCluster
from ..instances.costs.layers import LayerPrices
from ..instances.job.problem import OPEN, TrainingJob
from ..solvers.job.search import search_job
from .job_costs import JobCosts

#: Doublings of the nodes that are looked at, and seconds in which a change is looked for.
DOUBLINGS, SECONDS = 7, 10.0


def why_nothing_fits(costs: JobCosts, space: JobSpace) -> tuple[str, float]:
    """Return in one line what is missing and what helps, and bytes without which nothing fits."""
    device, limit = costs.cluster.accelerator, memory_limit(space)
    least = _least_memory(costs, space)
    has = f"{device.name} has {device.memory_bytes / 2**30:.1f}"
    if limit < device.memory_bytes:
        has = f"{limit / 2**30:.1f} are allowed"
    needs = f"needs at least {least / 2**30:.1f} GiB per device in any layout, and {has}"
    if least <= limit:  # as a whole: only programs have ruled out every layout
        needs = f"needs more than the {limit / 2**30:.1f} GiB of {device.name}"
    helps = next(_changes_that_fit(costs), "")
    return f"{costs.model.name} {needs}" + (f"; it fits {helps}" if helps else ""), least


def _least_memory(costs: JobCosts, space: JobSpace) -> float:
    """Return bytes of a device, to half a percent, with fewer of which nothing fits."""
    table = rates(space, costs.prices)

    def some_fit(limit: float) -> bool:
        cluster = with_memory(costs.cluster, limit)
        wider = replace(space, cluster=cluster, job=replace(costs.job, memory_bytes=None))
        return bool(first_bounds(wider, table, costs.prices).fits.any())

    low = high = memory_limit(space)
    while not some_fit(high):
        high *= 2
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if some_fit(middle) else (middle, high)
    return high


def _changes_that_fit(costs: JobCosts) -> Iterator[str]:
    """Yield changes with which a layout has been found that fits, the smallest first."""
    end = time.monotonic() + SECONDS
    usual: dict[str, Any] = {field.name: field.default for field in fields(TrainingJob)}
    for name in (*OPEN, "recompute", "schedules", "memory_bytes"):
        given = getattr(costs.job, name)
        freed = replace(costs.job, **{name: usual[name]})
        if given != usual[name] and _has_plan(costs, costs.cluster, freed, end):
            yield f"with {name} left open" if name != "memory_bytes" else "with all of its memory"
    for doubling in range(1, DOUBLINGS + 1):
        nodes = tuple(replace(one, count=one.count << doubling) for one in costs.cluster.nodes)
        more = replace(costs.cluster, nodes=nodes)
        if _has_plan(costs, more, costs.job, end):
            yield f"on {more.devices} of them"


def _has_plan(costs: JobCosts, cluster: TrainingCluster, job: TrainingJob, end: float) -> bool:
    """Whether a search finds any layout that fits before a moment of `time.monotonic`."""
    if time.monotonic() > end:
        return False
    try:
        space = job_space(costs.model, cluster, job)
    except InputError:  # nothing keeps what the job gives
        return False
    prices = LayerPrices(costs.model, cluster, costs.prices.calibration)
    there = replace(costs, cluster=cluster, job=job, prices=prices)
    found = search_job(space, prices, there.judge, gap=0.99, deadline=end)
    return found.best is not None


def with_memory(cluster: TrainingCluster, memory_bytes: float) -> TrainingCluster:
    """Return a cluster whose devices have so many bytes."""
    nodes = tuple(
        replace(one, accelerator=replace(one.accelerator, memory_bytes=memory_bytes))
        for one in cluster.nodes
    )
    return replace(cluster, nodes=nodes)
