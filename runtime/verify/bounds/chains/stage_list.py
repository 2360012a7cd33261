"""All stages of chains whose devices do their work of an iteration within a target.

Times are in parts of the target over M, so that those of M microbatches are not above it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .....instances import Cluster, Iteration, Workload, price, without_links
from .....instances.common.arrays import Floats, Ints
from .....instances.model.kept_bytes import kept_bytes
from ..bound_check import too_much
from .ideals import ideals_of
from .stages import PARTS, WORK, Stages, bytes_in_parts, parts

#: Stages between ideals at most.
STAGES = 3_000_000


@dataclass(frozen=True, eq=False)
class ListedStages:
    """All stages that do their work of M microbatches within the target; R stages.

    Parameters
    ----------
    start, end
        Shape (R,): the numbers of the ideals between which they are.
    times
        Shape (4, R): of F, B, I and W, in parts of the target; the least over kinds of devices.
    resident, activation
        Shape (R,): bytes all the time and per microbatch, as a part of the roomiest device.
    ideals
        How many there are.
    most
        Stages of a chain at most.
    """

    start: Ints
    end: Ints
    times: Floats
    resident: Floats
    activation: Floats
    ideals: int
    most: int


def list_stages(
    workload: Workload, cluster: Cluster, problem: Iteration, target: float
) -> ListedStages:
    """List the stages of an iteration.

    Parameters
    ----------
    problem
        With a contiguous split and one stage on a device.
    target
        Of the makespan; above 0 and finite.

    Raises
    ------
    VerificationError
        If there are too many ideals or stages.

    Notes
    -----
    O(R E) for E sets of a node and its readers.
    """
    costs = without_links(price(workload, cluster), returning=False)
    backward, each = workload.backward, target / problem.microbatches
    waits = [
        (v, u) if backward[u] else (u, v)
        for u, v in workload.edges.tolist()
        if backward[u] == backward[v]
    ]
    ideals = ideals_of(workload, costs, waits)
    # what a device needs in its backward pass alone is received there: it is left out
    readers = [
        [v for v in others if problem.relayed or backward[u] or not backward[v]]
        for u, others in enumerate(workload.successors)
    ]
    stages = Stages.of(costs, ideals, each, (~backward, backward), readers, relayed=problem.relayed)
    _, resident, activation = kept_bytes(workload)
    used = [
        np.array([ideals.sums(kind) for kind in bytes_in_parts(values, costs)]).min(axis=0)
        for values in (resident, activation)
    ]
    kinds = range(len(stages.compute[0]))
    size = len(ideals.members)
    most = min(int(costs.count.sum()), ideals.members.shape[1] + ideals.left_out)
    most = min(most, problem.placement_rules.max_stages or most)
    least = ideals.sums(parts(costs.compute[costs.count > 0], each).min(axis=0))
    by_work = np.argsort(least, kind="stable")
    work = least[by_work]
    # a stage of what is left out takes no time, and others may have more microbatches in flight
    empty = np.arange(size if ideals.left_out else 0)
    columns: list[tuple[Ints, Ints, Floats]] = [(empty, empty, np.zeros((4, len(empty))))]
    count = looked = 0
    for ideal in np.flatnonzero(least <= (most - 1) * PARTS).tolist():
        begin, high = np.searchsorted(work, [least[ideal], least[ideal] + PARTS])
        ends = by_work[begin:high]
        ends = ends[ideals.inside(ideal, ends) & (least[-1] - least[ends] <= (most - 1) * PARTS)]
        times = np.full((4, len(ends)), np.inf)
        for kind in kinds:
            times = np.minimum(times, _times(stages, kind, ideal, ends, problem, workload.n))
        fits = np.isfinite(times[0])
        columns.append((np.full(int(fits.sum()), ideal), ends[fits], times[:, fits]))
        count += int(fits.sum())
        looked += len(ends) * max(1, len(stages.pins))
        if count > STAGES or looked > WORK:
            raise too_much("there are too many stages below it")
    start = np.concatenate([own for own, _, _ in columns])
    end = np.concatenate([own for _, own, _ in columns])
    times = np.concatenate([own for _, _, own in columns], axis=1)
    resident, activation = ((of[end] - of[start]) / (PARTS // 2) for of in used)
    return ListedStages(start, end, times / problem.microbatches, resident, activation, size, most)


def _times(
    stages: Stages, kind: int, ideal: int, ends: Ints, problem: Iteration, nodes: int
) -> Floats:
    """Return the times of F, B, I and W on a kind of device; `inf` beyond the target."""
    compute = [stages.time(number, kind, ideal, ends) for number in (0, 1)]
    moved = [np.zeros_like(compute[0])] * 2
    if not problem.overlap:
        moved = stages.transfers(kind, ideal, ends)
    forward, back = compute[0] + moved[0], compute[1] + moved[1]
    share = problem.weight_share
    # I is the difference of two times: what rounding took from the compute is added again
    rows = np.array([forward, back, back - share * (compute[1] + nodes), share * compute[1]])
    return np.where(forward + back < PARTS, np.maximum(rows, 0.0) / PARTS, np.inf)
