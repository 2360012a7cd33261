"""Chains of stages: proofs that every contiguous split reaches a target, by ideals or one path.

*Ideals.* An *ideal* is a set of blocks that holds all that any of its blocks waits for. The
prefixes of a contiguous split are ideals I_0 = ∅ ⊂ I_1 ⊂ … ⊂ I_P, and its stages are I_s ∖ I_{s−1}.
Blocks that take no time on any kind of device and have at most one neighbour in the order are left
out where their memory cannot matter: that raises no split's objective, and a net that is cut
without them is cut with them.

*Stages.* A set S of nodes costs a device Σ p over S, and c_u for each node u of which some, not
all, of u and its readers are in S; if data is relayed, c_u for each end of the stage at which some,
not all, of them are before it. Times are whole multiples of a small fraction of the target, rounded
downwards, so that sums are exact and never too high; for an iteration of the target over M.

*Max-load.* A contiguous split on devices in order is a chain of ideals:

    reached[∅] = {0},
    reached[J] = { d + e_k : d ∈ reached[I], I ⊂ J, d_k < n_k, J ∖ I fits into a device of kind k
                   and costs it less than the target }

with d the numbers of devices used, by kind. The target is proved if no d reaches all nodes. For
GPipe's objective, the largest forward plus the largest backward pass, b is the smallest largest
backward pass among chains whose forward passes are below the target less the previous b, from 0 on,
until there is no such chain.

*Intervals of a longest path* need no lists of ideals. Let s_0 … s_{L−1} be a path of blocks, each
of which waits for the one before. Of block x let f be the least number with x ≤ s_f, and g the
greatest with s_g ≤ x; L and −1 where there is none. The stage I ∖ I' of a chain of ideals has some
interval s_i … s_{j−1} of the path. It holds every x with i ≤ g and f < j, none with f < i, which is
in I', and none with g ≥ j, which is not in I. So on a device of kind k it takes at least

    load_k(i, j) = Σ { p_{k,x} : i ≤ g_x, f_x < j } + Σ { c_{k,e} : net e has such an x, and has a
                   pin with f < i or a pin with g ≥ j }.

*Arcs.* Places 0 … L are nodes of a graph, with an arc from i to j of kind k where load_k(i, j) is
below the target and the bytes fit. Let 0 be the kind of the most devices, n_0 of them, and o count
the devices of the other kinds. The target is proved if no path leads from 0 to L with the devices
that there are, or if devices of kind 0 have more to do than n_0 targets:

    Σ_x p_{0,x} − V + (least Σ c over the arcs of kind 0 of a path)  ≥  n_0 · target

where V is the part of Σ p_0 that other devices can take over, by a fractional knapsack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ....instances import Cluster, Costs, PipelineJob, Throughput, Workload, price, without_links
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.model.contiguity import pipeline_edges
from ....instances.model.workload import kept_bytes
from ..rules import RELATIVE_SLACK
from . import too_much
from .max_load import ROUNDING, fitting, merged, net_costs, summed

#: Most values of b for GPipe's objective, and most numbers of devices used times ideals.
CHAINS, STATES = 60, 100_000_000

#: Backward pass of an ideal that no chain reaches.
NEVER = 1 << 62

#: Numbers of devices used, by kind, and the largest backward pass on the way (GPipe; else 0).
State = tuple[tuple[int, ...], int]
#: Most nodes: sums of so many times stay below 2^63.
MOST_NODES = 1 << 18
#: Most stages between ideals.
STAGES = 3_000_000
#: Most ideals.
IDEALS = 60_000
#: Fractions that make up the target: sums of 2^18 times that are no larger stay below 2^63.
PARTS = 1 << 44
#: Most ideals times nets, most comparisons of a net with a stage, and stages priced at once.
CELLS, WORK, AT_ONCE = 100_000_000, 40_000_000_000, 4096


@dataclass(frozen=True, eq=False)
class _Chains:
    """Graph of ideals and stages, in fractions of the target; N ideals, K kinds of devices."""

    overlap: bool
    ideals: Ideals
    count: Ints
    stages: Stages  # with one pass; with two, forward and backward, for GPipe's objective
    used_bytes: Ints  # (K, N): in fractions of twice the memory of a device of the kind
    least: Ints  # (N,): compute on the fastest kind

    def least_backward(self, forward: int) -> int | None:
        """Return the smallest largest backward pass of chains below a limit; None if there is none.

        Forward passes must be below `forward`; with one pass that is the whole stage, and the
        result is 0.
        """
        last = len(self.least) - 1
        reach = EndsInReach(self.ideals.inside, self.least)
        least = {(0,) * len(self.count): np.full(last + 1, NEVER)}  # by numbers of devices used
        least[(0,) * len(self.count)][0] = 0
        for ideal in range(last):
            states = _best([(used, int(of[ideal])) for used, of in least.items()])
            if not states:
                continue
            left = int(self.count.sum()) - min(sum(used) for used, _ in states) - 1
            ends = reach.after(ideal, left, len(self.stages.pins))
            if len(least) * last > STATES:
                raise too_much("there are too many stages below it")
            for kind in range(len(self.count)):
                end, own = self._priced(ideal, ends, kind, forward)
                for used, before in states:
                    if used[kind] < self.count[kind]:
                        then = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
                        of = least.setdefault(then, np.full(last + 1, NEVER))
                        of[end] = np.minimum(of[end], np.maximum(before, own))
        found = min(int(of[last]) for of in least.values())
        return found if found < NEVER else None

    def _priced(self, ideal: int, ends: Ints, kind: int, forward: int) -> tuple[Ints, Ints]:
        """Return the ends of stages that fit into device and limits, and their backward passes."""
        passes = range(len(self.stages.compute))
        limits = (forward, PARTS)
        fits = self.used_bytes[kind, ends] - self.used_bytes[kind, ideal] <= PARTS // 2
        for one in passes:
            fits &= self.stages.time(one, kind, ideal, ends) < limits[one]
        ends = ends[fits]
        fits = np.ones(len(ends), np.bool_)
        cost = np.zeros(len(ends), np.int64)
        for one, moved in zip(passes, self.stages.transfers(kind, ideal, ends), strict=True):
            time = self.stages.time(one, kind, ideal, ends)
            cost = np.maximum(time, moved) if self.overlap else time + moved
            fits &= cost < limits[one]
        return ends[fits], cost[fits] if len(passes) > 1 else np.zeros(fits.sum(), np.int64)


@dataclass(frozen=True, eq=False)
class ListedStages:
    """Stages whose M microbatches take less than the target; R of them."""

    start: Ints  # start, end: (R,): the numbers of the ideals between which they are
    end: Ints
    # (4, R): of F, B, I and W, in fractions of the target; the least over kinds of devices
    times: Floats
    # resident, activation: (R,): bytes all the time and per microbatch, as a fraction of the
    # largest memory of a device
    resident: Floats
    activation: Floats
    ideals: int  # number of ideals
    most: int  # most stages of a chain


@dataclass(frozen=True, eq=False)
class Ideals:
    """Ideals of B blocks by size, the empty one first; N of them."""

    block: Ints  # (n,): block of each node; −1 if it is left out
    members: Bools  # (N, B)
    words: NDArray[np.uint64]  # (N, ⌈B / 64⌉): the same, a bit for a block
    left_out: int  # number of other blocks

    def inside(self, ideal: int, others: Ints) -> Bools:
        """Return whether an ideal is a proper subset of each of the others."""
        own = self.words[ideal]
        held: Bools = np.all((self.words[others] & own) == own, axis=1)
        return np.asarray(held & (others > ideal), np.bool_)

    def sums(self, of_nodes: Ints) -> Ints:
        """Return the sum over the nodes of each ideal, shape (N,)."""
        of_blocks: Ints = np.zeros(self.members.shape[1] + 1, np.int64)
        np.add.at(of_blocks, self.block, of_nodes)
        total: Ints = self.members @ of_blocks[:-1]
        return total

    def held(self, nets: Iterable[tuple[int, ...]]) -> NDArray[np.int32]:
        """Return the number of blocks of each net that an ideal holds, shape (N, E)."""
        each = [self.members[:, pins].sum(axis=1) for pins in nets]
        return np.array(each, np.int32).reshape(len(each), len(self.members)).T.copy()


class EndsInReach:
    """Ends of the stages whose compute on the fastest devices is below the target."""

    def __init__(self, inside: Callable[[int, Ints], Bools], least: Ints) -> None:
        self.inside = inside  # whether an ideal is a proper subset of others
        self.least = least  # (N,): compute of each ideal on the fastest devices, in fractions
        self.order = np.argsort(least, kind="stable")
        self.looked = 0

    def after(self, ideal: int, left: int, work: int) -> Ints:
        """Return the ends of stages from an ideal that leave no more than `left` stages can do.

        Each costs `work` units; UncheckedError if their sum becomes too large.
        """
        own = self.least[ideal]
        bounds = max(own, self.least[-1] - left * PARTS), own + PARTS
        begin, end = np.searchsorted(self.least, bounds, sorter=self.order)
        ends = self.order[begin:end]
        ends = ends[self.inside(ideal, ends)]
        self.looked += len(ends) * max(1, work)
        if self.looked > WORK:
            raise too_much("there are too many stages below it")
        return ends


@dataclass(frozen=True, eq=False)
class Stages:
    """Costs of stages between ideals; N ideals, K kinds that have devices, E nets."""

    # compute, crossed: for each pass, shape (K, N): compute of the ideals, and the cost of relayed
    # data at their ends; the latter () if none is relayed
    compute: tuple[Ints, ...]
    crossed: tuple[Ints, ...]
    moved: tuple[Ints, ...]  # for each pass, shape (K, E): cost of the nets
    # held, pins: shapes (N, E) and (E,): blocks of each net that an ideal holds, and that it has
    held: NDArray[np.int32]
    pins: Ints

    @classmethod
    def of(
        cls,
        costs: Costs,
        ideals: Ideals,
        target: float,
        passes: Sequence[Bools],
        readers: Sequence[Sequence[int]],
        *,
        relayed: bool,
    ) -> Stages:
        """Price stages by costs without links between devices; longer times count as the target.

        The nodes of each pass, shape (n,), pay for their outputs. If `relayed`, data moves only
        from a stage to the next. UncheckedError if there are too many ideals and nets.
        """
        kinds = np.flatnonzero(costs.count)
        compute = parts_of_target(costs.compute[kinds], target)
        transfer = parts_of_target(costs.transfer[kinds], target)
        nets = net_costs(ideals.block, readers, transfer * np.array(passes)[:, None])
        if len(ideals.members) * len(nets) > CELLS:
            raise too_much(f"there are {len(ideals.members)} ideals and {len(nets)} nets")
        held, pins = ideals.held(nets), np.array([len(net) for net in nets], np.int64)
        by_net = np.array([*nets.values()], np.int64).reshape(len(nets), len(passes), len(kinds))
        moved = tuple(by_net[:, number].T.copy() for number in range(len(passes)))
        sums = tuple(np.array([ideals.sums(kind * own) for kind in compute]) for own in passes)
        crossed: tuple[Ints, ...] = ()
        if relayed:
            cut = (held > 0) & (held < pins)
            crossed = tuple(np.array([cut @ kind for kind in own]) for own in moved)
        return cls(sums, crossed, moved, held, pins)

    def time(self, number: int, kind: int, ideal: int, ends: Ints) -> Ints:
        """Return the compute of a pass of the stages from one ideal to others."""
        own = self.compute[number][kind]
        time: Ints = own[ends] - own[ideal]
        return time

    def transfers(self, kind: int, ideal: int, ends: Ints) -> list[Ints]:
        """Return the transfers of the stages from one ideal to others, by pass."""
        if self.crossed:
            return [own[kind, ends] + own[kind, ideal] for own in self.crossed]
        open_ = np.flatnonzero(self.held[ideal] < self.pins)
        found = [np.empty(len(ends), np.int64) for _ in self.moved]
        for begin in range(0, len(ends), AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
            new = self.held[np.ix_(ends[some], open_)] - self.held[ideal, open_]
            torn = (new > 0) & (new < self.pins[open_])
            for of_pass, own in zip(found, self.moved, strict=True):
                of_pass[some] = torn @ own[kind, open_]
        return found


def bytes_in_parts(values: Floats, costs: Costs) -> Ints:
    """Return bytes in fractions of twice the memory of a device, by kind that has devices."""
    room = costs.capacity_bytes[costs.count > 0, None] * (1 + RELATIVE_SLACK)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return parts_of_target(np.where(values > 0, values / room, 0.0), 2.0)


def parts_of_target(values: Floats, target: float) -> Ints:
    """Return values in fractions of the target, rounded downwards; those above it as the target."""
    with np.errstate(over="ignore"):
        whole: Ints = np.floor(np.minimum(values / target, 1.0) * PARTS).astype(np.int64)
    return whole


def relevant_nodes(workload: Workload, costs: Costs) -> Bools:
    """Return which nodes take time on some kind of device, or memory that may be short."""
    kept = np.asarray((costs.compute[costs.count > 0] > 0).any(axis=0), np.bool_)
    if not (costs.capacity_bytes[costs.count > 0] >= workload.memory_bytes.sum()).all():
        kept = kept | np.asarray(workload.memory_bytes > 0)
    return kept


def ideals_of(workload: Workload, kept: Bools, waits: Sequence[tuple[int, int]]) -> Ideals:
    """Return all ideals of blocks: of colours, and of those that wait for each other.

    In each pair that waits the first node must not be in a later stage. Blocks of nodes that are
    not `kept`, shape (n,), may be left out. UncheckedError if there are more than `IDEALS`.
    """
    block = merged(workload, waits)
    pairs = {(int(block[u]), int(block[v])) for u, v in waits}
    order = nx.DiGraph((u, v) for u, v in pairs if u != v)
    order.add_nodes_from(block.tolist())
    _leave_out(order, set(block[kept].tolist()))
    number = {b: i for i, b in enumerate(order)}
    size = len(number)
    before = [sum(1 << number[u] for u in order.predecessors(b)) for b in order]
    after = [[number[w] for w in order.successors(b)] for b in order]
    ready = sum(1 << v for v in range(size) if not before[v])
    layers = [{0: ready}]  # blocks that may come next, by ideal
    count = 1
    while len(layers) <= size:
        following: dict[int, int] = {}
        for ideal, ready in layers[-1].items():
            for v in _bits(ready):
                larger = ideal | 1 << v
                if larger not in following:
                    freed = (w for w in after[v] if before[w] & larger == before[w])
                    following[larger] = (ready ^ 1 << v) | sum(1 << w for w in freed)
            if count + len(following) > IDEALS:
                raise too_much(f"there are more than {IDEALS} ideals")
        count += len(following)
        layers.append(following)
    width = 8 * (size // 64 + 1)
    rows = b"".join(ideal.to_bytes(width, "little") for layer in layers for ideal in layer)
    packed = np.frombuffer(rows, np.uint8).reshape(count, width)
    members = np.unpackbits(packed, axis=1, count=size, bitorder="little").astype(np.bool_)
    own = np.array([number.get(b, -1) for b in block.tolist()], np.int64)
    return Ideals(own, members, packed.view(np.uint64), int(block.max(initial=-1)) + 1 - size)


def _leave_out(order: nx.DiGraph[int], kept: set[int]) -> None:
    """Remove blocks of at most one neighbour from the order, except those to keep."""
    ends = [b for b in order if b not in kept]
    while ends:
        b = ends.pop()
        if b in order and b not in kept and order.degree(b) <= 1:
            ends += [*order.predecessors(b), *order.successors(b)]
            order.remove_node(b)


def _bits(mask: int) -> Iterable[int]:
    """Yield the positions of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def list_stages(
    workload: Workload, cluster: Cluster, problem: PipelineJob, target: float
) -> ListedStages:
    """Return the stages of an iteration whose makespan may be below a target, above 0 and finite.

    The split is contiguous, with one stage on a device. O(R E) for E nets; UncheckedError if there
    are too many ideals or stages.
    """
    costs = without_links(price(workload, cluster), returning=False)
    backward, each = workload.backward, target / problem.batch
    waits = [
        (v, u) if backward[u] else (u, v)
        for u, v in workload.edges.tolist()
        if backward[u] == backward[v]
    ]
    ideals = ideals_of(workload, relevant_nodes(workload, costs), waits)
    # a transfer that a device needs in its backward pass alone is received there: it is left out
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
    least = ideals.sums(parts_of_target(costs.compute[costs.count > 0], each).min(axis=0))
    reach = EndsInReach(ideals.inside, least)
    # a stage of blocks left out takes no time, but leaves others more microbatches in flight
    empty = np.arange(size if ideals.left_out else 0)
    columns: list[tuple[Ints, Ints, Floats]] = [(empty, empty, np.zeros((4, len(empty))))]
    count = 0
    for ideal in np.flatnonzero(least <= (most - 1) * PARTS).tolist():
        ends = reach.after(ideal, most - 1, len(stages.pins))
        times = np.full((4, len(ends)), np.inf)
        for kind in kinds:
            times = np.minimum(times, _times(stages, kind, ideal, ends, problem, workload.n))
        fits = np.isfinite(times[0])
        columns.append((np.full(int(fits.sum()), ideal), ends[fits], times[:, fits]))
        count += int(fits.sum())
        if count > STAGES:
            raise too_much("there are too many stages below it")
    start = np.concatenate([own for own, _, _ in columns])
    end = np.concatenate([own for _, own, _ in columns])
    times = np.concatenate([own for _, _, own in columns], axis=1)
    resident, activation = ((of[end] - of[start]) / (PARTS // 2) for of in used)
    return ListedStages(start, end, times / problem.batch, resident, activation, size, most)


def _times(
    stages: Stages, kind: int, ideal: int, ends: Ints, problem: PipelineJob, nodes: int
) -> Floats:
    """Return the times of F, B, I and W on a kind of device; `inf` beyond the target."""
    compute = [stages.time(number, kind, ideal, ends) for number in (0, 1)]
    moved = [np.zeros_like(compute[0])] * 2
    if not problem.overlap:
        moved = stages.transfers(kind, ideal, ends)
    forward, back = compute[0] + moved[0], compute[1] + moved[1]
    share = problem.weight_share
    # I is the difference of two times: what rounding took from the compute is added back
    rows = np.array([forward, back, back - share * (compute[1] + nodes), share * compute[1]])
    return np.where(forward + back < PARTS, np.maximum(rows, 0.0) / PARTS, np.inf)


def no_chain_below(workload: Workload, costs: Costs, problem: Throughput, target: float) -> bool:
    """Prove that every contiguous split has an objective of `target` or more; False if not.

    Links between devices are left out, which raises no objective. O(R E) for R stages below the
    target, above 0 and finite, and E nets; UncheckedError if there are too many ideals or stages.
    """
    chains = _chains(workload, without_links(costs, returning=False), problem, target)
    if problem.pipeline != "gpipe":
        return chains.least_backward(PARTS) is None
    backward = 0
    for _ in range(CHAINS):
        least = chains.least_backward(PARTS - backward)
        if least is None:
            return True
        if least <= backward:
            return False
        backward = least
    raise too_much(f"more than {CHAINS} chains are close to it")


def _chains(workload: Workload, costs: Costs, problem: Throughput, target: float) -> _Chains:
    """Return the graph of a problem's ideals and stages."""
    ideals = ideals_of(workload, relevant_nodes(workload, costs), pipeline_edges(workload))
    backward, all_nodes = workload.backward, np.ones(workload.n, np.bool_)
    passes = (~backward, backward) if problem.pipeline == "gpipe" else (all_nodes,)
    stages = Stages.of(costs, ideals, target, passes, workload.successors, relayed=problem.relayed)
    used = bytes_in_parts(workload.memory_bytes, costs)
    compute = parts_of_target(costs.compute[costs.count > 0], target)
    return _Chains(
        problem.overlap,
        ideals,
        costs.count[costs.count > 0],
        stages,
        np.array([ideals.sums(kind) for kind in used]),
        ideals.sums(compute.min(axis=0)),
    )


def _best(states: list[State]) -> list[State]:
    """Return the undominated states among those reached."""
    kept: list[State] = []
    for used, backward in sorted(states):
        if backward < NEVER and not any(
            before <= backward and all(a <= b for a, b in zip(fewer, used, strict=True))
            for fewer, before in kept
        ):
            kept.append((used, backward))
    return kept


@dataclass(frozen=True, eq=False)
class _Places:
    """Places of blocks and nets along a path; B blocks, E nets, P pins of them."""

    path: Ints  # (L,): its blocks
    # (B,) and (P,): blocks and pins by f, with f and g of each
    block: Ints
    block_f: Ints
    block_g: Ints
    net: Ints
    net_f: Ints
    net_g: Ints
    # (E,): least f and greatest g of each net's blocks
    first: Ints
    last: Ints

    def window(self, of: Ints, begin: int, end: int) -> slice:
        """Return which of the sorted numbers f are at least `begin` and below `end`."""
        low, high = np.searchsorted(of, [begin, end])
        return slice(int(low), int(high))


def no_intervals_below(
    workload: Workload, costs: Costs, problem: Throughput, target: float
) -> bool:
    """Prove that every contiguous split has an objective of `target` or more; False if not.

    Links between devices are left out, which raises no objective. O(L P) for a path of L blocks
    and P pins of nets; UncheckedError if there are too many nodes.
    """
    if problem.overlap:
        return False
    if workload.n > MOST_NODES:
        raise too_much(f"there are more than {MOST_NODES} nodes")
    costs = without_links(costs, returning=False)
    used = np.flatnonzero(costs.count)
    order = np.argsort(-costs.count[used], kind="stable")
    block = merged(workload, pipeline_edges(workload))
    time = summed(block, parts_of_target(costs.compute[used], target)[order])
    memory = summed(block, bytes_in_parts(workload.memory_bytes, costs)[order])
    nets = net_costs(
        block, workload.successors, parts_of_target(costs.transfer[used], target)[order]
    )
    weight = np.array([*nets.values()], np.int64).reshape(len(nets), len(used)).T
    places = _places(workload, block, np.minimum(time[0], PARTS), list(nets))
    return _refuted(places, (time, memory, weight), costs.count[used][order])


def _places(workload: Workload, block: Ints, work: Ints, nets: list[tuple[int, ...]]) -> _Places:
    """Return the places of blocks and nets along the path of the most work."""
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(work)))
    pairs = ((int(block[u]), int(block[v])) for u, v in pipeline_edges(workload))
    order.add_edges_from((u, v, {"work": int(work[u])}) for u, v in pairs if u != v)
    path = np.array(nx.dag_longest_path(order, weight="work"), np.int64)
    f, g = np.full(len(work), len(path)), np.full(len(work), -1)
    f[path] = g[path] = np.arange(len(path))
    topological = list(nx.topological_sort(order))
    for u in topological:
        for v in order.successors(u):
            g[v] = max(g[v], g[u])
    for v in reversed(topological):
        for u in order.predecessors(v):
            f[u] = min(f[u], f[v])
    pins = np.array([b for net in nets for b in net], np.int64)
    of = np.repeat(np.arange(len(nets)), [len(net) for net in nets])
    first, last = np.full(len(nets), len(path)), np.full(len(nets), -1)
    np.minimum.at(first, of, f[pins])
    np.maximum.at(last, of, g[pins])
    by_f, pins_by_f = np.argsort(f, kind="stable"), np.argsort(f[pins], kind="stable")
    return _Places(
        path, by_f, f[by_f], g[by_f],
        of[pins_by_f], f[pins][pins_by_f], g[pins][pins_by_f], first, last,
    )  # fmt: skip


def _refuted(places: _Places, costs: tuple[Ints, Ints, Ints], count: Ints) -> bool:
    """Return whether stages below the target cannot make up the path, or not do all the work."""
    time, memory, weight = costs
    length, many, others = len(places.path), int(count[0]), int(count[1:].sum())
    fewest = np.full((others + 1, length + 1), many + 1)  # devices of kind 0, by o and place
    least = np.full((others + 1, length + 1), np.inf)  # cost of nets of their stages
    fewest[0, 0], least[0, 0] = 0, 0.0
    for i in range(length):
        for k in range(len(count)):
            reached = np.flatnonzero(fewest[:, i] < many + (k > 0))
            if k > 0:
                reached = reached[reached < others]
            if not len(reached):
                continue
            ends, paid = _stages(places, i, time[k], memory[k], weight[k])
            for o in reached.tolist():
                then, more = (o, 1) if k == 0 else (o + 1, 0)
                fewest[then, ends] = np.minimum(fewest[then, ends], fewest[o, i] + more)
                least[then, ends] = np.minimum(least[then, ends], least[o, i] + paid * more)
    if fewest[:, -1].min() > many:
        return True
    value, room = time[0].astype(np.float64), float(PARTS)
    taken = sum(
        int(n) * fitting(value, np.where(own < PARTS, own, np.inf), room)
        for n, own in zip(count[1:], time[1:].astype(np.float64), strict=True)
    )
    total = float(value.sum()) * (1 - ROUNDING) - taken
    return total + float(least[:, -1].min()) * (1 - ROUNDING) >= many * room


def _stages(places: _Places, i: int, time: Ints, memory: Ints, weight: Ints) -> tuple[Ints, Floats]:
    """Return the ends j of stages from i below the target, and the cost of nets of each."""
    along = np.cumsum(time[places.path[i:]])
    end = i + int(np.searchsorted(along, PARTS)) + 1  # no stage ends there or later
    end = min(end, len(places.path) + 1)
    inner = places.window(places.block_f, i, end)
    held = places.block_g[inner] >= i
    at, block = places.block_f[inner][held] - i + 1, places.block[inner][held]
    load, used = np.zeros((2, end - i + 1), np.int64)
    np.add.at(load, at, time[block])
    np.add.at(used, at, memory[block])
    inner = places.window(places.net_f, i, end)
    held = places.net_g[inner] >= i
    at, net = places.net_f[inner][held] - i + 1, places.net[inner][held]
    pin = np.zeros(len(places.first), np.int64)
    pin[net[::-1]] = np.arange(len(net))[::-1]  # the one of the least f is written last
    at, net = at[pin[net] == np.arange(len(net))], net[pin[net] == np.arange(len(net))]
    paid = np.zeros(end - i + 1, np.int64)
    np.add.at(paid, at, weight[net])
    inside = places.first[net] >= i
    over = np.clip(places.last[net] - i + 1, at, end - i)[inside]
    np.add.at(paid, over, -weight[net][inside])
    load, used, paid = np.cumsum(load), np.cumsum(used), np.cumsum(paid)
    fits = (load + paid < PARTS) & (used <= PARTS // 2)
    fits[[0, -1]] = False
    ends = np.flatnonzero(fits)
    return ends + i, paid[ends].astype(np.float64)
