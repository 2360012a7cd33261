"""Transfers of a plan by cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...instances import Plan, Workload, is_stream, price
from ...runtime import Report, evaluate
from ...runtime.verify.report import loads_of
from .answers import Crossing
from .places import places_of


def crossings(workload: Workload, plan: Plan, report: Report, most: int) -> tuple[Crossing, ...]:
    """Return the outputs that cross between devices and cost most, the dearest first.

    What one costs is what the verifier finds less once it takes no time; so relays, links and
    schedules count as they do for the plan.

    Parameters
    ----------
    most
        How many to look at: those of the longest transfers.
    """
    places = places_of(plan)
    where = places.of.tolist()
    targets = {
        u: sorted({where[v] for v in after} - {where[u]})
        for u, after in enumerate(workload.successors)
    }
    crossing = [u for u, others in targets.items() if others]
    if is_stream(plan.problem):
        longest = _edge_bytes(workload)
    else:
        longest = price(workload, plan.cluster).transfer.max(axis=0)
    crossing.sort(key=lambda u: (-longest[u] * len(targets[u]), u))
    paid = _paid(plan, report)
    found = []
    for u in crossing[:most]:
        without = evaluate(_free(workload, u), plan.cluster, plan.problem, plan.solution)
        found.append(
            Crossing(
                node=workload.ids[u],
                source=places.names[where[u]],
                targets=tuple(places.names[p] for p in targets[u]),
                size_bytes=_size(workload, u),
                paid=max(0.0, paid - _paid(plan, without)),
                saved=max(0.0, report.objective - without.objective),
            )
        )
    return tuple(sorted(found, key=lambda c: (-c.paid, str(c.node))))


def _paid(plan: Plan, report: Report) -> float:
    return sum(load.transfer for load in loads_of(plan.problem, report))


def _free(workload: Workload, node: int) -> Workload:
    """Return the workload with the output of a node moved in no time."""
    if workload.layers is not None:
        edge_bytes = np.where(workload.edges[:, 0] == node, 0.0, workload.layers.edge_bytes)
        return replace(workload, layers=replace(workload.layers, edge_bytes=edge_bytes))
    keep = np.arange(workload.n) != node
    return replace(
        workload,
        transfer=None if workload.transfer is None else workload.transfer * keep,
        output_bytes=None if workload.output_bytes is None else workload.output_bytes * keep,
    )


def _edge_bytes(workload: Workload) -> np.ndarray:
    """Return the bytes that leave each node of a workload with layers, shape (n,)."""
    assert workload.layers is not None
    return np.bincount(workload.edges[:, 0], workload.layers.edge_bytes, minlength=workload.n)


def _size(workload: Workload, node: int) -> float | None:
    if workload.layers is not None:
        return float(_edge_bytes(workload)[node])
    return None if workload.output_bytes is None else float(workload.output_bytes[node])
