"""Lower bounds on pipelines: iterations, for all contiguous splits, then streams.

*All chains of stages*, by paths and ideals. Let each stage have a device of its own. The schedule
fixes the order of actions. With f_s, b_s and c_s the forward and backward times of stage s and the
compute of the latter, of which the share ω is for gradients of weights, the makespan of a chain is
the longest path

    T = max over paths π of Σ_s n_πsF f_s + n_πsB b_s + n_πsI (b_s − ω c_s) + n_πsW ω c_s

So weights y ≥ 0 of any paths, Σ_π y_π = 1, price actions: no chain is below the least sum of
prices, a shortest path through the ideals, stage by stage. A stage is ruled out if the shortest
path through it reaches the target. The paths π are longest ones of the cheapest chains so far, and
SciPy proposes y, an optimal strategy of the matrix game between paths and chains; any y is a proof.
If the value of the game is below the target, the remaining chains are executed if they are few;
else the search branches on one of their ideals.

*Divisible work*, by paths. Let F and C be the forward and the backward compute of all blocks, each
on its fastest device. A chain of P stages divides them: Σ_s f_s ≥ F and Σ_s c_s ≥ C. With weights
y ≥ 0 of any paths of the schedule, Σ_π y_π = 1, no chain is below

    min_s (Σ_π y_π n_πsF) F + min_s (Σ_π y_π (n_πsB + (1 − ω) n_πsI + ω n_πsW)) C

SciPy proposes y, by a linear program over the paths so far, and a division of the work, whose
longest path is the next one. Any y gives a bound on all chains of P stages, and the least over P
one on the problem.

*The longest layer, and work over all devices*, of a stream. Stage i on a kind k has d_i t_i devices
and takes at least Σ_v p_v slowdown_k / d_i, where p is the time of a layer's configuration. So if T
bounds all stages,

1. T ≥ (p_c slowdown_k + synchronising c) / d, for each layer by some c, k and d with room for it,
2. T Σ_k n_k / slowdown_k ≥ Σ_v min_c t_c (p_c + λ size_c) − λ Σ_k n_k M_k   for any λ ≥ 0,

with the bytes of the fewest microbatches in flight. The user's rules are left out, which cannot
make a bound too high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ....instances import (
    TIME_UNITS,
    Cluster,
    Costs,
    Layers,
    PipelineJob,
    Throughput,
    Workload,
    layers_of,
)
from ....instances.common.arrays import Floats, Ints
from ....instances.model.schedule import Kind
from ...estimate import ScheduleSteps, steps_of
from ...schedules import make_schedule, schedule_of
from ...schedules.actions import ActionTable
from ...simulate.plan_stages import STATE, microbatches_and_bandwidth
from ...simulate.stages import chain
from ..rules import RELATIVE_SLACK, usable_bytes
from . import too_much
from .longest_kernel import count_longest
from .max_load import ROUNDING, blocks, pass_times
from .stage_chains import ListedStages, list_stages

#: Steps of the search for λ, each of which cuts off a third, and relative rounding allowance.
PRICE_ROUNDS, STREAM_ROUNDING = 100, 1e-11

#: Most actions that are executed for all numbers of stages, and most paths for one of them.
ACTIONS, PATHS = 20_000_000, 500

#: Most ends of actions that are held at once.
TIMES = 5_000_000
#: Most rounds of a game, and most nodes of the branch and bound.
ROUNDS, PARTS_OF_CHAINS = 100, 500
#: Most chains that are executed one by one, and price lists by which others are left out.
CHAINS, KEPT = 100_000, 10
#: Rounding of prices, least gain of another round, and largest distance from the cheapest chain of
#: those that are kept, as shares of the target.
CHAIN_ROUNDING, CLOSE, NEAR = 1e-11, 1e-7, 1e-6


@dataclass(frozen=True, eq=False)
class SchedulePaths:
    """Actions of P stages on D devices, in an order in which they can be executed."""

    steps: ScheduleSteps
    # (D,): most microbatches in flight on a device, over all its stages
    held: Ints

    def longest(self, durations: Floats) -> tuple[float, Floats]:
        """Return the makespan, and the counts of a longest path's actions, for durations (P, 4)."""
        end, tally = np.zeros(len(self.steps.task) + 1), np.zeros((1, durations.size))
        count_longest(self.steps, durations.reshape(-1, 1), 0.0, end, tally, np.zeros(1))
        return float(end.max()), tally.reshape(durations.shape)

    def makespans(self, durations: Floats) -> Floats:
        """Return the makespans of C chains, shape (C,), for durations (4, C, P)."""
        width = max(1, TIMES // len(self.steps.task))
        pieces = np.split(durations, range(width, durations.shape[1], width), axis=1)
        tasks = (piece.transpose(2, 0, 1).reshape(4 * piece.shape[2], -1) for piece in pieces)
        return np.concatenate([self.steps.ends(duration).max(axis=0) for duration in tasks])


class _Cheapest(NamedTuple):
    """Cheapest chain at given prices of actions."""

    value: float  # its price
    chain: Ints  # (P,): its stages
    # for each place in the chain, the least price with each of the stages allowed there
    through: list[Floats]


@dataclass(frozen=True, eq=False)
class _ChainSubset:
    """Node of the branch and bound: the chains within allowed stages."""

    allowed: list[Ints]  # for each place in the chain, the stages that may be there
    rows: list[Floats]  # counts of paths, shape (P, 4) each
    chains: list[Ints]  # some of the chains, shape (P,) each
    prices: list[Floats]  # mixtures of paths, shape (P, 4) each


def no_iteration_below(
    workload: Workload, cluster: Cluster, problem: PipelineJob, target: float
) -> bool:
    """Prove that every chain of stages takes `target` or longer; False if one is shorter.

    Transfers that overlap compute, links between devices, the number of devices of each kind, and
    all placement rules but the number of stages are left out, which makes no chain slower. The
    split is contiguous, with one stage on a device. UncheckedError if there are too many ideals,
    stages or nodes of the search, or a given schedule has two stages on a device.
    """
    if problem.order and len(set(problem.order.device)) < len(problem.order.device):
        raise too_much("the schedule has two stages on a device")
    listed = list_stages(workload, cluster, problem, target)
    trains = bool(workload.backward.any())
    sizes = [len(problem.order.device)] if problem.order else range(1, listed.most + 1)
    return all(_refuted(listed, paths_of(problem, size, trains=trains)) for size in sizes)


def _refuted(listed: ListedStages, paths: SchedulePaths) -> bool:
    """Return whether every chain of the paths' number of stages reaches the target."""
    fits = [listed.resident + held * listed.activation <= 1.0 for held in paths.held]
    size = len(fits)
    first = _ChainSubset([np.flatnonzero(own) for own in fits], [], [], [])
    for s in range(size):  # paths that stay on one stage
        heavy = np.full((size, 4), 1e-3)
        heavy[s] = 1.0
        first.rows.append(paths.longest(heavy)[1])
        found = _cheapest(listed, first.rows[-1], first.allowed)
        if found is None:
            return True
        first = replace(first, allowed=_stages_below_target(first.allowed, found))
    left = [first]
    for _ in range(PARTS_OF_CHAINS):
        if not left:
            return True
        part = _after_pricing(listed, paths, left.pop())
        if part is None:
            continue
        chains, complete = _enumerate_chains(listed, part)
        if (paths.makespans(listed.times[:, chains]) < 1.0).any():
            return False
        if not complete:
            left += _branch(listed, part)
    raise too_much(f"too many chains of {size} stages are close to it")


def _after_pricing(
    listed: ListedStages, paths: SchedulePaths, part: _ChainSubset
) -> _ChainSubset | None:
    """Return a subset without the stages that prices rule out; None if it is empty."""
    allowed, rows, chains = part.allowed, list(part.rows), list(part.chains)
    prices: list[Floats] = []
    while True:
        costs = np.array([[_cost(listed, row, chain) for chain in chains] for row in rows])
        weights = _path_weights(costs)
        prices.append(np.tensordot(weights, np.array(rows), axes=1))
        found = _cheapest(listed, prices[-1], allowed)
        if found is None or found.value >= 1.0 + CHAIN_ROUNDING:
            return None
        allowed = _stages_below_target(allowed, found)
        chains.append(found.chain)
        makespan, row = paths.longest(listed.times[:, found.chain].T)
        if makespan < max(1.0, found.value + CLOSE) or len(prices) == ROUNDS:
            used = [row for row, weight in zip(rows, weights, strict=True) if weight > 0]
            own = [_cost(listed, prices[-1], chain) for chain in chains]
            near = [c for c, cost in zip(chains, own, strict=True) if cost <= found.value + NEAR]
            return _ChainSubset(allowed, used, near, prices[-KEPT:])
        rows.append(row)


def _enumerate_chains(listed: ListedStages, part: _ChainSubset) -> tuple[Ints, bool]:
    """Return chains of a subset, shape (C, P), and whether all those below the target are there.

    If there are too many below it, at all prices, only the chains that are known are returned.
    """
    every = [*part.rows, *part.prices]
    behind = [_backward_labels(listed, prices, part.allowed) for prices in every]
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
        left = (cost + [of[place + 1][at] for of in behind] < 1.0 + CHAIN_ROUNDING).all(axis=0)
        chains = np.column_stack((chains[before], added))[left]
        cost, at = cost[:, left], at[left]
    return chains, True


def _stages_below_target(allowed: list[Ints], found: _Cheapest) -> list[Ints]:
    """Return the allowed stages on a chain cheaper than the target."""
    return [
        own[least < 1.0 + CHAIN_ROUNDING] for own, least in zip(allowed, found.through, strict=True)
    ]


def _branch(listed: ListedStages, part: _ChainSubset) -> list[_ChainSubset]:
    """Branch on the ideal in which the known chains differ most."""
    ends = listed.end[np.array(part.chains)]
    lowest, highest = ends.min(axis=0), ends.max(axis=0)
    place = int(np.argmax(highest - lowest))
    middle = (lowest[place] + highest[place]) // 2
    branches = []
    for low, high in ((0, middle), (middle + 1, listed.ideals)):
        at = listed.end[part.allowed[place]]
        allowed = list(part.allowed)
        allowed[place] = part.allowed[place][(at >= low) & (at <= high)]
        own = [c for c, end in zip(part.chains, ends[:, place], strict=True) if low <= end <= high]
        branches.append(_ChainSubset(allowed, part.rows, own, []))
    return branches


def _cheapest(listed: ListedStages, prices: Floats, allowed: list[Ints]) -> _Cheapest | None:
    """Return the cheapest chain at prices of shape (P, 4); None if there is no chain."""
    behind = _backward_labels(listed, prices, allowed)
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


def _backward_labels(listed: ListedStages, prices: Floats, allowed: list[Ints]) -> list[Floats]:
    """Return, for each place, the least price from each ideal to the end; P + 1 arrays."""
    behind = [np.full(listed.ideals, np.inf)]
    behind[0][-1] = 0.0
    for price, own in zip(reversed(prices), reversed(allowed), strict=True):
        least = np.full(listed.ideals, np.inf)
        rest = price @ listed.times[:, own] + behind[-1][listed.end[own]]
        np.minimum.at(least, listed.start[own], rest)
        behind.append(least)
    return behind[::-1]


def _cost(listed: ListedStages, prices: Floats, chain: Ints) -> float:
    """Return the price of a chain."""
    return float((prices * listed.times[:, chain].T).sum())


def _path_weights(costs: Floats) -> Floats:
    """Return weights of paths that maximise the price of the cheapest chain, shape (paths,)."""
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


def paths_of(problem: PipelineJob, stages: int, *, trains: bool) -> SchedulePaths:
    """Return the actions of the problem's schedule with this number of stages."""
    if problem.order:
        rows = sorted(problem.order.rows, key=lambda row: row[0].stage)
        schedule = schedule_of(rows, microbatches=problem.batch)
    else:
        where = problem.devices_of(stages)
        equal = chain([1.0] * stages, [1.0] * stages if trains else None, device=where)
        schedule = make_schedule(problem.schedule_name, equal, problem.batch)
    held = np.array([_most_in_flight(table, trains) for table in schedule.actions], np.int64)
    return SchedulePaths(steps_of(schedule.actions, problem.batch), held)


def _most_in_flight(table: ActionTable, trains: bool) -> int:
    """Return the most microbatches in flight on a device."""
    kind = table[:, 1]
    change = (kind == Kind.F).astype(np.int64) - ((kind == Kind.B) | (kind == Kind.W))
    return int(np.cumsum(change).max(initial=0)) if trains else 1


def divided_work_bound(
    workload: Workload, costs: Costs, problem: PipelineJob, target: float
) -> float:
    """Return a lower bound on the makespan of every chain of stages, at most the target."""
    block = blocks(workload, costs, Throughput(split=problem.split))
    time = pass_times(workload, costs, block)
    work = time[costs.count > 0].min(axis=0).sum(axis=1)
    if not np.isfinite(work).all() or not work.any():
        return 0.0
    trains, least, left = bool(workload.backward.any()), np.inf, ACTIONS
    for size in _sizes(problem, int(costs.count.sum()), time.shape[2]):
        busy = problem.batch * float(work.sum()) / (max(problem.devices_of(size)) + 1)
        if busy >= min(target, least):
            continue
        paths = paths_of(problem, size, trains=trains)
        rounds = min(PATHS, left // len(paths.steps.task))
        found = _stage_count_bound(paths, work, problem.weight_share, target, rounds)
        left -= rounds * len(paths.steps.task)
        least = min(least, max(busy, found))
    return min(target, least) * (1 - ROUNDING)


def _sizes(problem: PipelineJob, devices: int, blocks: int) -> list[int]:
    """Return the possible numbers of a chain's stages, the largest first."""
    if problem.order:
        return [len(problem.order.device)]
    chunks = problem.chunks_per_device
    most = min(devices * chunks, blocks)
    most = min(most, problem.placement_rules.max_stages or most)
    able = (d for d in range(most // chunks, 0, -1) if chunks == 1 or problem.batch % d == 0)
    return [chunks * d for d in able]


def _stage_count_bound(
    paths: SchedulePaths, work: Floats, share: float, target: float, rounds: int
) -> float:
    """Return a lower bound on the makespan of chains with the paths' number of stages."""
    from scipy.optimize import linprog

    size, total = int(paths.steps.task.max()) // 4 + 1, float(work.sum())
    staying = 1e-3 + np.eye(size)  # nearly all work on one stage
    best, rows = 0.0, [_row(paths, work[:, None] * part, share)[1] for part in staying]
    for _ in range(rounds - len(rows)):
        table = np.array(rows)  # (paths, 2, P)
        free = -np.repeat(np.eye(2), size, axis=0)  # least price of each pass over the stages
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
    """Return the makespan of a division, and the passes on a longest path; both (2, P).

    `share` is ω, the share of a backward pass that W takes.
    """
    f, c = division
    makespan, n = paths.longest(np.column_stack((f, c, (1 - share) * c, share * c)))
    return makespan, np.array([n[:, 0], n[:, 1] + (1 - share) * n[:, 2] + share * n[:, 3]])


def stream_bound(workload: Workload, cluster: Cluster, problem: PipelineJob) -> float:
    """Return the best lower bound on a stream's time per microbatch, in the workload's unit."""
    layers = layers_of(workload)
    microbatches, bandwidth = microbatches_and_bandwidth(workload, problem)
    kinds = [kind for kind in cluster.kinds if kind.count and not kind.host]
    devices = sum(kind.count for kind in kinds)
    replicas = devices if problem.in_flight == "pipedream" else min(devices, microbatches)
    least = 1 if problem.in_flight != "gpipe" else math.ceil(microbatches / replicas)
    size = _bytes(layers, problem, least)
    longest = np.full(workload.n, np.inf)
    second = TIME_UNITS.get(workload.time_unit, 1.0)
    in_server = bandwidth
    if problem.server_bandwidth is not None:
        in_server = problem.server_bandwidth * second
    for d in range(1, replicas + 1):
        if microbatches % d and problem.in_flight != "pipedream":
            continue
        near = d * layers.degree <= (problem.server_devices or 0)
        accumulated = d if problem.in_flight == "pipedream" else microbatches
        weight = 4 * (d - 1) / accumulated * layers.weight_bytes
        synchronise = weight / np.where(near, in_server, bandwidth)
        for kind in kinds:
            time = (layers.time * kind.slowdown + synchronise) / d
            able = size <= usable_bytes(kind.memory_bytes)
            able &= d * layers.degree <= kind.count
            np.minimum.at(longest, layers.node[able], time[able])
    if not np.isfinite(longest).all():
        return 0.0
    room = math.fsum(kind.count * kind.memory_bytes for kind in kinds)
    speed = math.fsum(kind.count / kind.slowdown for kind in kinds)
    work = _work(layers, workload.n, size, room * (1 + RELATIVE_SLACK))
    return max(float(longest.max()), work / speed) * (1 - STREAM_ROUNDING)


def _bytes(layers: Layers, problem: PipelineJob, in_flight: int) -> Floats:
    """Return the bytes of each configuration on one device."""
    state = STATE[problem.optimizer, problem.precision]
    copies = {"pipedream": in_flight - 1, "2bw": 1}.get(problem.in_flight, 0)
    fixed = layers.fixed_bytes + (state + copies) * layers.weight_bytes
    size: Floats = layers.bytes_per_microbatch * in_flight + fixed
    return size


def _work(layers: Layers, nodes: int, size: Floats, room: float) -> float:
    """Return the greatest right side of bound 2 over the λ that are tried."""

    def dual(price: float) -> float:
        least = np.full(nodes, np.inf)
        np.minimum.at(least, layers.node, layers.degree * (layers.time + price * size))
        return math.fsum(least.tolist()) - (price * room if price else 0.0)

    best = dual(0.0)
    if math.isinf(room) or not size.max(initial=0.0) > 0:
        return best
    low, high = 0.0, float(layers.time.max()) / float(size[size > 0].min())
    for _ in range(PRICE_ROUNDS):
        third = (high - low) / 3
        left, right = dual(low + third), dual(high - third)
        best = max(best, left, right)
        low, high = (low + third, high) if left < right else (low, high - third)
    return best
