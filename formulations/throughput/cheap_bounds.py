"""Lower bounds on the max-load, in the workload's time unit, for every split and pipeline.

Bounds that do not count transfers also hold with overlap, links and relayed data. Let p_{k,v} be
the time of unit v on a device of kind k, `inf` if that does not support v or is too small for it,
m_v its size, M_k the memory and n_k the number of the devices. GPipe's objective is a maximum of
the forward pass plus one of the backward pass, T = T_1 + T_2; otherwise there is one, T = T_1.

*Heaviest unit.* T_b ≥ max_v min_k p_{k,b,v}.

*Work.* Units may be divided at will, and all devices of a kind pool their time and memory:

    minimise Σ_b T_b    s.t.  Σ_k x_{k,v} = 1                            for each unit v
                              Σ_v p_{k,b,v} x_{k,v} ≤ n_k T_b            (λ_{k,b})
                              Σ_v m_v x_{k,v} ≤ n_k M_k                  (μ_k)
                              T_b ≥ max_v min_k p_{k,b,v},  x ≥ 0        (θ_b)

With one kind this is Σ_v p_v / n; with several, it counts units that small memories force onto slow
kinds. Any multipliers λ, μ, θ ≥ 0 with Σ_k n_k λ_{k,b} + θ_b = 1 prove, by duality,

    Σ_b T_b ≥ Σ_v min_k (Σ_b λ_{k,b} p_{k,b,v} + μ_k m_v) − Σ_k μ_k n_k M_k + Σ_b θ_b · heaviest_b,

so the linear program only proposes multipliers, and its tolerances cannot make a bound wrong.

*Counting*: there are too many heavy units for the devices. Let H be a set of units. With a load of
at most T, a device of kind k can hold at most

    a_k(T, H) = the largest a such that the a smallest times of H on kind k add up to at most T

of them, even without transfers. If Σ_k n_k a_k(T, H) < |H|, then T is impossible, for every split
and also with overlap. This is the strongest bound if a few equal layers dominate, as in BERT: of 25
layers on 6 devices, 5 are on one.

Sets H tried: the h heaviest units, for each h up to `MAX_HEAVIEST`.

*A heavy unit and its transfers*: some device of a kind k holds unit v in a set S of units, so that

    T ≥ min over k of min { Σ_{u∈S} p_{k,u} + Σ_{nets e: ∅ ≠ e∩S ≠ e} w_{k,e} : v ∈ S } .

The inner minimum is a minimum cut: a unit in S pays p, its arc to the sink; a cut net pays w, the
arc from its vertex *some pins in S* to its vertex *all pins in S*. If one unit takes as long as all
others together on the other devices, as in a detector whose proposals share a colour, its
transfers are most of the remaining gap.

This bound is the only one that counts transfers as load: it does not hold if they overlap compute,
and it bounds the max-load, not GPipe's sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Floats, Ints
from ..linear import MatrixEntries, least_cost
from ..task import Task
from .certificate import PROOF_MARGIN
from .hypergraph import Hypergraph, colour_units, hypergraph, pipeline_units
from .whole_bytes import room_of

ORIGIN = "a heavy unit and its transfers"

#: Number of heaviest units for which minimum cuts are computed.
HEAVIEST = 8

#: Sum of all capacities of a cut as integers, which SciPy needs below 2^31; they are rounded down,
#: which can only lower a bound.
WHOLE = float(1 << 30)

#: Units in the largest set H tried: only few, heavy units decide.
MAX_HEAVIEST = 500


def throughput_cheap_bounds(task: Task[Throughput]) -> Iterator[tuple[float, str]]:
    """Yield bounds on the max-load with their origins, the quickest first."""
    graph, best = hypergraph(task, units_of_split(task)), 0.0
    for bound, origin in compute_bounds(task, graph):
        best = max(best, bound)
        yield bound, origin
    yield from ((bound, ORIGIN) for bound in unit_cut_bounds(task, graph, best))


def compute_bounds(task: Task[Throughput], graph: Hypergraph) -> Iterator[tuple[float, str]]:
    """Yield bounds that count no transfers; none if some unit fits on no device.

    Takes O(K U) for K kinds and U units; a linear program of K U columns if K > 1; and `count_out`.
    """
    costs = task.costs
    kinds = np.flatnonzero(costs.count)
    passes = graph.compute[kinds]  # (K, 2, U)
    time = passes if task.problem.pipeline == "gpipe" else passes.sum(axis=1, keepdims=True)
    room = room_of(costs.capacity_bytes[kinds])
    time = np.where((graph.memory_bytes > room[:, None])[:, None], np.inf, time)
    if np.isinf(time).all(axis=0).any() or not graph.size:
        return
    heaviest = time.min(axis=0).max(axis=1)
    yield float(heaviest.sum()) * (1 - PROOF_MARGIN), "heaviest unit"
    work = _work(time, heaviest, graph.memory_bytes, room, costs.count[kinds].astype(np.float64))
    yield work, "total work over all devices"
    counted = sum(count_out(part, costs.count[kinds]) for part in time.swapaxes(0, 1))
    yield counted * (1 - PROOF_MARGIN), "counting heavy units"


def units_of_split(task: Task[Throughput]) -> Ints:
    """Return the coarsest units, shape (n,), that every plan of the split keeps together.

    If nodes on CPU cores count one by one, cycles of colours may be divided there.
    """
    problem, costs = task.problem, task.costs
    free_cpus = problem.cpu_split == "free" and bool((costs.count > 0)[costs.host].any())
    whole = problem.split == "contiguous" and not free_cpus
    return pipeline_units(task) if whole else colour_units(task)


def _work(
    time: Floats, heaviest: Floats, memory_bytes: Floats, room: Floats, count: Floats
) -> float:
    """Return the work bound: the best that even or optimised multipliers prove.

    Times have shape (K, B, U), the heaviest ones (B,).
    """
    kinds, passes, _ = time.shape
    even = np.full((kinds, passes), 1 / count.sum())
    best = _proved(time, heaviest, memory_bytes, room, count, even, np.zeros(kinds))
    if kinds == 1:
        return best
    found = _multipliers(time, heaviest, memory_bytes, room, count)
    if found is None:
        return best
    return max(best, _proved(time, heaviest, memory_bytes, room, count, *found))


def _proved(
    time: Floats, heaviest: Floats, memory_bytes: Floats, room: Floats, count: Floats,
    on_time: Floats, on_memory: Floats,
) -> float:  # fmt: skip
    """Return the bound that multipliers prove: λ, (K, B), scaled down if too large, and μ, (K,).

    A margin for rounding, a part of the sum of all magnitudes, is subtracted.
    """
    on_time = np.maximum(on_time, 0.0)
    on_memory = np.where(np.isfinite(room), np.maximum(on_memory, 0.0), 0.0)
    on_time = on_time / np.maximum(1.0, count @ on_time)
    finite = np.where(np.isinf(time), 0.0, time)
    price = (on_time[:, :, None] * finite).sum(axis=1) + on_memory[:, None] * memory_bytes
    price = np.where(np.isinf(time).any(axis=1), np.inf, price)
    each = price.min(axis=0)
    fee = float((on_memory * count)[np.isfinite(room)] @ room[np.isfinite(room)])
    rest = float(np.maximum(0.0, 1.0 - count @ on_time) @ heaviest)
    total = float(each.sum())
    return total + rest - fee - PROOF_MARGIN * (total + rest + fee)


def _multipliers(
    time: Floats, heaviest: Floats, memory_bytes: Floats, room: Floats, count: Floats
) -> tuple[Floats, Floats] | None:
    """Return multipliers λ, shape (K, B), and μ, (K,), from the linear program.

    None if memory seems too small, which the program's tolerances do not prove.
    """
    kinds, passes, size = time.shape
    able = np.isfinite(time).all(axis=1)  # (K, U)
    kind, unit = np.nonzero(able)
    columns = np.arange(len(unit))
    scale = float(np.where(able, time.sum(axis=1), 0.0).max()) or 1.0
    bytes_scale = float(memory_bytes.max()) or 1.0
    finite = np.where(np.isfinite(room), room, 0.0)
    limited = np.flatnonzero(np.isfinite(room) & (count * finite < memory_bytes.sum()))
    row_of = np.full(kinds, -1)
    row_of[limited] = kinds * passes + np.arange(len(limited))
    rows = [kind * passes + b for b in range(passes)]
    values = [time[kind, b, unit] / scale for b in range(passes)]
    held = row_of[kind] >= 0
    rows += [row_of[kind[held]], np.arange(kinds * passes)]
    values += [memory_bytes[unit[held]] / bytes_scale, -np.repeat(count, passes)]
    across = [columns] * passes + [columns[held], len(unit) + np.arange(kinds * passes) % passes]
    height = kinds * passes + len(limited)
    once = (height + unit, columns, np.ones(len(unit)))
    at, of, value = (
        np.concatenate([np.concatenate(some), more])
        for some, more in zip((rows, across, values), once, strict=True)
    )
    sides = np.concatenate(
        [np.zeros(kinds * passes), (count * finite)[limited] / bytes_scale, np.ones(size)]
    )
    found = least_cost(
        np.concatenate([np.zeros(len(unit)), np.ones(passes)]),
        np.concatenate([np.zeros(len(unit)), heaviest / scale]),
        MatrixEntries(at, of, value),
        np.where(np.arange(height + size) < height, -np.inf, sides),
        sides,
    )
    if found is None:
        return None
    duals = -found.row_duals[:height]
    on_memory = np.zeros(kinds)
    on_memory[limited] = duals[kinds * passes :] * scale / bytes_scale
    return duals[: kinds * passes].reshape(kinds, passes), on_memory


def count_out(time: Floats, count: Ints) -> float:
    """Return the largest T, to a relative 1e-9, below which counting excludes every placement.

    `time`, (K, U), is `inf` where a kind, of which there are `count` devices, does not take a unit.
    O(K H² log H) once and O(K H log H) for each of some 40 values of T, for K kinds and H =
    `MAX_HEAVIEST`.
    """
    heaviest = np.argsort(-time.min(axis=0), kind="stable")
    sizes = range(1, min(time.shape[1], MAX_HEAVIEST) + 1)
    # sums[k][h − 1][a]: the a smallest times on kind k of the h heaviest units.
    sums = [[np.cumsum(np.sort(times[heaviest[:h]])) for h in sizes] for times in time]

    def impossible(limit: float) -> bool:
        return any(
            sum(
                int(n) * int(np.searchsorted(of_kind[h - 1], limit, side="right"))
                for n, of_kind in zip(count, sums, strict=True)
            )
            < h
            for h in sizes
        )

    finite = np.where(np.isinf(time), 0.0, time)
    low, high = 0.0, float(finite.sum())
    if impossible(high) or not impossible(low):
        return low
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if impossible(middle) else (low, middle)
    return low


def unit_cut_bounds(task: Task[Throughput], graph: Hypergraph, known: float) -> Iterator[float]:
    """Yield increasing bounds on the max-load above `known`.

    Takes `HEAVIEST` maximum flows through a graph of units and nets for each kind of device.
    """
    if task.problem.overlap:
        return
    kinds = np.flatnonzero(task.costs.count)
    compute, weight = graph.compute.sum(axis=1)[kinds], graph.weight.sum(axis=1)[kinds]
    alone = compute.copy()  # load of a unit by itself: an upper bound on its cut
    net, pin = _pins(graph)
    for k in range(len(kinds)):
        np.add.at(alone[k], pin, weight[k, net])
    least = alone.min(axis=0)
    for unit in np.argsort(-compute.min(axis=0), kind="stable")[:HEAVIEST].tolist():
        if not known < least[unit] < np.inf:
            continue
        cut = min(_least_load(graph, compute[k], weight[k], unit) for k in range(len(kinds)))
        if cut * (1 - PROOF_MARGIN) > known:
            known = cut * (1 - PROOF_MARGIN)
            yield known


def _pins(graph: Hypergraph) -> tuple[Ints, Ints]:
    """Return all pins as pairs of a net and a unit, in two arrays."""
    ptr, pins, _, _ = graph.incidence
    return np.repeat(np.arange(len(graph.pins)), np.diff(ptr)), pins


def _least_load(graph: Hypergraph, compute: Floats, weight: Floats, unit: int) -> float:
    """Return a lower bound on the load of any set with the unit, on one kind; `inf` if none."""
    if np.isinf(compute[unit]):
        return np.inf
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    units, nets = graph.size, np.arange(len(graph.pins))
    total = float(np.where(np.isinf(compute), 0.0, compute).sum() + weight.sum())
    if total == 0.0:
        return 0.0
    sink, some, every = units, units + 1, units + 1 + len(nets)  # the unit is the source
    of_net, pin = _pins(graph)
    of_net, pin = of_net[weight[of_net] > 0], pin[weight[of_net] > 0]
    begin = np.concatenate([np.arange(units), some + nets, pin, every + of_net])
    end = np.concatenate([np.full(units, sink), every + nets, some + of_net, pin])
    capacity = np.minimum(np.concatenate([compute, weight]), total) * (WHOLE / total)
    whole = np.concatenate([np.floor(capacity), np.full(2 * len(pin), WHOLE)]).astype(np.int32)
    size = every + len(nets)
    arcs = coo_array((whole, (begin, end)), shape=(size, size)).tocsr()
    return float(maximum_flow(arcs, unit, sink).flow_value) * total / WHOLE
