"""Bounds on the max-load that need no evidence: the heaviest block, work, counting.

Blocks are what must be on one device: nodes of a colour, and in a contiguous split colours that
wait for each other. Let p_{k,b,v} be the time of block v on a device of kind k in pass b, `inf`
where it cannot be there, m_v its bytes, M_k and n_k the memory and the number of such devices.
GPipe's objective is a maximum of either pass, T = T_1 + T_2; else there is one pass.

1. T_b ≥ max_v min_k p_{k,b,v}, transfers left aside, as below.
2. For any λ, μ ≥ 0 and θ_b = 1 − Σ_k n_k λ_{k,b} ≥ 0, as devices have n_k T_b and n_k M_k in all,

       T ≥ Σ_v min_k (Σ_b λ_{k,b} p_{k,b,v} + μ_k m_v) − Σ_k μ_k n_k M_k + Σ_b θ_b (what 1 says)

   SciPy proposes the numbers, which are summed up here: whatever they are, that is a bound.
3. A device that holds v holds a set with it, and no set with v takes less than a minimum cut says,
   transfers counted (`cuts`); where transfers do not overlap compute.
4. Of the h heaviest blocks, a device within T_b holds at most as many as of its shortest ones fit
   into T_b. All devices must hold h, for each h.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ....instances import Costs, Throughput, Workload, without_links
from ....instances.common.arrays import Floats, Ints
from ....instances.model.contiguity import pipeline_edges
from ..rules import allowed_each
from .cuts import least_cut, nets_of

#: What is taken off for rounding, as a part of the sum of all magnitudes.
ROUNDING = 1e-12

#: Blocks of which 3 and 4 are asked, at most.
CUT, COUNTED = 16, 500


def max_load_bound(
    workload: Workload, costs: Costs, problem: Throughput, *, transfers: bool = True
) -> float:
    """Return the best of the bounds; 0 where a block fits on no device, which proves nothing here.

    Parameters
    ----------
    transfers
        Whether devices spend time on them, as 3 has it.

    O(K n) for n nodes and K kinds, and a linear program of as many rows where K > 1.
    """
    kinds = np.flatnonzero(costs.count)
    block = blocks(workload, costs, problem)
    size = int(block.max(initial=-1)) + 1
    time = np.zeros((len(kinds), 2, size))
    for i, k in enumerate(kinds):
        np.add.at(time[i], (workload.backward.astype(np.int64), block), costs.compute[k])
    time += np.where(np.isinf(time).any(axis=1, keepdims=True), np.inf, 0.0)
    if problem.pipeline != "gpipe":
        time = time.sum(axis=1, keepdims=True)
    memory = np.asarray(np.bincount(block, weights=costs.memory_bytes), np.float64)
    room = allowed_each(costs.capacity_bytes[kinds])
    time += np.where(memory > room[:, None], np.inf, 0.0)[:, None]
    if not size or np.isinf(time).all(axis=0).any():
        return 0.0
    count = costs.count[kinds].astype(np.float64)
    heaviest = time.min(axis=0).max(axis=1)
    counted = sum(_counted(time[:, b], count) for b in range(time.shape[1]))
    worked = _by_work(time, heaviest, memory, room, count)
    best = max(float(heaviest.sum()) * (1 - ROUNDING), worked, counted * (1 - ROUNDING))
    if problem.overlap or not transfers:
        return best
    moved = without_links(costs, returning=False).transfer[kinds]
    return max(best, _by_cuts(workload, block, time.sum(axis=1), moved))


def blocks(workload: Workload, costs: Costs, problem: Throughput) -> Ints:
    """Return the number of the block of each node, shape (n,)."""
    return merged(workload, pipeline_edges(workload) if keeps_order(costs, problem) else ())


def merged(workload: Workload, waits: Iterable[tuple[int, int]]) -> Ints:
    """Return blocks of colours, and of those that wait for each other, shape (n,)."""
    import networkx as nx

    together: nx.Graph[int] = nx.Graph()
    together.add_nodes_from(range(workload.n))
    for members in workload.colour_classes:
        nx.add_path(together, members)
    of = {v: min(part) for part in nx.connected_components(together) for v in part}
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_edges_from((of[u], of[v]) for u, v in waits)
    for circle in nx.strongly_connected_components(order):
        nx.add_path(together, circle)
    number = np.empty(workload.n, np.int64)
    for b, part in enumerate(nx.connected_components(together)):
        number[list(part)] = b
    return number


def keeps_order(costs: Costs, problem: Throughput) -> bool:
    """Whether all devices can be executed one after the other."""
    alone = problem.cpu_split == "free" and bool((costs.host & (costs.count > 0)).any())
    return problem.split == "contiguous" and not alone


def _counted(time: Floats, count: Floats) -> float:
    """Return the least T at which the devices can hold the h heaviest blocks, for every h.

    Sums of the a shortest of them on a kind are there as often as there are devices of the kind:
    within T the devices hold as many blocks as there are sums up to T.
    """
    order = np.argsort(-time.min(axis=0), kind="stable")[:COUNTED]
    least = 0.0
    for h in range(1, len(order) + 1):
        sums = np.cumsum(np.sort(time[:, order[:h]], axis=1), axis=1)
        by_sum = np.argsort(sums, axis=None)
        held = np.cumsum(np.repeat(count, h)[by_sum])
        least = max(least, float(sums.ravel()[by_sum[int(np.searchsorted(held, h))]]))
    return least if math.isfinite(least) else 0.0


def _by_cuts(workload: Workload, block: Ints, time: Floats, moved: Floats) -> float:
    """Return 3; `time` has shape (K, B), `moved` (K, n)."""
    nets = nets_of(workload, block)
    best = 0.0
    for heavy in np.argsort(-time.min(axis=0), kind="stable")[:CUT].tolist():
        side = np.where(np.arange(time.shape[1]) == heavy, 1, 0)
        kinds = [k for k in range(len(time)) if np.isfinite(time[k, heavy])]
        best = max(best, min(least_cut(side, time[k], moved[k], nets) for k in kinds))
    return best * (1 - ROUNDING)


def _by_work(time: Floats, heaviest: Floats, memory: Floats, room: Floats, count: Floats) -> float:
    """Return 2 by equal λ, and by those that a linear program proposes."""
    kinds, passes, _ = time.shape
    even = np.full((kinds, passes), 1 / count.sum())
    best = _proved(time, heaviest, memory, room, count, even, np.zeros(kinds))
    if kinds > 1:
        best = max(best, _proved(time, heaviest, memory, room, count, *_proposed(
            time, heaviest, memory, room, count)))  # fmt: skip
    return best


def _proved(
    time: Floats, heaviest: Floats, memory: Floats, room: Floats, count: Floats,
    by_time: Floats, by_memory: Floats,
) -> float:  # fmt: skip
    by_time, by_memory = np.maximum(by_time, 0.0), np.maximum(by_memory, 0.0)
    by_memory[np.isinf(room)] = 0.0
    by_time = by_time / np.maximum(1.0, (count[:, None] * by_time).sum(axis=0))
    rest = np.maximum(0.0, 1.0 - (count[:, None] * by_time).sum(axis=0) - ROUNDING)
    with np.errstate(invalid="ignore"):
        each = np.where(np.isinf(time), np.inf, by_time[:, :, None] * time).sum(axis=1)
    gained = math.fsum((each + by_memory[:, None] * memory).min(axis=0).tolist())
    paid = math.fsum((by_memory * count * np.where(np.isinf(room), 0.0, room)).tolist())
    left = float(rest @ heaviest)
    return gained + left - paid - ROUNDING * (gained + left + paid)


def _proposed(
    time: Floats, heaviest: Floats, memory: Floats, room: Floats, count: Floats
) -> tuple[Floats, Floats]:
    """Return λ and μ by the linear program: maximise 2, with z_v for the minimum of block v.

    Columns are the z_v, the λ by kind and pass, the μ.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    kinds, passes, size = time.shape
    scale, unit = float(time[np.isfinite(time)].max()) or 1.0, float(memory.max()) or 1.0
    kind, block = np.nonzero(np.isfinite(time).all(axis=1))  # z_v ≤ Σ_b λ p + μ m
    row = np.arange(len(kind))
    entries = [
        (row, block, np.ones(len(row))),
        (row, size + kinds * passes + kind, -memory[block] / unit),
    ]
    for b in range(passes):  # and Σ_k n_k λ ≤ 1
        of_pass = size + np.arange(kinds) * passes + b
        entries += [
            (row, size + kind * passes + b, -time[kind, b, block] / scale),
            (np.full(kinds, len(row) + b), of_pass, count),
        ]
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    width = size + kinds * passes + kinds
    limited = np.isfinite(room)
    gain = np.concatenate(
        [
            np.ones(size),
            -np.outer(count, heaviest / scale).ravel(),
            -count * np.where(limited, room, 0.0) / unit,
        ]
    )
    matrix: Any = coo_array((values, (rows, columns)), shape=(len(row) + passes, width)).tocsr()
    found: Any = linprog(
        -gain,
        A_ub=matrix,
        b_ub=np.append(np.zeros(len(row)), np.ones(passes)),
        bounds=[(0.0, None)] * (width - kinds) + [(0.0, None if one else 0.0) for one in limited],
    )
    if found.x is None:
        return np.full((kinds, passes), 1 / count.sum()), np.zeros(kinds)
    by_time = found.x[size : size + kinds * passes].reshape(kinds, passes)
    return by_time, found.x[size + kinds * passes :] * scale / unit
