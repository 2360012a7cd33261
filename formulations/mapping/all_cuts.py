"""Cuts of an operator graph into stages: balanced ones, and bounds over all of them.

*Balanced partition.* An operator graph is cut into S stages, none much longer than the others:

    minimise max_s  t_s + κ · (bytes that cross the boundary behind stage s)

over assignments of units (nodes that must stay together) to stages 0 … S−1 that never run back. κ
is the *communication coefficient*, in seconds per byte. A tensor crosses each boundary between the
first and the last stage that make or need it, once (`instances.model.stage_costs`): with its maker
and users merged into a *net*, boundary s costs κ · Σ {w_e : min stage of e ≤ s < max stage of e}.

*Lower bounds* on the longest stage time over all cuts and mappings, for any number of devices.

    symbol       meaning
    m, S, R      microbatches of a batch, stages, replicas
    p_v, w_v     seconds of unit v for a microbatch, its bytes of parameters; W all of them
    A(w)         the least time of an all-reduce of w bytes among any R devices
    c            A(W) / W. A(w) / w falls with w, as latency counts less, so A(w) ≥ c w for w ≤ W
    σ_k          slowdown of the (k R)-th fastest device, which the k-th fastest stage has at least
    σ            slowdown of the slowest device
    P(f)         the least time of m messages of f bytes between any R pairs of devices
    c', P'(f)    the same where a ring, or a message, goes from one block to another
    P''(f)       the same of all R pairs from one block to another
    L            ⌊devices of the largest block / R⌋; where no all-reduces count, with R = 1
    L_k          the same of the blocks of one speed, where every block has one

A cut is a chain of ideals ∅ = I_0 ⊂ I_1 ⊂ … ⊂ I_S = V, and f(I) are the bytes of the tensors that
ideal I splits. A stage takes

    cost(I', I) = Σ_{v ∈ I∖I'} (m σ_k p_v + c w_v) + P(f(I))                                 (1)

at least, the last one without P, and with another k for each stage; with overlap the larger of its
two parts. So the least maximum over all chains, by a DP over ideals and numbers of stages of each
speed, is a bound. Without a list of ideals it is at least

    max(Σ_v (m p_v + c w_v / σ) / Σ_k 1/σ_k,  max_v (m σ_1 p_v + c w_v)).                    (2)

Where devices form blocks, each ring and each boundary lies within blocks, or costs c' and P'.
Between two stages whose rings lie in two blocks, all messages go from the one to the other: P''.
Stages joined by boundaries within blocks, one of which has its ring in a block, are all in that
block, and so are L stages at most. Where no all-reduces count, or R = 1, this holds of one replica
of each stage. The DP has the length of this run in its state, and whether it has such a ring.

Stages joined by boundaries within blocks have their replicas in the same blocks. So where every
block has one speed, the slowest devices of all of them are of one speed k, and L_k takes the place
of L. A stage may then be slower than the k-th fastest has to be: the DP bounds the number of stages
that are so fast or faster, for each speed, and has the speed of the run in its state.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np
from scipy.sparse import csr_array

from ...instances import DeviceMapping, InputError, Workload, accelerators_and_cpus
from ...instances.common.arrays import Bools, Floats, Ints, frozen
from ...instances.model.contiguity import pipeline_edge_array
from ...instances.model.problem import Throughput
from ...instances.model.stage_costs import StageCosts, accelerator_seconds, parameter_bytes
from ..task import Task, pose
from ..throughput.hypergraph import pipeline_units
from .bound import stage_lower_bounds
from .costs import MappingCosts, find_blocks, mapping_costs
from .kernels import matching_size
from .memory import relative_slowdowns

#: States of `run_states` in which the last boundary was crossed.
CROSSED = 3
#: Sizes of messages at which the least time is found; between two, that of the smaller one holds.
GRID = 24


@dataclass(frozen=True, eq=False)
class Units:
    """Units of a workload and nets of tensors; U units, E nets with two pins or more."""

    seconds: Floats  # (U,): compute
    edges: Ints  # (m, 2): the first unit's stage must not be after the second's; no cycles
    net_start: Ints  # net_start, pins: units of net e are pins[net_start[e] : net_start[e + 1]]
    pins: Ints
    net_bytes: Floats  # (E,)

    @property
    def size(self) -> int:
        """Number of units, U."""
        return len(self.seconds)


def partition_units(workload: Workload) -> tuple[Ints, Units]:
    """Return the unit of each node, shape (n,), and the units. InputError as of `stage_costs`."""
    task = pose(workload, accelerators_and_cpus(1), Throughput("contiguous"))
    unit_of = pipeline_units(task)
    every = np.arange(workload.n)
    order = unit_of[pipeline_edge_array(workload)]
    if workload.output_bytes is None:
        raise InputError(f"{workload.name}: output_bytes is missing; links need sizes, not times")
    size = int(unit_of.max()) + 1
    rows = np.concatenate([every, workload.edges[:, 0]])
    columns = np.concatenate([unit_of, unit_of[workload.edges[:, 1]]])
    incidence = csr_array((np.ones(len(rows)), (rows, columns)), shape=(workload.n, size))
    incidence.sum_duplicates()
    degree = np.diff(incidence.indptr)
    used = (degree > 1) & (workload.output_bytes > 0)
    keep = np.repeat(used, degree)
    units = Units(
        seconds=np.bincount(unit_of, weights=accelerator_seconds(workload), minlength=size).astype(
            np.float64
        ),
        edges=np.unique(order[order[:, 0] != order[:, 1]], axis=0).reshape(-1, 2),
        net_start=np.concatenate([[0], np.cumsum(degree[used])]).astype(np.int64),
        pins=incidence.indices[keep].astype(np.int64),
        net_bytes=frozen(workload.output_bytes[used], np.float64),
    )
    return unit_of, units


def stage_objective(costs: StageCosts, coefficient: float) -> float:
    """Return max_s t_s + κ · bytes behind stage s."""
    sent = np.append(costs.forward_bytes + costs.backward_bytes, 0.0)
    return float((costs.compute_s + coefficient * sent).max())


@dataclass(frozen=True, eq=False)
class LeastPrices:
    """The least prices of a topology, within blocks and across; seconds per batch."""

    reduced: tuple[float, float]  # c and c'
    sizes: Floats  # (G,): bytes, ascending
    sent: Floats  # (G,): P of these sizes
    # latency, inverse bandwidths of P' and P'' (`inf` if no two blocks hold R devices), times m
    across: tuple[float, float, float]
    runs: Ints  # (K,): L_k; (1,): L, S where there are no blocks

    def boundary(self, size: Floats) -> Floats:
        """Return P, P' and P'' of so many bytes, shape (3, N)."""
        at = np.searchsorted(self.sizes, size, side="right") - 1
        step = np.where(at >= 0, self.sent[np.maximum(at, 0)], 0.0)
        slope = float(self.sent[-1] / self.sizes[-1])
        within = np.maximum(step, slope * size)  # P(f) / f falls with f as well
        latency, *inverse = self.across
        some = np.where(size > 0, size, 1.0)
        far = [np.where(size > 0, latency + each * some, 0.0) for each in inverse]
        return np.array([within, *(np.maximum(within, each) for each in far)])


def least_prices(task: Task[DeviceMapping], units: Units, slow: Floats) -> LeastPrices:
    """Return the least prices for the sizes that cuts can have; `slow`: of `stage_speeds`, (K,)."""
    problem = replace(task.problem, stages=min(2, task.problem.stages))
    total = float(parameter_bytes(task.workload).sum())
    largest = max(float(units.net_bytes.sum()), 1.0)
    sizes = largest * np.geomspace(1e-4, 1.0, GRID)

    def costs_of(size: float) -> MappingCosts:
        none, held = np.zeros(problem.stages), np.full(problem.stages, total)
        sent = np.full(problem.stages - 1, size)
        return mapping_costs(StageCosts(none, sent, 0 * sent, held), problem)

    costs = costs_of(largest)
    within = float(stage_lower_bounds(costs).allreduce[0]) / total if total else 0.0
    sent = np.zeros(GRID)
    if costs.boundary.any():
        alone = replace(costs, ring=np.zeros_like(costs.ring))
        for k, size in enumerate(sizes.tolist()):
            at = replace(alone, boundary=costs_of(size).boundary)
            sent[k] = stage_lower_bounds(at).transfer[0]
    block = find_blocks(costs)
    far = block[:, None] != block[None, :]
    if not far.any():
        one = np.array([task.problem.stages])
        return LeastPrices((within, within), sizes, sent, (0.0, 0.0, 0.0), one)
    each = 1 if problem.mode == "p2p" else problem.replicas
    runs = _longest_of_speeds(block, relative_slowdowns(task), slow) // each
    inverse = float(costs.inverse.min(where=far, initial=np.inf))
    latency = float(costs.latency.min(where=far, initial=np.inf))
    ring = float(costs.ring[0, 1]) * inverse
    ring = min(ring, float(costs.non_ring_lower_bound[0])) / total if total else 0.0
    pairs = inverse, _between_blocks(costs, block)
    m = problem.microbatches
    across = (m * latency, m * pairs[0], m * pairs[1]) if costs.boundary.any() else (0.0, 0.0, 0.0)
    return LeastPrices((within, max(within, ring)), sizes, sent, across, runs)


def _between_blocks(costs: MappingCosts, block: Ints) -> float:
    """Return the least inverse bandwidth of R pairs that go from one block to another one."""
    members, r = [np.flatnonzero(block == b) for b in range(int(block.max()) + 1)], costs.replicas
    nearest = [costs.inverse[:, of].min(axis=1) for of in members]
    at_least = {
        (a, b): float(np.sort(nearest[b][members[a]])[r - 1])
        for a, b in permutations(range(len(members)), 2)
        if min(len(members[a]), len(members[b])) >= r
    }
    least = np.inf
    for (a, b), bound in sorted(at_least.items(), key=lambda pair: pair[1]):
        if bound >= least:
            break
        among = costs.inverse[np.ix_(members[a], members[b])]
        values = np.unique(among).tolist()
        at = bisect_left(values, r, key=lambda value: matching_size(among <= value))
        least = min(least, values[at])
    return least


def _longest_of_speeds(block: Ints, slowdowns: Floats, slow: Floats) -> Ints:
    """Return the devices of the largest block of each speed, (K,); of all, (1,), if one has two."""
    speed = np.maximum(np.searchsorted(slow, slowdowns, side="right") - 1, 0)
    sizes = np.zeros((len(slow), int(block.max()) + 1), np.int64)
    np.add.at(sizes, (speed, block), 1)
    largest = sizes if ((sizes > 0).sum(axis=0) == 1).all() else sizes.sum(axis=0, keepdims=True)
    return np.asarray(largest.max(axis=1))


def run_states(longest: Ints, stages: int, *, alone: bool, paired: bool = False) -> Ints:
    """Return the next state, by state, speed, ring (0 in a block, 1 across) and boundary.

    A boundary is within blocks (0), or across, and not (1) or just (2) between rings in blocks. The
    next state is −1 for none. In states below `CROSSED` the last boundary was crossed: the next
    ring is as it likes, in a block, or across. Else the speed of a run of ℓ stages, and whether one
    of them has its ring in the block. `longest`, (K,), are the longest runs with such a ring.
    `alone`: rings do not count; each run is as one with a ring in the block. Without `paired`
    boundaries across are of kind 1 all.
    """
    if len(longest) == 1 and longest[0] >= stages:  # nothing is crossed
        return np.array([[[[0, -1, -1], [-1, -1, -1]]]])
    runs = [
        (k, length, held)
        for k, most in enumerate(longest.tolist())
        for length, held in (*product(range(1, most + 1), (0, 1)), (most + 1, 0))
    ]
    states = {run: n for n, run in enumerate(runs, CROSSED)}
    begins = [((k, 0, 0), n) for k, n in product(range(len(longest)), range(CROSSED))]
    table = np.full((CROSSED + len(runs), len(longest), 2, 3), -1)
    for ((k, length, held), state), across in product((*begins, *states.items()), (0, 1)):
        if (alone and across) or state == 2 - across:
            continue
        most = int(longest[k])
        now = k, min(length + 1, most + 1), max(held, 1 - across)
        if now in states:
            crossed = (2, 1) if paired and not across else (0, -1)
            table[state, k, across] = states[now], *crossed
    return table


def speed_counts(counts: Ints, stages: int, *, slower: bool) -> list[list[tuple[int, ...]]]:
    """Return the possible numbers of stages of each speed after 0, 1, …, S stages.

    At most `counts`, shape (K,), of each; with `slower` of each speed and the faster ones together.
    """
    layers = [[(0,) * len(counts)]]
    most = np.cumsum(counts) if slower else counts
    for _ in range(stages):
        after: dict[tuple[int, ...], None] = {}
        for used, k in product(layers[-1], range(len(counts))):
            then = (*used[:k], used[k] + 1, *used[k + 1 :])
            if ((np.cumsum(then) if slower else np.array(then)) <= most).all():
                after[then] = None
        layers.append(list(after))
    return layers


def split_bytes(workload: Workload, problem: DeviceMapping, units: Units, inside: Bools) -> Floats:
    """Return f, shape (N,), of ideals given by their units, shape (N, U)."""
    if not len(units.net_bytes) or (workload.backward.any() and not problem.gradients):
        return np.zeros(len(inside))  # of merged units it is not known which tensors are gradients
    net = np.repeat(np.arange(len(units.net_bytes)), np.diff(units.net_start))
    pins = np.zeros((units.size, len(units.net_bytes)))
    pins[units.pins, net] = 1.0
    held = inside.astype(np.float64) @ pins
    split: Floats = ((held > 0.5) & (held < pins.sum(axis=0) - 0.5)) @ units.net_bytes
    return split
