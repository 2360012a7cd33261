"""Cheap lower bounds on the makespan of an iteration.

*M times max-load*: the busiest device does its work M times. *Divisible work*: no chain of stages
is faster than the best division of all compute over P stages, which a linear program finds.

Let F and C be the compute of all forward and all backward nodes on the fastest kind of device. For
a number of stages P, and any set of paths (equation 1 of `line`),

    minimise T   s.t.  T ≥ Σ_s n_πsF f_s + (n_πsB + (1 − ω) n_πsI + ω n_πsW) c_s   for each path π
                       Σ_s f_s = F,  Σ_s c_s = C,  f, c ≥ 0

is below the makespan of every plan with P stages. Paths are added until the makespan of the
solution, executed, is its T. The duals of the path rows, which add up to 1, price actions: with
α = Σ_π y_π n_π, every plan has a makespan of at least Σ_s α_s · (its durations).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ...instances import PipelineJob, Split, Throughput
from ...instances.common.arrays import Floats
from ...instances.common.kernel import NotCompiled, compiled_only_if
from ...instances.model.workload import kept_bytes
from ..linear import MatrixEntries, SolverError, least_cost
from ..task import Task, pose
from ..throughput.certificate import PROOF_MARGIN
from ..throughput.cheap_bounds import compute_bounds, units_of_split
from ..throughput.hypergraph import Hypergraph, hypergraph
from .line import numbers_of_stages
from .orders import Chain, order_of

#: Origin of the bound.
ORIGIN = "work that can be divided at will"


#: Work of each other stage, as a fraction of that of the one stage with nearly all work.
LIGHT = 1e-3


#: Most paths added, and the relative distance of bound and makespan at which to stop.
ROUNDS, CLOSE = 60, 1e-4


@dataclass(frozen=True, eq=False)
class Divided:
    """Lower bound for all plans with P stages, and the prices that prove it."""

    #: Lower bound on the makespan: forward and backward work, each at its cheapest price.
    bound: float
    #: Shape (P, 4): price of a unit of time of each stage's actions of each kind.
    prices: Floats


#: Most passes of a schedule for which this bound is computed before a search; executing more takes
#: too long.
MOST_PASSES = 1_500


def iteration_cheap_bounds(task: Task[PipelineJob]) -> Iterator[tuple[float, str]]:
    """Yield lower bounds on the makespan with their origins, the quickest first."""
    problem = task.problem
    inner = max_load_task(task)
    graph = hypergraph(inner, units_of_split(inner))
    for bound, origin in compute_bounds(inner, graph):
        yield problem.batch * bound, origin
    if problem.split == Split.CONTIGUOUS:
        with suppress(NotCompiled), compiled_only_if(lambda: False):
            yield from _divisible(task, graph)


def _divisible(task: Task[PipelineJob], graph: Hypergraph) -> Iterator[tuple[float, str]]:
    """Yield the bound by divisible work, if no schedule has many passes."""
    kinds = np.flatnonzero(task.costs.count)
    work = graph.compute[kinds].min(axis=0).sum(axis=1)
    sizes = numbers_of_stages(task.problem, task.cluster.size, graph.size)
    most = 2 * task.problem.batch * max(sizes, default=0)
    if sizes and most <= MOST_PASSES and np.isfinite(work).all():
        yield divisible_bound(task.problem, sizes, work), ORIGIN


def max_load_task(task: Task[PipelineJob]) -> Task[Throughput]:
    """Return the throughput task whose objective, times M, bounds every plan's makespan from below.

    Every plan of the iteration is a solution of this task. All stages of a chain on one device hold
    the activations of one microbatch at the same time. The pieces of other splits, and several
    stages without a backward pass, need not, so that only resident bytes count for them.
    """
    problem, workload = task.problem, task.workload
    shared = problem.chunks_per_device > 1
    split = Split.NONCONTIGUOUS if shared else problem.split
    if problem.split != Split.CONTIGUOUS or (shared and not workload.backward.any()):
        _, resident, _ = kept_bytes(workload)
        workload = replace(workload, memory_bytes=resident)
    return pose(workload, task.cluster, Throughput(split=split, overlap=problem.overlap))


def divisible_bound(problem: PipelineJob, sizes: Sequence[int], work: Floats) -> float:
    """Return the least makespan of freely divisible work: no chain of stages is faster.

    `sizes` are the possible numbers of stages; `work` is the forward and the backward time of a
    microbatch, with each unit on its fastest device.
    """
    forward, compute = work.tolist()
    least = np.inf
    for size in sorted(sizes, reverse=True):  # numbers with low bounds tend to come first
        devices = max(problem.devices_of(size)) + 1
        if problem.batch * (forward + compute) / devices < least:
            chain = Chain(order_of(problem, size, compute > 0), problem.weight_share)
            least = min(least, divide(chain, forward, compute, enough=least).bound)
    return least * (1 - PROOF_MARGIN)


def divide(chain: Chain, forward: float, compute: float, *, enough: float = np.inf) -> Divided:
    """Return the bound for `forward` and `compute` (backward) work; stop once it is `enough`."""
    stages = chain.order.stages
    share = np.full((2, stages), 1 / stages)
    paths = [staying(chain, s, forward, compute) for s in range(stages)]
    best = Divided(-np.inf, np.zeros((stages, 4)))
    for _ in range(ROUNDS):
        f, c = forward * share[0], compute * share[1]
        makespan, counts, _ = chain.longest_path(chain.durations(f, c, c))
        if makespan <= 0:
            return Divided(0.0, counts)
        paths.append(counts)
        rows = np.array([np.concatenate(per_pass(one, chain.share)) for one in paths])
        rows *= np.repeat([forward, compute], stages) / makespan
        solution, weights = mix(rows, np.repeat(np.eye(2), stages, axis=1))
        prices = np.tensordot(weights, np.array(paths), axes=1)
        ahead, back = per_pass(prices, chain.share)
        bound = float(forward * ahead.min() + compute * back.min())
        if bound > best.bound:
            best = Divided(bound, prices)
        if best.bound >= min(enough, makespan * (1 - CLOSE)):
            break
        share = solution.reshape(2, stages)
    return best


def staying(chain: Chain, s: int, forward: float, compute: float) -> Floats:
    """Return the action counts of a longest path if stage s has nearly all work, shape (P, 4)."""
    share = np.full(chain.order.stages, LIGHT)
    share[s] = 1.0
    f, c = forward * share, compute * share
    return chain.longest_path(chain.durations(f, c, c))[1]


def per_pass(counts: Floats, share: float) -> tuple[Floats, Floats]:
    """Return counts, or prices, of each stage's forward and backward compute, shapes (P,)."""
    return counts[:, 0], counts[:, 1] + (1 - share) * counts[:, 2] + share * counts[:, 3]


def mix(rows: Floats, equal: Floats) -> tuple[Floats, Floats]:
    """Solve min T s.t. T ≥ (rows · x)_π for each path π, equal · x = 1, x ≥ 0.

    `rows`, shape (paths, variables), has entries of order 1. Returns x, and the duals of the paths,
    which add up to 1. Raises `SolverError` if HiGHS finds no optimum.
    """
    paths, variables = rows.shape
    matrix = np.vstack(
        [
            np.hstack([rows, -np.ones((paths, 1))]),
            np.hstack([equal, np.zeros((len(equal), 1))]),
        ]
    )
    row, column = np.nonzero(matrix)
    sides = np.append(np.zeros(paths), np.ones(len(equal)))
    found = least_cost(
        np.append(np.zeros(variables), 1.0),
        np.append(np.zeros(variables), -np.inf),
        MatrixEntries(row, column, matrix[row, column]),
        np.append(np.full(paths, -np.inf), np.ones(len(equal))),
        sides,
    )
    weights = np.zeros(paths) if found is None else np.maximum(-found.row_duals[:paths], 0.0)
    if found is None or weights.sum() <= 0:  # an optimum exists, and its weights add up to 1
        raise SolverError("HiGHS finds no optimum of a mixture of paths")
    return found.x[:variables], weights / weights.sum()
