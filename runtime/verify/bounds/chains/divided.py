"""The best makespan of work that can be divided at will among a chain of stages, by paths.

Let F and C be the forward and the backward compute of all blocks, each on its fastest device. A
chain of P stages divides them: Σ_s f_s ≥ F and Σ_s c_s ≥ C. With weights y ≥ 0 of any paths of the
schedule, Σ_π y_π = 1, and ω the part of c_s that computes gradients of weights, no chain is below

    min_s (Σ_π y_π n_πsF) F + min_s (Σ_π y_π (n_πsB + (1 − ω) n_πsI + ω n_πsW)) C

SciPy proposes y by a linear program over the paths at hand, and a division of the work; what is
longest there is the next path. Whatever y it says, this is a bound of all chains of P stages, and
the least over P one of the problem.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....instances import Costs, Iteration, Throughput, Workload
from .....instances.common.arrays import Floats
from ..max_load import ROUNDING, blocks
from .schedule_paths import SchedulePaths, paths_of

#: Actions that are executed for all numbers of stages at most, and paths for one of them.
ACTIONS, PATHS = 20_000_000, 500


def divided_work_bound(
    workload: Workload, costs: Costs, problem: Iteration, target: float
) -> float:
    """Return a bound on the makespan of every chain of stages; once it is `target` no more.

    Parameters
    ----------
    problem
        With a contiguous split.
    """
    block = blocks(workload, costs, Throughput(split=problem.split))
    time = np.zeros((len(costs.count), 2, int(block.max(initial=-1)) + 1))
    for own, compute in zip(time, costs.compute, strict=True):
        np.add.at(own, (workload.backward.astype(np.int64), block), compute)
    work = time[costs.count > 0].min(axis=0).sum(axis=1)
    if not np.isfinite(work).all() or not work.any():
        return 0.0
    trains, least, left = bool(workload.backward.any()), np.inf, ACTIONS
    for size in _sizes(problem, int(costs.count.sum()), time.shape[2]):
        busy = problem.microbatches * float(work.sum()) / (max(problem.devices_of(size)) + 1)
        if busy >= min(target, least):
            continue
        paths = paths_of(problem, size, trains=trains)
        rounds = min(PATHS, left // len(paths.which))
        found = _divided(paths, work, problem.weight_share, target, rounds)
        left -= rounds * len(paths.which)
        least = min(least, max(busy, found))
    return min(target, least) * (1 - ROUNDING)


def _sizes(problem: Iteration, devices: int, blocks: int) -> list[int]:
    """Return the numbers of stages that a chain can have, the largest first."""
    if problem.order:
        return [len(problem.order.device)]
    chunks = problem.chunks_per_device
    most = min(devices * chunks, blocks)
    most = min(most, problem.placement_rules.max_stages or most)
    able = (d for d in range(most // chunks, 0, -1) if chunks == 1 or problem.microbatches % d == 0)
    return [chunks * d for d in able]


def _divided(paths: SchedulePaths, work: Floats, share: float, target: float, rounds: int) -> float:
    """Return the bound of all chains of so many stages."""
    from scipy.optimize import linprog

    size, total = int(paths.which[:, 0].max()) + 1, float(work.sum())
    staying = 1e-3 + np.eye(size)  # nearly all work on one stage
    best, rows = 0.0, [_row(paths, work[:, None] * part, share)[1] for part in staying]
    for _ in range(rounds - len(rows)):
        table = np.array(rows)  # (paths, 2, P)
        free = -np.repeat(np.eye(2), size, axis=0)  # the least of each pass, below that of a stage
        solved: Any = linprog(
            np.append(np.zeros(len(rows)), -work / total),
            A_ub=np.hstack([-table.reshape(len(rows), -1).T, -free]),
            b_ub=np.zeros(2 * size),
            A_eq=np.append(np.ones(len(rows)), [0.0, 0.0])[None],
            b_eq=[1.0],
            bounds=[(0.0, None)] * (len(rows) + 2),
        )
        if solved.x is None:
            break
        weights = np.maximum(np.asarray(solved.x[: len(rows)], np.float64), 0.0)
        weights /= max(1.0, float(weights.sum()) * (1 + ROUNDING))
        best = max(best, float(np.tensordot(weights, table, axes=1).min(axis=1) @ work))
        division = -total * np.asarray(solved.ineqlin.marginals).reshape(2, size)
        makespan, row = _row(paths, division, share)
        if best >= min(target, makespan) or any((row == known).all() for known in rows):
            break
        rows.append(row)
    return best


def _row(paths: SchedulePaths, division: Floats, share: float) -> tuple[float, Floats]:
    """Return the makespan of a division, and how often a longest path has each pass; both (2, P).

    Parameters
    ----------
    share
        ω.
    """
    f, c = division
    makespan, n = paths.longest(np.column_stack((f, c, (1 - share) * c, share * c)))
    return makespan, np.array([n[:, 0], n[:, 1] + (1 - share) * n[:, 2] + share * n[:, 3]])
