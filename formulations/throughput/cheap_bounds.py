"""Bounds on the max-load that cost next to nothing, for every split, pipeline and cluster.

What does not count transfers holds with overlap, links and relayed data too. Let p_{k,v} be
the time of unit v on a device of kind k, `inf` where that does not support it or is too small for
it, m_v its size, M_k the memory and n_k the number of the devices. GPipe's objective is a maximum
of the forward pass and one of the backward pass, T = T_1 + T_2; else there is one, T = T_1.

*Heaviest unit.* T_b ≥ max_v min_k p_{k,b,v}.

*Work.* Units may be divided at will, and all devices of a kind share their time and memory:

    minimise Σ_b T_b    s.t.  Σ_k x_{k,v} = 1                            for each unit v
                              Σ_v p_{k,b,v} x_{k,v} ≤ n_k T_b            (λ_{k,b})
                              Σ_v m_v x_{k,v} ≤ n_k M_k                  (μ_k)
                              T_b ≥ max_v min_k p_{k,b,v},  x ≥ 0        (θ_b)

With one kind that is Σ_v p_v / n. With several it is the fractional way out of small memories and
slow cores. Any multipliers λ, μ, θ ≥ 0 with Σ_k n_k λ_{k,b} + θ_b = 1 prove, by duality,

    Σ_b T_b ≥ Σ_v min_k (Σ_b λ_{k,b} p_{k,b,v} + μ_k m_v) − Σ_k μ_k n_k M_k + Σ_b θ_b · heaviest_b,

so the linear program only proposes multipliers, and its tolerances cannot make a bound wrong.

*Counting*: see `counting`. *A heavy unit and its transfers*: see `unit_cuts`; it alone counts
transfers, and is for the max-load alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Floats, Ints
from ..linear_program import Entries, least_cost
from ..task import Task
from .certificate import PROOF_MARGIN
from .counting import count_out
from .hypergraph import Hypergraph, colour_units, hypergraph, pipeline_units
from .unit_cuts import ORIGIN as UNIT_CUT
from .unit_cuts import unit_cut_bounds
from .whole_bytes import room_of


def throughput_cheap_bounds(task: Task[Throughput]) -> Iterator[tuple[float, str]]:
    """Yield bounds on the max-load with their origins, the quickest first."""
    graph, best = hypergraph(task, units_of_split(task)), 0.0
    for bound, origin in compute_bounds(task, graph):
        best = max(best, bound)
        yield bound, origin
    yield from ((bound, UNIT_CUT) for bound in unit_cut_bounds(task, graph, best))


def compute_bounds(task: Task[Throughput], graph: Hypergraph) -> Iterator[tuple[float, str]]:
    """Yield bounds that count no transfers; none where a unit fits on no device.

    Parameters
    ----------
    graph
        Units that must each be on one device.

    Notes
    -----
    O(K U) for K kinds and U units, a linear program of K U columns where K > 1, and `counting`.
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
    """Return the coarsest units that every plan of the split keeps together; shape (n,).

    With nodes that count one by one on CPU cores, circles of colours may be taken apart there.
    """
    problem, costs = task.problem, task.costs
    gaps = problem.cpu_split == "free" and bool((costs.count > 0)[costs.host].any())
    whole = problem.split == "contiguous" and not gaps
    return pipeline_units(task) if whole else colour_units(task)


def _work(
    time: Floats, heaviest: Floats, memory_bytes: Floats, room: Floats, count: Floats
) -> float:
    """Return the bound by work: the best that any multipliers at hand prove.

    Parameters
    ----------
    time
        Shape (K, B, U).
    heaviest
        Shape (B,).
    room, count
        Shape (K,).
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
    """Return what multipliers prove: λ of shape (K, B), scaled down if they are too large, μ (K,).

    Rounding is allowed for by a part of the sum of all magnitudes.
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
    """Return multipliers λ of shape (K, B) and μ (K,) from the linear program.

    None where memory seems not to suffice, which the tolerances of the program do not prove.
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
        Entries(at, of, value),
        np.where(np.arange(height + size) < height, -np.inf, sides),
        sides,
    )
    if found is None:
        return None
    duals = -found.row_duals[:height]
    on_memory = np.zeros(kinds)
    on_memory[limited] = duals[kinds * passes :] * scale / bytes_scale
    return duals[: kinds * passes].reshape(kinds, passes), on_memory
