"""Lower bounds on mappings: proofs that no cut into stages, mapped in any way, is below a target.

    symbol      meaning
    m, S, R     microbatches of a batch, stages, replicas
    I           an ideal: a set of blocks that holds all that any of its blocks waits for
    t(I', I)    seconds of a microbatch of the nodes in I and not in I'; w(I', I) their parameters
    A(w)        the least time in which any R devices all-reduce w bytes
    P(I)        the least time in which any R pairs of devices send what crosses from I to the rest

A cut is a chain of ideals ∅ = I_0 ⊂ … ⊂ I_S = all, and its stage s takes, on any devices,

    m σ_k t(I_{s−1}, I_s) + P(I_s) + A(w(I_{s−1}, I_s))

at least, if it is k-th fastest, with σ_k the slowdown of the (k R)-th fastest device; with overlap
the larger of the first term and the sum of the others. A(w) / w and P / bytes fall with the bytes,
as the latency weighs less, so A(w) ≥ w A(W) / W for the W bytes of all parameters.

*Groups.* Devices are divided into groups; any division gives a proof. A ring or a boundary within
groups costs at least what the best such one does; any other has a pair of devices of two groups.
Stages in a row are *together* if the boundaries between them lie within groups. If one of them has
all of its replicas in one group, so have all, and there are at most L of them: the devices of the
largest group over R. Where no all-reduce counts, the same holds for one replica of each stage. If
two stages in a row have all of their replicas in one group each, and not in the same one, all R
messages between them go from one group to the other.

Stages that are together have their replicas in the same groups. So if no group has devices of two
speeds, their slowest devices are of one speed, and L is that of the groups of this speed. For each
speed, the number of stages with devices of that speed or faster alone is limited; any stage may be
slower.

The proof is a search for a chain below the target. For each ideal and numbers of stages by speed it
keeps the least number of stages that are together up to there, by their speed and by whether one of
them is known to be in one group; if the last boundary was not within groups it is 0, by whether the
next stage is in one group. Times are in fractions of the target, rounded downwards.

Bounds of *given stages* are checked by the same search, over the ideals of that cut alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import cast

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import (
    connected_components,
    maximum_bipartite_matching,
    minimum_spanning_tree,
)

from ....instances import Cluster, DeviceMapping, ReplicaPlacement, Workload
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.units import TIME_UNITS
from ....instances.model.contiguity import pipeline_edges
from ....instances.model.stage_costs import accelerator_seconds, device_slowdowns, parameter_bytes
from .max_load import ROUNDING
from .stage_chains import PARTS, EndsInReach, Ideals, ideals_of, parts_of_target

#: Most devices for which rings and pairs are sought; of more, the best link counts.
MOST_DEVICES = 1024
#: Ratio of the sizes of messages for which the least time is found; others lie between two.
SIZE_STEP = 1.02
#: Most divisions that are tried, and the least ratio of links between groups to those within.
DIVISIONS, LEAST_STEP = 3, 1.2
#: Most cycles that a search for a ring enumerates.
CYCLES = 20_000
#: Most numbers of stages by speed that are told apart.
MOST_SPEEDS = 200
#: Number above any number of stages.
NONE = 1 << 30


@dataclass(frozen=True, eq=False)
class _Links:
    """Prices of messages between the D usable devices, by groups."""

    problem: DeviceMapping
    latency: Floats  # (D, D)
    inverse: Floats
    group: Ints  # (D,)

    @cached_property
    def far(self) -> Bools:
        """Pairs of devices of two groups, shape (D, D)."""
        return np.asarray(self.group[:, None] != self.group[None, :])

    @cached_property
    def near(self) -> Bools:
        """Pairs of different devices of one group, shape (D, D)."""
        return ~self.far & ~np.eye(len(self.group), dtype=np.bool_)

    @property
    def rings_count(self) -> bool:
        """Whether all-reduces count."""
        return self.problem.mode != "p2p" and self.problem.replicas > 1

    def longest_runs(self, slow: Floats, slowdowns: Floats) -> Ints:
        """Return L of each speed, (K,), or of all, (1,), if a group has two; with one group S.

        `slow`, (K,), are the different slowdowns, `slowdowns`, (D,), those of the devices.
        """
        if not self.far.any():
            return np.array([self.problem.stages])
        each = self.problem.replicas if self.rings_count else 1
        speed = (slowdowns[:, None] >= slow[None, 1:]).sum(axis=1)
        pairs, sizes = np.unique(np.array([self.group, speed]), axis=1, return_counts=True)
        if len(np.unique(pairs[0])) < len(sizes):
            return np.array([int(np.bincount(self.group).max()) // each])
        return np.array(
            [int(sizes[pairs[1] == k].max(initial=0)) // each for k in range(len(slow))]
        )

    def reduced(self, size: float) -> tuple[float, float]:
        """Return the least seconds of an all-reduce within a group, and not within one."""
        if size == 0 or not self.rings_count:
            return 0.0, 0.0
        r = self.problem.replicas
        cost = 2 * (r - 1) * (self.latency + size / r * self.inverse)
        within, across = self._two(cost, lambda among: _has_ring(among, r))
        if self.problem.collective == "ring":
            return within, across
        other = self._other_than_ring(size)
        return min(within, other), min(across, other)

    def sent(self, messages: int, size: float) -> tuple[float, float, float]:
        """Return the least seconds per batch of a boundary within groups, not, from one to one."""
        if messages == 0 or self.problem.mode == "allr":
            return 0.0, 0.0, 0.0
        m = self.problem.microbatches
        cost = m * (messages * self.latency + size * self.inverse)
        within, across = self._two(cost, lambda among: _pairs(among) >= 2 * self.problem.replicas)
        latency = float(self.latency.min(where=self.far, initial=math.inf))
        return within, across, max(across, m * (messages * latency + size * self.from_one_to_one))

    @cached_property
    def from_one_to_one(self) -> float:
        """Least seconds per byte of R pairs from one group to another; `inf` for none."""
        own = np.eye(int(self.group.max()) + 1)[self.group]  # (D, groups)

        def enough(among: Bools) -> bool:
            partners = own.T @ (among @ own > 0)  # devices of a group with a partner in another
            return any(
                _pairs(among[np.ix_(self.group == a, self.group == b)]) >= self.problem.replicas
                for a, b in np.argwhere(partners >= self.problem.replicas)
            )

        return _least(self.inverse, self.far, enough)

    def _two(self, cost: Floats, enough: Callable[[Bools], bool]) -> tuple[float, float]:
        """Return the least cost at which pairs suffice: within groups, and not all within."""
        if len(cost) > MOST_DEVICES:
            either = float(cost.min(where=self.near | self.far, initial=math.inf))
            return either, either
        within = _least(cost, self.near, enough)
        if not self.far.any():
            return within, math.inf
        across = _least(cost, self.near | self.far, enough)
        return within, max(across, float(cost.min(where=self.far, initial=math.inf)))

    def _other_than_ring(self, size: float) -> float:
        """Return a lower bound on the time of a tree or hierarchical ring, by the best messages."""
        r, island = self.problem.replicas, self.problem.topology.island
        mine = island[self.problem.topology.usable]
        apart = mine[:, None] != mine[None, :]
        other = ~np.eye(len(mine), dtype=np.bool_)

        def message(size: float, among: Bools) -> float:
            time = self.latency + size * self.inverse
            return float(time.min(where=among, initial=math.inf))

        ways = [2 * math.floor(math.log2(r)) * message(size, other)]
        for k in range(2, r):
            if r % k == 0:
                inside = 2 * (k - 1) * message(size / k, other & ~apart)
                ways.append(inside + 2 * (r // k - 1) * message(size / r, apart))
        return min(ways)


def _least(cost: Floats, among: Bools, enough: Callable[[Bools], bool]) -> float:
    """Return the least cost at which the pairs up to it suffice; `inf` for none."""
    values = np.unique(cost[among])
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if enough(among & (cost <= values[middle])):
            high = middle
        else:
            low = middle + 1
    return float(values[low]) if low < len(values) else math.inf


def _pairs(admitted: Bools) -> int:
    """Return the size of a maximum matching of rows and columns; symmetric pairs count twice."""
    return int((maximum_bipartite_matching(csr_array(admitted)) >= 0).sum())


def _has_ring(admitted: Bools, replicas: int) -> bool:
    """Whether R devices may form a ring; False is certain."""
    import networkx as nx

    if replicas == 2:
        return bool(admitted.any())
    graph: nx.Graph[int] = nx.from_numpy_array(admitted)
    # networkx's stubs say lists of sets
    components = cast("Iterator[set[int]]", nx.biconnected_components(graph))
    cycles = (
        nx.simple_cycles(graph.subgraph(part), length_bound=replicas)
        for part in components
        if len(part) >= replicas
    )
    return any(
        len(cycle) == replicas or k == CYCLES for k, cycle in enumerate(chain.from_iterable(cycles))
    )


@dataclass(frozen=True, eq=False)
class _MappedChains:
    """N ideals between which stages lie, subsets first, with times in fractions of the target."""

    inside: Callable[[int, Ints], Bools]  # whether an ideal is a proper subset of others
    compute: Ints  # (K, N): of the nodes at each speed, the fastest first
    counts: Ints  # (K,): number of stages of each speed
    reduced: Ints  # (2, N): all-reduces within a group, and not
    sent: Ints  # (3, N): boundaries within groups, not, and from one group to another

    def any_below(self, problem: DeviceMapping, longest: Ints, *, alone: bool) -> bool:
        """Return whether a chain of S stages is below the target.

        `longest`, (K,) or (1,), is L of each speed, or of all. With `alone` all-reduces do not
        count, and one replica of a stage stands for it: it is in one group.
        """
        last = self.compute.shape[1] - 1
        kept = len(longest) > 1
        most = np.cumsum(self.counts) if kept else self.counts
        used = np.array([*np.ndindex(*(most + 1))])  # all numbers of stages by speed
        if kept:  # a stage may be slower than it has to be
            used = used[(np.cumsum(used, axis=1) <= most).all(axis=1)]
        place = {tuple(each): k for k, each in enumerate(used.tolist())}
        stages = used.sum(axis=1)
        steps = []  # for each speed: numbers to which a stage can be added, and those with it
        for one in np.eye(len(self.counts), dtype=np.int64):
            with_it = np.array([place.get(tuple(each), -1) for each in (used + one).tolist()])
            free = np.flatnonzero(with_it >= 0)
            steps.append((free, with_it[free]))
        # by speed, ideal and numbers: least stages together, none or one known to be in a group
        loose = np.full((len(longest), last + 1, len(used)), NONE)
        held = np.full_like(loose, NONE)
        # by ideal and numbers: 0 if reached, with the next stage all in one group, or not
        inside, spread = (np.full(loose.shape[1:], NONE) for _ in range(2))
        loose[:, 0, 0] = 0
        # whether boundaries from one group to another have a price of their own
        apart = not alone and bool((self.sent[2] > self.sent[1]).any())
        least = self.compute[0] + (0 if problem.overlap else self.reduced.min(axis=0))
        reach = EndsInReach(self.inside, least)
        for ideal in range(last):
            found = *loose[:, ideal], *held[:, ideal], inside[ideal], spread[ideal]
            known = (np.array(found) < NONE).any(axis=0)
            if not known.any():
                continue
            left = problem.stages - 1 - int(stages[known].min())
            ends = reach.after(ideal, left, loose[:, ideal].size)
            for speed, (free, then) in enumerate(steps):
                of = speed if kept else 0
                run = int(longest[of])
                b = held[of, ideal]
                least_run = np.minimum(np.minimum(loose[of, ideal], inside[ideal]), b)
                a = np.minimum(loose[of, ideal], spread[ideal])
                both = np.where(least_run < run, least_run + 1, NONE)
                longer = np.where(b < run, b + 1, NONE)
                at_most = np.where(a < NONE, np.minimum(a + 1, run + 1), NONE)
                freed = np.where((a < NONE) | (longer < NONE), 0, NONE)
                below = self._below(speed, ideal, ends, overlap=problem.overlap)
                for ring, boundary, to, value in (
                    (0, 0, held[of], both),
                    (0, 1, spread if apart else loose, np.where(both < NONE, 0, NONE)),
                    (0, 2, inside, np.where(both < NONE, 0, NONE)),
                    (1, 0, loose[of], at_most),
                    (1, 0, held[of], longer),
                    (1, 1, loose, freed),
                ):
                    some = ends[below[ring][boundary]]
                    if len(some) and (apart or boundary < 2) and not (ring and alone):
                        rows, columns = np.ix_(some, then)
                        known_by = to[..., rows, columns]
                        to[..., rows, columns] = np.minimum(known_by, value[free])
        whole = np.minimum(loose, held)[:, last, stages == problem.stages]
        return bool((whole < NONE).any())

    def _below(self, speed: int, ideal: int, ends: Ints, *, overlap: bool) -> list[list[Bools]]:
        """Return which stages from an ideal are below the target, by ring and boundary."""
        compute = self.compute[speed, ends] - self.compute[speed, ideal]
        found = []
        for reduced in self.reduced:
            rest = [reduced[ends] - reduced[ideal] + sent[ends] for sent in self.sent]
            times = [np.maximum(compute, of) if overlap else compute + of for of in rest]
            found.append([time < PARTS for time in times])
        return found


def stage_time_bound(workload: Workload, cluster: Cluster, problem: DeviceMapping) -> float:
    """Return the time of the heaviest block or of evenly divided work, in the workload's unit.

    It is per batch, with all-reduces unless they overlap compute. The k-th fastest stage has at
    least the slowdown of the (k R)-th fastest device.
    """
    compute = problem.microbatches * accelerator_seconds(workload)
    held = parameter_bytes(workload)
    reduced = np.zeros(workload.n)
    slow = device_slowdowns(cluster)[problem.topology.usable]
    of_stages = _of_stages(slow, problem)
    if held.any() and not problem.overlap:
        links = _Links(problem, *_routes(problem), np.zeros(len(problem.topology.usable), np.int64))
        reduced = links.reduced(float(held.sum()))[0] / float(held.sum()) * held
    each = compute * of_stages[0] + reduced
    together = [float(each[list(nodes)].sum()) for nodes in workload.colour_classes]
    heaviest = max([float(each.max(initial=0.0)), *together])
    shared = float((compute + reduced / slow.max()).sum()) / float((1 / of_stages).sum())
    return max(heaviest, shared) / TIME_UNITS[workload.time_unit]


def no_mapping_below(
    workload: Workload,
    cluster: Cluster,
    problem: DeviceMapping,
    target: float,
    given: ReplicaPlacement | None = None,
) -> bool:
    """Prove that every cut and mapping takes at least `target`; False if not.

    `target` is a longest stage time in the workload's unit, above 0 and finite. With `given` only
    mappings of its cut count. UncheckedError if there are too many ideals or stages.
    """
    seconds = target * TIME_UNITS[workload.time_unit]
    if given is None:
        waits = pipeline_edges(workload)
        ideals = ideals_of(workload, np.ones(workload.n, np.bool_), waits)
    else:
        ideals = _of_cut(given.stage, problem.stages)
    own = problem.microbatches * accelerator_seconds(workload)
    slow, counts = _speeds(cluster, problem)
    slowdowns = device_slowdowns(cluster)[problem.topology.usable]
    compute = np.array(
        [ideals.sums(parts_of_target(factor * own, seconds)) for factor in slow.tolist()]
    )
    down, up = _crossing(workload, ideals)
    if not problem.gradients:
        up = np.zeros_like(up)
    messages, size = (down > 0).astype(np.int64) + (up > 0), down + up
    for group in _divisions(workload, problem):
        links = _Links(problem, *_routes(problem), group)
        prices = _boundaries(links, messages, size)
        chains = _MappedChains(
            ideals.inside,
            compute,
            counts,
            _reduced(links, workload, ideals, seconds, given),
            np.array([parts_of_target(of * (1 - ROUNDING), seconds) for of in prices]),
        )
        longest = links.longest_runs(slow, slowdowns)
        if not chains.any_below(problem, longest, alone=not links.rings_count):
            return True
    return False


def _of_stages(slow: Floats, problem: DeviceMapping) -> Floats:
    """Return σ, shape (S,), ascending, given the slowdown of each usable device."""
    return np.sort(slow)[problem.replicas - 1 :: problem.replicas][: problem.stages]


def _speeds(cluster: Cluster, problem: DeviceMapping) -> tuple[Floats, Ints]:
    """Return the different values of σ, ascending, and the number of stages of each.

    If there are too many, the nearest two count as the faster one.
    """
    of_stages = _of_stages(device_slowdowns(cluster)[problem.topology.usable], problem)
    found = sorted(of_stages.tolist())
    while len(unlike := sorted(set(found))) > 1 and (
        math.prod(found.count(value) + 1 for value in unlike) > MOST_SPEEDS
    ):
        _, low, high = min((b / a, a, b) for a, b in pairwise(unlike))
        found = [low if value == high else value for value in found]
    return np.unique(found, return_counts=True)


def _routes(problem: DeviceMapping) -> tuple[Floats, Floats]:
    """Return latency and inverse bandwidth between the usable devices."""
    routes, usable = problem.topology.routes, problem.topology.usable
    among = np.ix_(usable, usable)
    return routes.latency_s[among], 1.0 / routes.bytes_per_s[among]


def _of_cut(stage: Ints, stages: int) -> Ideals:
    """Return the ideals of one cut, whose blocks are the stages."""
    members = np.tri(stages + 1, stages, -1, dtype=np.bool_)
    packed = np.packbits(members, axis=1, bitorder="little")
    words = np.zeros((stages + 1, 8 * (stages // 64 + 1)), np.uint8)
    words[:, : packed.shape[1]] = packed
    return Ideals(stage, members, words.view(np.uint64), 0)


def _crossing(workload: Workload, ideals: Ideals) -> tuple[Floats, Floats]:
    """Return the bytes that cross from each ideal to the rest, and back; both of shape (N,)."""
    assert workload.output_bytes is not None
    tensors: dict[tuple[int, frozenset[int]], float] = {}
    for u, readers in enumerate(workload.successors):
        maker = int(ideals.block[u])
        others = frozenset(ideals.block[list(readers)].tolist()) - {maker}
        if others and workload.output_bytes[u] > 0:
            key = maker, others
            tensors[key] = tensors.get(key, 0.0) + float(workload.output_bytes[u])
    down, up = np.zeros(len(ideals.members)), np.zeros(len(ideals.members))
    for (maker, others), size in tensors.items():
        has, read = ideals.members[:, maker], ideals.members[:, sorted(others)]
        down[has & ~read.all(axis=1)] += size
        up[~has & read.any(axis=1)] += size
    return down, up


def _boundaries(links: _Links, messages: Ints, size: Floats) -> Floats:
    """Return the least seconds of boundaries, given their messages and bytes, shape (3, N)."""
    found = np.zeros((3, len(size)))
    for count in np.unique(messages[messages > 0]).tolist():
        of = messages == count
        sizes = np.unique(size[of])
        step = np.floor(np.log(sizes) / math.log(SIZE_STEP))
        sizes = sizes[np.append(True, step[1:] > step[:-1])]
        sizes = np.append(sizes, size[of].max() * (1 + ROUNDING))
        prices = np.array([links.sent(count, float(b)) for b in sizes]).T
        low = np.searchsorted(sizes, size[of], side="right") - 1
        high = np.minimum(low + 1, len(sizes) - 1)
        # more bytes take no less time, and fewer bytes no less time per byte
        found[:, of] = np.maximum(prices[:, low], prices[:, high] * (size[of] / sizes[high]))
    return found


def _reduced(
    links: _Links,
    workload: Workload,
    ideals: Ideals,
    seconds: float,
    given: ReplicaPlacement | None,
) -> Ints:
    """Return the all-reduces of each ideal's nodes in fractions of a target, shape (2, N)."""
    held, total = parameter_bytes(workload), float(parameter_bytes(workload).sum())
    if given is not None:
        stages = np.bincount(given.stage, weights=held, minlength=links.problem.stages)
        of_stages = np.array([links.reduced(float(size)) for size in stages]) * (1 - ROUNDING)
        return np.array(
            [np.append(0, np.cumsum(parts_of_target(own, seconds))) for own in of_stages.T]
        )
    share = held / max(total, 1.0) * (1 - ROUNDING)
    # where no ring is possible, its time is above any target
    prices = np.minimum(links.reduced(total), 1e300)
    return np.array([ideals.sums(parts_of_target(share * price, seconds)) for price in prices])


def _divisions(workload: Workload, problem: DeviceMapping) -> Iterator[Ints]:
    """Yield groups of devices: all in one, then those that short links join, by the widest gaps."""
    latency, inverse = _routes(problem)
    yield np.zeros(len(latency), np.int64)
    if not 2 < len(latency) <= MOST_DEVICES:
        return
    assert workload.output_bytes is not None
    size = float(workload.output_bytes.max(initial=0.0)) + float(parameter_bytes(workload).sum())
    tree = minimum_spanning_tree(np.triu(latency + size / len(latency) * inverse, 1)).tocoo()
    steps = np.unique(tree.data)
    wide = steps[1:] / steps[:-1]
    for k in np.argsort(-wide, kind="stable")[:DIVISIONS].tolist():
        if wide[k] < LEAST_STEP:
            return
        short = tree.data <= steps[k]
        joined = (tree.data[short], (tree.row[short], tree.col[short]))
        label = connected_components(csr_array(joined, shape=tree.shape), directed=False)[1]
        yield np.asarray(label, np.int64)
