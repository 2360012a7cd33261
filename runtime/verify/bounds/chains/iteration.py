"""Whether some chain of stages has an iteration below a target: all chains, by paths and ideals.

Let each stage have a device of its own. The schedule fixes the order of actions, and with f_s, b_s
and c_s the forward and backward times of stage s and the compute of the latter, of which ω is for
gradients of weights, the makespan of a chain is the longest path

    T = max over paths π of Σ_s n_πsF f_s + n_πsB b_s + n_πsI (b_s − ω c_s) + n_πsW ω c_s

So weights y ≥ 0 of any paths, Σ_π y_π = 1, price actions: no chain is below the least sum of
prices, a shortest way through the ideals, stage by stage. A stage is ruled out where the shortest
way through it reaches the target. Paths are those that decide the makespan of chains that were
cheapest before, and SciPy proposes y, as the value of the matrix game between these. Whatever it
says, the prices are a proof. Where the game ends below the target, the chains that are left are
executed one and all if they are few. Else they are divided by one of their ideals, and both halves
are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .....instances import Cluster, Iteration, VerificationError, Workload
from .....instances.common.arrays import Floats, Ints
from ..bound_check import too_much
from .schedule_paths import SchedulePaths, paths_of
from .stage_list import ListedStages, list_stages

#: Rounds of a game, and parts into which chains are divided, at most.
ROUNDS, PARTS_OF_CHAINS = 100, 500

#: Chains that are looked at one by one, and mixtures by which they are left out.
CHAINS, KEPT = 100_000, 10

#: Rounding of prices, what prices are no longer raised by, and how far above the cheapest chain
#: others are kept, as parts of the target.
ROUNDING, CLOSE, NEAR = 1e-11, 1e-7, 1e-6


def no_iteration_below(
    workload: Workload, cluster: Cluster, problem: Iteration, target: float
) -> bool:
    """Whether every chain of stages on devices of their own takes `target` or longer.

    Transfers that overlap compute, links between devices, what kinds of devices there are how many
    of, and placement rules but the number of stages are left out, which makes no chain dearer.

    Parameters
    ----------
    problem
        With a contiguous split and one stage on a device.
    target
        Above 0 and finite.

    Raises
    ------
    VerificationError
        If there are too many ideals, stages or parts of the chains to look at all of them, or a
        given schedule has two stages on a device.
    """
    if problem.order and len(set(problem.order.device)) < len(problem.order.device):
        raise VerificationError("the schedule has two stages on a device")
    listed = list_stages(workload, cluster, problem, target)
    trains = bool(workload.backward.any())
    sizes = [len(problem.order.device)] if problem.order else range(1, listed.most + 1)
    return all(_refuted(listed, paths_of(problem, size, trains=trains)) for size in sizes)


class _Cheapest(NamedTuple):
    """The cheapest chain at some prices.

    Parameters
    ----------
    value
        Its price.
    chain
        Shape (P,): its stages.
    through
        For each place in the chain, the least price with each of the stages allowed there.
    """

    value: float
    chain: Ints
    through: list[Floats]


@dataclass(frozen=True, eq=False)
class _Part:
    """Some of the chains, and what is known of them.

    Parameters
    ----------
    allowed
        For each place in the chain, the stages that may be there.
    rows
        Counts of paths, shape (P, 4) each.
    chains
        Some of the chains, shape (P,) each.
    prices
        Mixtures of paths, shape (P, 4) each.
    """

    allowed: list[Ints]
    rows: list[Floats]
    chains: list[Ints]
    prices: list[Floats]


def _refuted(listed: ListedStages, paths: SchedulePaths) -> bool:
    """Whether no chain of so many stages is below the target."""
    fits = [listed.resident + held * listed.activation <= 1.0 for held in paths.held]
    size = len(fits)
    first = _Part([np.flatnonzero(own) for own in fits], [], [], [])
    for s in range(size):  # the paths that stay on one stage
        heavy = np.full((size, 4), 1e-3)
        heavy[s] = 1.0
        first.rows.append(paths.longest(heavy)[1])
        found = _cheapest(listed, first.rows[-1], first.allowed)
        if found is None:
            return True
        first = replace(first, allowed=_below(first.allowed, found))
    left = [first]
    for _ in range(PARTS_OF_CHAINS):
        if not left:
            return True
        part = _played(listed, paths, left.pop())
        if part is None:
            continue
        chains, complete = _chains(listed, part)
        if (paths.makespans(listed.times[:, chains]) < 1.0).any():
            return False
        if not complete:
            left += _divided(listed, part)
    raise too_much(f"too many chains of {size} stages are close to it")


def _played(listed: ListedStages, paths: SchedulePaths, part: _Part) -> _Part | None:
    """Return what is left below the target once prices rise no more; None for no chain."""
    allowed, rows, chains = part.allowed, list(part.rows), list(part.chains)
    prices: list[Floats] = []
    while True:
        costs = np.array([[_cost(listed, row, chain) for chain in chains] for row in rows])
        weights = _mixture(costs)
        prices.append(np.tensordot(weights, np.array(rows), axes=1))
        found = _cheapest(listed, prices[-1], allowed)
        if found is None or found.value >= 1.0 + ROUNDING:
            return None
        allowed = _below(allowed, found)
        chains.append(found.chain)
        makespan, row = paths.longest(listed.times[:, found.chain].T)
        if makespan < max(1.0, found.value + CLOSE) or len(prices) == ROUNDS:
            used = [row for row, weight in zip(rows, weights, strict=True) if weight > 0]
            own = [_cost(listed, prices[-1], chain) for chain in chains]
            near = [c for c, cost in zip(chains, own, strict=True) if cost <= found.value + NEAR]
            return _Part(allowed, used, near, prices[-KEPT:])
        rows.append(row)


def _chains(listed: ListedStages, part: _Part) -> tuple[Ints, bool]:
    """Return all chains of a part below the target at all its prices, or if they are too many some.

    Returns
    -------
    chains
        Shape (C, P).
    complete
        Whether these are all.
    """
    every = [*part.rows, *part.prices]
    behind = [_behind(listed, prices, part.allowed) for prices in every]
    chains, at = np.zeros((1, 0), np.int64), np.zeros(1, np.int64)
    cost = np.zeros((len(every), 1))
    for place, stages in enumerate(part.allowed):
        own = stages[np.argsort(listed.start[stages], kind="stable")]
        low, high = (np.searchsorted(listed.start[own], at, side) for side in ("left", "right"))
        many = high - low
        if many.sum() > CHAINS:
            return np.array(part.chains), False
        before = np.repeat(np.arange(len(at)), many)
        added = own[low[before] + np.arange(len(before)) - np.repeat(np.cumsum(many) - many, many)]
        cost = cost[:, before] + [prices[place] @ listed.times[:, added] for prices in every]
        at = listed.end[added]
        left = (cost + [of[place + 1][at] for of in behind] < 1.0 + ROUNDING).all(axis=0)
        chains = np.column_stack((chains[before], added))[left]
        cost, at = cost[:, left], at[left]
    return chains, True


def _below(allowed: list[Ints], found: _Cheapest) -> list[Ints]:
    """Return the stages through which a chain is below the target."""
    return [own[least < 1.0 + ROUNDING] for own, least in zip(allowed, found.through, strict=True)]


def _divided(listed: ListedStages, part: _Part) -> list[_Part]:
    """Divide chains by one of their ideals: that in which those at hand differ most."""
    ends = listed.end[np.array(part.chains)]
    lowest, highest = ends.min(axis=0), ends.max(axis=0)
    place = int(np.argmax(highest - lowest))
    middle = (lowest[place] + highest[place]) // 2
    halves = []
    for low, high in ((0, middle), (middle + 1, listed.ideals)):
        at = listed.end[part.allowed[place]]
        allowed = list(part.allowed)
        allowed[place] = part.allowed[place][(at >= low) & (at <= high)]
        own = [c for c, end in zip(part.chains, ends[:, place], strict=True) if low <= end <= high]
        halves.append(_Part(allowed, part.rows, own, []))
    return halves


def _cheapest(listed: ListedStages, prices: Floats, allowed: list[Ints]) -> _Cheapest | None:
    """Return the cheapest chain at prices of shape (P, 4); None if there is no chain."""
    behind = _behind(listed, prices, allowed)
    value = float(behind[0][0])
    if np.isinf(value):
        return None
    ahead = np.full(listed.ideals, np.inf)
    ahead[0] = 0.0
    chain, at = [], 0
    through = []
    for place, own in enumerate(allowed):
        cost = prices[place] @ listed.times[:, own]
        reached = ahead[listed.start[own]] + cost
        through.append(reached + behind[place + 1][listed.end[own]])
        here = np.flatnonzero(listed.start[own] == at)
        rest = cost[here] + behind[place + 1][listed.end[own[here]]]
        chain.append(int(own[here[np.argmin(rest)]]))
        at = int(listed.end[chain[-1]])
        ahead = np.full(listed.ideals, np.inf)
        np.minimum.at(ahead, listed.end[own], reached)
    return _Cheapest(value, np.array(chain, np.int64), through)


def _behind(listed: ListedStages, prices: Floats, allowed: list[Ints]) -> list[Floats]:
    """Return for each place the least price of the stages from there on, by ideal; P + 1 arrays."""
    behind = [np.full(listed.ideals, np.inf)]
    behind[0][-1] = 0.0
    for price, own in zip(reversed(prices), reversed(allowed), strict=True):
        least = np.full(listed.ideals, np.inf)
        rest = price @ listed.times[:, own] + behind[-1][listed.end[own]]
        np.minimum.at(least, listed.start[own], rest)
        behind.append(least)
    return behind[::-1]


def _cost(listed: ListedStages, prices: Floats, chain: Ints) -> float:
    return float((prices * listed.times[:, chain].T).sum())


def _mixture(costs: Floats) -> Floats:
    """Return weights of paths with which the cheapest of the chains is dearest; shape (paths,)."""
    from scipy.optimize import linprog

    rows = len(costs)
    even = np.full(rows, 1 / rows)
    if not costs.size:
        return even
    solved: Any = linprog(
        np.append(np.zeros(rows), -1.0),
        A_ub=np.hstack([-costs.T, np.ones((costs.shape[1], 1))]),
        b_ub=np.zeros(costs.shape[1]),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, None)] * rows + [(None, None)],
    )
    if solved.x is None:
        return even
    weights = np.maximum(np.asarray(solved.x[:rows], np.float64), 0.0)
    return np.asarray(weights / max(1.0, float(weights.sum()) * (1 + 1e-12)), np.float64)
