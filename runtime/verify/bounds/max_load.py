"""Lower bounds on the max-load: from the workload alone, and by prices with hubs.

*Workload alone.* A block is a set of nodes that must share a device: a colour, and in a contiguous
split colours that wait for each other. Let p_{k,b,v} be the time of block v on a device of kind k
in pass b, `inf` where it cannot be there, m_v its bytes, M_k and n_k the memory and the number of
such devices. GPipe's objective is a maximum of either pass, T = T_1 + T_2; else there is one pass.

1. T_b ≥ B_b = max_v min_k p_{k,b,v}, without transfers, as in 2 and 4.
2. For any λ, μ ≥ 0 and θ_b = 1 − Σ_k n_k λ_{k,b} ≥ 0, as devices have n_k T_b and n_k M_k in all,

       T ≥ Σ_v min_k (Σ_b λ_{k,b} p_{k,b,v} + μ_k m_v) − Σ_k μ_k n_k M_k + Σ_b θ_b B_b

   SciPy proposes λ and μ, and the right side is computed here: any values give a bound.
3. The device of v has the load of a set with v, transfers included, which is at least that of a
   minimum cut; only where transfers do not overlap compute.
4. Of the h heaviest blocks, a device within T_b holds at most as many as of its shortest ones fit
   into T_b. All devices together must hold h, for each h.

*Minimum cuts* give the least load of a set that holds some blocks and not some others: a set S
costs a device Σ p over S, and c_u for each node u of which some, not all, of u and its
readers are in S.

*Prices and hubs.* Both are in the certificate, with the target T; hubs are units that share many
nets. Let π_v be prices of the nodes. A *case* says of each hub whether a device has it and, in
contiguous splits, if not, whether the device has nothing after the hub or nothing before it. A
device of the certificate's kind, with times p_v, within T and in case h holds nodes worth at most

    s_h T − min { s_h (p(R) + transfers(R)) − π(R) : R in case h },

for any s_h ≥ 0. The minimum is that of a cut over blocks. A device of another kind holds at most
the solution of a fractional knapsack of size T, without transfers. In contiguous splits at most one
device has the first hub, some of the others nothing after it, and the rest nothing before it: a
*division*. The certificate holds if for each division some of its prices make all nodes worth more
than the most that the devices can hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ....instances import Costs, Throughput, VerificationError, Workload, without_links
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.units import LARGEST
from ....instances.formats.plan_json import HubCertificate
from ....instances.model.contiguity import pipeline_edges
from ..rules import usable_bytes_each
from . import BoundCheck, too_much

#: Rounding allowance, as a share of the sum of magnitudes.
ROUNDING = 1e-12
#: Most cuts, and most nodes that they divide; SciPy takes minutes for the cuts of more.
MOST_CUTS, MOST_NODES = 2_000, 50_000
#: Flows that are added up, and the whole number that the capacities of each sum up to.
ROUNDS, WHOLE = 3, float(1 << 30)
#: Most blocks for which bounds 3 and 4 are computed.
CUT, COUNTED = 16, 500


@dataclass(frozen=True, eq=False)
class Nets:
    """E nets of several blocks: a node's output, with the blocks that write and read it."""

    cost: Floats  # (K, E): of cutting each, by kind of device
    block: Ints  # the blocks of the nets, net by net
    first: Ints  # (E,): where those of each begin


class _Work(NamedTuple):
    """The data of bound 2: K kinds with devices, two passes with GPipe's objective, B blocks."""

    time: Floats  # (K, passes, B)
    heaviest: Floats  # (passes,) bound 1
    memory: Floats  # (B,) bytes
    room: Floats  # (K,) bytes of a device
    devices: Floats  # (K,) their number


def max_load_bound(
    workload: Workload, costs: Costs, problem: Throughput, *, transfers: bool = True
) -> float:
    """Return the best bound that follows from the workload; 0 where a block fits on no device.

    With `transfers`, bound 3 is among them. O(K n) for n nodes and K kinds, and a linear program
    where K > 1.
    """
    kinds = np.flatnonzero(costs.count)
    block = blocks(workload, costs, problem)
    time = pass_times(workload, costs, block)[kinds]
    time += np.where(np.isinf(time).any(axis=1, keepdims=True), np.inf, 0.0)
    if problem.pipeline != "gpipe":
        time = time.sum(axis=1, keepdims=True)
    memory = summed(block, costs.memory_bytes)
    room = usable_bytes_each(costs.capacity_bytes[kinds])
    time += np.where(memory > room[:, None], np.inf, 0.0)[:, None]
    if not workload.n or np.isinf(time).all(axis=0).any():
        return 0.0
    count = costs.count[kinds].astype(np.float64)
    heaviest = time.min(axis=0).max(axis=1)
    counted = sum(_counted(time[:, b], count) for b in range(time.shape[1]))
    worked = _by_work(_Work(time, heaviest, memory, room, count))
    best = max(float(heaviest.sum()) * (1 - ROUNDING), worked, counted * (1 - ROUNDING))
    if problem.overlap or not transfers:
        return best
    moved = without_links(costs, returning=False).transfer[kinds]
    return max(best, _by_cuts(workload, block, time.sum(axis=1), moved))


def summed(block: Ints, values: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of values of nodes, shape (…, n), over each block, shape (…, B)."""
    found = np.zeros((*values.shape[:-1], int(block.max(initial=-1)) + 1), values.dtype)
    of_blocks: Any = (..., block)  # which NumPy's stubs do not know as an index
    np.add.at(found, of_blocks, values)
    return found


def pass_times(workload: Workload, costs: Costs, block: Ints) -> Floats:
    """Return the time of each block on each kind of device, by pass, shape (K, 2, B)."""
    passes = np.stack([~workload.backward, workload.backward])
    return summed(block, np.where(passes, costs.compute[:, None], 0.0))


def net_costs(
    block: Ints, readers: Sequence[Sequence[int]], moved: NDArray[Any]
) -> dict[tuple[int, ...], NDArray[Any]]:
    """Return the costs of nets of several blocks, shape (…), given those of nodes, shape (…, n).

    A net is a tuple of its blocks, increasing; blocks below 0 are left out.
    """
    found: dict[tuple[int, ...], NDArray[Any]] = {}
    for u, others in enumerate(readers):
        net = tuple(sorted(set(block[[u, *others]].tolist()) - {-1}))
        if len(net) > 1:
            found[net] = found.get(net, 0) + moved[..., u]
    return found


def blocks(workload: Workload, costs: Costs, problem: Throughput) -> Ints:
    """Return the block of each node in a problem, shape (n,)."""
    return merged(workload, pipeline_edges(workload) if keeps_order(costs, problem) else ())


def merged(workload: Workload, waits: Iterable[tuple[int, int]]) -> Ints:
    """Return the blocks of colours and of cycles of pairs (u, v), shape (n,)."""
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
    """Return whether every device of a plan is a stage of one chain."""
    alone = problem.cpu_split == "free" and bool((costs.host & (costs.count > 0)).any())
    return problem.split == "contiguous" and not alone


def _counted(time: Floats, count: Floats) -> float:
    """Return bound 4: the least T at which the devices can hold the h heaviest blocks, for all h.

    Count for each device the sums of its a shortest ones, for all a: within T the devices hold as
    many blocks as there are sums up to T.
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
    """Return bound 3; `time` has shape (K, B), `moved` (K, n)."""
    nets = nets_of(workload, block, moved)
    best = 0.0
    for heavy in np.argsort(-time.min(axis=0), kind="stable")[:CUT].tolist():
        side = np.where(np.arange(time.shape[1]) == heavy, 1, 0)
        kinds = [k for k in range(len(time)) if np.isfinite(time[k, heavy])]
        best = max(best, min(least_cut(side, time[k], nets.cost[k], nets) for k in kinds))
    return best * (1 - ROUNDING)


def _by_work(work: _Work) -> float:
    """Return bound 2 by equal λ, and by λ and μ that a linear program proposes."""
    kinds, passes, _ = work.time.shape
    equal = np.full((kinds, passes), 1 / work.devices.sum())
    best = _dual_value(work, equal, np.zeros(kinds))
    if kinds > 1:
        best = max(best, _dual_value(work, *_proposed(work)))
    return best


def _dual_value(work: _Work, by_time: Floats, by_memory: Floats) -> float:
    """Return the right side of bound 2 for λ and μ made feasible, shapes (K, passes) and (K,)."""
    time, heaviest, memory, room, count = work
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


def _proposed(work: _Work) -> tuple[Floats, Floats]:
    """Return λ and μ: dual values of a linear program that divides blocks over the kinds.

    Columns are the parts of all blocks on each kind, and the T_b; rows are the passes and the
    memory of each kind.
    """
    from scipy.optimize import linprog
    from scipy.sparse import block_diag, eye_array, hstack

    time, heaviest, memory, room, count = work
    kinds, passes, size = time.shape
    scale, unit = float(time[np.isfinite(time)].max()) or 1.0, float(memory.max()) or 1.0
    able = np.asarray(np.isfinite(time).all(axis=1))
    takes = np.where(able[:, None], time, 0.0) / scale
    taken: Any = block_diag([np.vstack([of_kind, memory / unit]) for of_kind in takes])
    given: Any = np.kron(count[:, None], -np.eye(passes + 1, passes))
    most = np.zeros((kinds, passes + 1))
    most[:, passes] = count * np.minimum(room, memory.sum()) / unit
    once: list[Any] = [*[eye_array(size)] * kinds, np.zeros((size, passes))]
    matrix: Any = hstack([taken, given])
    found: Any = linprog(
        np.append(np.zeros(kinds * size), np.ones(passes)),
        A_ub=matrix,
        b_ub=most.ravel(),
        A_eq=hstack(once),
        b_eq=np.ones(size),
        bounds=[(0.0, None if one else 0.0) for one in able.ravel()]
        + [(least / scale, None) for least in heaviest],
    )
    if found.x is None:
        return np.full((kinds, passes), 1 / count.sum()), np.zeros(kinds)
    worth = -found.ineqlin.marginals.reshape(kinds, passes + 1)
    return worth[:, :passes], worth[:, passes] * scale / unit


def nets_of(workload: Workload, block: Ints, moved: Floats) -> Nets:
    """Return the nets of a workload's blocks, given the transfer times of nodes, shape (K, n)."""
    found = net_costs(block, workload.successors, moved)
    return Nets(
        np.array([*found.values()]).reshape(len(found), len(moved)).T,
        np.array([b for net in found for b in net], np.int64),
        np.cumsum([0, *map(len, found)])[:-1],
    )


def least_cut(side: Ints, compute: Floats, weight: Floats, nets: Nets) -> float:
    """Return the least load of a set with given blocks in (1) and out (−1) of it; `inf` for none.

    `compute`, (B,), is the time of blocks, `inf` where they cannot be, and below 0 where they are
    worth more than their time; `weight`, (E,), are costs c ≥ 0 of nets.
    """
    side = np.where((side == 0) & np.isinf(compute), -1, side)
    open_ = np.flatnonzero(side == 0)
    own = compute[open_]
    known = float(compute[side > 0].sum()) + float(own[own < 0].sum())
    if not len(weight):
        return known
    inside, outside, free = (np.logical_or.reduceat(test[nets.block], nets.first) for test in (
        side > 0, side < 0, side == 0))  # fmt: skip
    known += float(weight[inside & outside].sum())
    left = np.flatnonzero(free & ~(inside & outside) & (weight > 0))
    if not np.isfinite(known) or not len(open_):
        return known
    place = np.where(side > 0, 0, 1)  # 0 is in the set, 1 is not
    place[open_] = 2 + np.arange(len(open_))
    pins = np.diff(nets.first, append=len(nets.block))
    # each net has two nodes: the first is on the set's side if some of it is in the set, the second
    # if all of it is, and the arc between them costs the net
    some = np.full(len(pins), -1)
    some[left] = 2 + len(open_) + 2 * np.arange(len(left))
    enters = np.repeat(some, pins)
    at, enters = place[nets.block[enters >= 0]], enters[enters >= 0]
    never = np.full(len(at), np.inf)
    arcs = (
        (np.where(own < 0, 0, place[open_]), np.where(own < 0, place[open_], 1), np.abs(own)),
        (at, enters, never),
        (some[left], some[left] + 1, weight[left]),
        (enters + 1, at, never),
    )
    start, end, capacity = (np.concatenate(column) for column in zip(*arcs, strict=True))
    return known + _most_flow(start, end, capacity, 2 + len(open_) + 2 * len(left))


def _most_flow(start: Ints, end: Ints, capacity: Floats, size: int) -> float:
    """Return a lower bound on the maximum flow from node 0 to node 1, exact but for rounding.

    SciPy has whole capacities below 2^31 alone: after a flow in units of a fraction of their sum,
    the residual capacities get another one in smaller units.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    limit = float(capacity[np.isfinite(capacity)].sum())
    capacity = np.where(np.isinf(capacity), 2 * limit, capacity)
    left = coo_array((capacity, (start, end)), shape=(size, size)).tocsr()
    flow = 0.0
    for _ in range(ROUNDS):
        unit = limit / WHOLE
        if unit == 0.0:
            break
        whole = left.copy()
        whole.data = np.floor(np.minimum(left.data, limit) / unit).astype(np.int32)
        found = maximum_flow(whole, 0, 1)
        flow += float(found.flow_value) * unit
        left = left - found.flow * unit
        left.data = np.maximum(left.data, 0.0)
        limit = unit * len(start)
    return flow


@dataclass(frozen=True, eq=False)
class _Devices:
    """Devices of the certificate's kind within the target; B blocks, H cases."""

    target: float
    time: Floats  # (B,): `inf` above the target
    nets: Nets  # with the costs of this kind alone
    has: Bools  # has, has_not: (H, B): blocks that a device has in a case, and does not have
    has_not: Bools
    group: Ints  # (H,): number of the choice for the first hub

    def most(self, value: Floats, slopes: list[float], g: int) -> float:
        """Return the greatest value of a set in a group's cases; −inf if there is none."""
        return max(
            self._worth(value, slopes[h], h) for h in np.flatnonzero(self.group == g).tolist()
        )

    def _worth(self, value: Floats, slope: float, h: int) -> float:
        """Return an upper bound on the value of a set in case h; −inf if there is none."""
        if (self.has[h] & self.has_not[h]).any():
            return -math.inf
        able = np.isfinite(self.time)
        taken = slope * np.where(able, self.time, 0.0)
        net = np.where(able, taken - value, np.inf)
        side = self.has[h].astype(np.int64) - self.has_not[h]
        least = least_cut(side, net, slope * self.nets.cost[0], self.nets)
        if math.isinf(least):
            return -math.inf
        paid = slope * self.target
        rounding = ROUNDING * (float((np.abs(value) + taken).sum()) + paid + abs(least))
        return paid - least + rounding


def check_hubs(
    workload: Workload, costs: Costs, problem: Throughput, data: HubCertificate
) -> BoundCheck:
    """Check that prices and hubs prove their target; the costs have no links between devices.

    VerificationError if they do not; UncheckedError if the check would be too large.
    """
    if problem.overlap:
        raise VerificationError(
            "certificate: prices by hubs say nothing where transfers overlap compute"
        )
    block, target = blocks(workload, costs, problem), data.target
    has, has_not, group = _cases(workload, costs, problem, block, data.hubs)
    if any(len(slopes) != len(group) for _, slopes in data.points):
        raise VerificationError(f"certificate: slopes must be {len(group)} for all prices")
    if len(data.points) * len(group) > MOST_CUTS or workload.n > MOST_NODES:
        raise too_much(f"there are more than {MOST_CUTS} cuts, or {MOST_NODES} nodes")
    time = summed(block, costs.compute)
    time[time > target * (1 + ROUNDING)] = np.inf
    devices = _Devices(
        target, time[data.kind], nets_of(workload, block, costs.transfer[[data.kind]]),
        has, has_not, group,
    )  # fmt: skip
    worth = _values(costs, block, data)
    others = [k for k in np.flatnonzero(costs.count).tolist() if k != data.kind]
    rest = [sum(int(costs.count[k]) * fitting(v, time[k], target) for k in others) for v in worth]

    @cache
    def most(p: int, g: int) -> float:
        return devices.most(worth[p], data.points[p][1], g)

    tightest = BoundCheck(target, math.inf, 0.0)
    for counts in _divisions(int(costs.count[data.kind]), divided=bool(group.any())):
        check = tightest
        for p, values in enumerate(worth):
            held = math.fsum([rest[p], *(n * most(p, g) for g, n in enumerate(counts) if n)])
            check = BoundCheck(target, math.fsum(values), held)
            if check.value - check.held > ROUNDING * float(np.abs(values).sum()):
                break
        else:
            raise VerificationError(
                f"certificate: devices of max-load {target!r} may hold sets worth {check.held!r} "
                f"in all, and all nodes are worth {check.value!r}: the bound is not proved"
            )
        tightest = min(tightest, check, key=lambda one: one.value - one.held)
    return tightest


def _cases(
    workload: Workload, costs: Costs, problem: Throughput, block: Ints, hubs: list[int]
) -> tuple[Bools, Bools, Ints]:
    """Return the blocks that a device has, and does not have, in each case, and the case's group.

    Shapes (H, B), (H, B) and (H,); there is one group if the first hub has nothing after or before
    it, or the split need not be contiguous.
    """
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(int(block.max()) + 1))
    order.add_edges_from((int(block[u]), int(block[v])) for u, v in pipeline_edges(workload))
    ways: list[list[tuple[list[int], list[int]]]] = []
    for hub in block[hubs].tolist():
        after, before = nx.descendants(order, hub), nx.ancestors(order, hub)
        if keeps_order(costs, problem) and after and before:
            ways.append([([hub], []), ([], [hub, *after]), ([], [hub, *before])])
        else:
            ways.append([([hub], []), ([], [hub])])
    cases = list(itertools.product(*(range(len(way)) for way in ways)))
    fixed = np.zeros((2, len(cases), len(order)), np.bool_)
    for h, case in enumerate(cases):
        for way, choice in zip(ways, case, strict=True):
            for sign, several in enumerate(way[choice]):
                fixed[sign, h, several] = True
    group = np.array(cases)[:, 0] * (len(ways[0]) > 2)
    return fixed[0], fixed[1], group


def _divisions(devices: int, *, divided: bool) -> list[tuple[int, ...]]:
    """Return the numbers of devices with the first hub, nothing after it, nothing before it."""
    if not divided:
        return [(devices,)]
    return [
        (has, before, devices - has - before)
        for has in range(min(1, devices) + 1)
        for before in range(devices - has + 1)
    ]


def _values(costs: Costs, block: Ints, data: HubCertificate) -> list[Floats]:
    """Return the values of the blocks, shape (B,), by each point's prices."""
    own = costs.compute[data.kind]
    own = np.where(np.isfinite(own), own, 0.0)
    prices = (np.array(rates)[data.classes] for rates, _ in data.points)
    return [summed(block, one * own) for one in prices]


def fitting(value: Floats, time: Floats, room: float) -> float:
    """Return an upper bound on what a device without transfers holds: a fractional knapsack."""
    some = (value > 0) & np.isfinite(time)
    value, time = value[some], time[some]
    with np.errstate(divide="ignore", over="ignore"):
        rate = np.minimum(value / time, LARGEST)
    order = np.argsort(-rate, kind="stable")
    beyond = order[np.cumsum(time[order]) > room]
    price = float(rate[beyond[0]]) if len(beyond) else 0.0
    worth = float(np.maximum(value - price * time, 0.0).sum()) + price * room
    return worth + ROUNDING * (float((value + price * time).sum()) + price * room)
