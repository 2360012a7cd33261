"""Check of a bound on the max-load by prices of nodes.

Let n_k be the number of devices of kind k, and V_k the greatest value

    Σ_{v∈S} (π_v − μ_k m_v) − ν_k transfer(S) + μ_k M_k + ν_k T

of a set S of nodes, colours whole, whose load on a device of kind k is at most T. (Prices μ of
memory and, if transfers overlap compute, ν of transfers stand for limits that are then left out;
all may be 0.) A plan of max-load at most T would give Σ_v π_v ≤ Σ_k n_k V_k. The certificate holds
if Σ_v π_v is larger.

V_k comes from plain enumeration of partial sets in an order of the nodes, in groups by the outputs
that still have readers to come, and the side on which these have been written or read so far. In a
group all completions cost the same, so that a set of more value and less load dominates. Sets whose
transfers leave the other devices too little time to compute are left out, as no plan of max-load at
most T contains one. Loads are compared in steps of T / STEPS; sets in one step become one with the
greatest value and the least load, so that V_k is never too small. Prices that are multiples of a
fraction of 1 need no steps: of sets of equal value that of the least load is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....instances import Costs, Throughput, VerificationError, Workload
from ....instances.common.arrays import Floats, Ints
from ....instances.formats.plan_json import PriceCertificate
from ..rules import usable_bytes
from . import BoundCheck, too_much
from .max_load import merged, net_costs, summed

#: Most groups of partial sets before the check gives up.
MOST_GROUPS = 400_000


#: For each group of partial sets after a block, the arcs to it: the group before, whether the block
#: is taken, and the transfer time that this adds.
_Arcs = tuple[tuple[tuple[int, bool, float], ...], ...]

#: Resolutions of loads: of bounds on the completion of a partial set, and those tried for V_k.
COARSE, STEPS = 400, (4_000, 64_000, 1_000_000)

#: Most multiples of the fraction in all prices together: a group has at most a label for each.
MOST_PARTS = 10_000_000

#: Margin of the inequality for rounding, as a share of Σ |π_v|.
ROUNDING = 1e-10


@dataclass(frozen=True, eq=False)
class _KindBudget:
    """Blocks on one kind of device in the order of enumeration: groups, values and times."""

    arcs: tuple[_Arcs, ...]  # block by block
    value: Floats
    time: Floats
    transfer_price: float
    overlap: bool
    target: float
    parts: int


#: Loads and values of partial sets, both increasing.
_Labels = tuple[Floats, Floats]


def check_prices(
    workload: Workload, costs: Costs, problem: Throughput, data: PriceCertificate
) -> BoundCheck:
    """Check that prices prove their target; the costs have no links between devices.

    VerificationError if they do not; UncheckedError if the check would be too large.
    """
    prices, target = np.array(data.prices), data.target
    memory_prices, transfer_prices = np.array(data.memory_prices), np.array(data.transfer_prices)
    if transfer_prices.any() and not problem.overlap:
        raise VerificationError("certificate: prices of transfers need a problem with overlap")

    if data.parts:
        prices = _rounded_to_parts(data, prices)
    block = _blocks(workload, data.order)
    most = _most_transfer(costs, block, problem.overlap, target)
    devices, fixed, counts = [], [], []
    for k in np.flatnonzero(costs.count).tolist():
        room = usable_bytes(float(costs.capacity_bytes[k]))
        if memory_prices[k] > 0 and math.isinf(room):
            raise VerificationError("certificate: a memory without limit has a price")
        moved = net_costs(block, workload.successors, costs.transfer[k])
        size = summed(block, workload.memory_bytes)
        devices.append(
            _KindBudget(
                arcs=_arcs(
                    len(size), {net: cost for net, cost in moved.items() if cost > 0}, most[k]
                ),
                value=summed(block, prices) - memory_prices[k] * size,
                time=np.where(size > room, np.inf, summed(block, costs.compute[k])),
                transfer_price=float(transfer_prices[k]),
                overlap=problem.overlap,
                target=target,
                parts=data.parts,
            )
        )
        memory = float(memory_prices[k]) * room if memory_prices[k] > 0 else 0.0
        fixed.append(memory + float(transfer_prices[k]) * target)
        counts.append(int(costs.count[k]))
    value = float(prices.sum())
    rounding = ROUNDING * float(np.abs(prices).sum())
    held = _held(devices, fixed, counts, value - 2 * rounding)
    if not held < value - rounding:
        raise VerificationError(
            f"certificate: devices of max-load {target!r} may hold sets worth {held!r} in all, "
            f"and all nodes are worth {value!r}: the bound is not proved"
        )
    return BoundCheck(target, value, held)


def _rounded_to_parts(data: PriceCertificate, prices: Floats) -> Floats:
    """Return the prices rounded to multiples of the fraction 1 / parts."""
    if any(data.memory_prices) or any(data.transfer_prices):
        raise VerificationError("certificate: parts: prices of memory or transfers have none")
    if not float(np.abs(prices).sum()) * data.parts <= MOST_PARTS:
        raise VerificationError(
            f"certificate: parts: {data.parts} for a price of 1; at most {MOST_PARTS} in all are "
            "checked"
        )
    return np.asarray(np.rint(prices * data.parts) / data.parts)


def _blocks(workload: Workload, order: list[int]) -> Ints:
    """Return the block of each node, shape (n,), by the order of enumeration.

    Any order is correct; the certificate's makes the check fast.
    """
    block = merged(workload, ())
    first = list(dict.fromkeys(block[[*order, *range(workload.n)]].tolist()))
    number = np.empty(len(first), np.int64)
    number[first] = np.arange(len(first))
    return np.asarray(number[block])


def _most_transfer(costs: Costs, block: Ints, overlap: bool, target: float) -> Floats:
    """Return for each kind the most transfer time of a device in a plan within T.

    All n devices together have n T, of which compute takes at least Σ_v min_k p_{k,v}. For what a
    device moves another one pays, too, by its own kind's times.
    """
    most = np.full(len(costs.count), np.inf)
    used = np.flatnonzero(costs.count).tolist()
    if overlap:
        return most
    time = summed(block, costs.compute[used]).min(axis=0)
    spare = max(0.0, float(costs.count.sum()) * target - math.fsum(time))
    for k in used:
        others = [j for j in used if j != k or costs.count[k] > 1]
        paid = costs.transfer[k] > 0
        if others and paid.any():
            ratio = float((costs.transfer[others][:, paid] / costs.transfer[k, paid]).min())
            most[k] = spare / (1 + ratio) + ROUNDING * 10 * target * float(costs.count.sum())
    return most


def _held(devices: list[_KindBudget], fixed: list[float], counts: list[int], value: float) -> float:
    """Return an upper bound on the value that all devices hold, refined until it decides."""
    rests = [_completions(device) for device in devices]
    best = [fix + _last(rest[0][0]) for fix, rest in zip(fixed, rests, strict=True)]
    for steps in STEPS:  # where there are parts, the first is exact
        for i, device in enumerate(devices):
            others = sum(n * b for j, (n, b) in enumerate(zip(counts, best, strict=True)) if j != i)
            enough = (value - others) / counts[i]  # more is of no use
            if enough < best[i]:
                found = _greatest(device, rests[i], max(0.0, enough - fixed[i]), steps)
                best[i] = fixed[i] + min(best[i] - fixed[i], found)
        if sum(n * b for n, b in zip(counts, best, strict=True)) <= value + 1e-12 * abs(value):
            break
    return sum(n * b for n, b in zip(counts, best, strict=True))


def _completions(device: _KindBudget) -> list[list[_Labels]]:
    """Return backward labels: for each group, load and value of its sets' completions."""
    rests: list[list[_Labels]] = [[(np.zeros(1), np.zeros(1))]]
    for b in range(len(device.value) - 1, -1, -1):
        before = len(device.arcs[b - 1]) if b else 1
        parts: list[list[_Labels]] = [[] for _ in range(before)]
        for g, arcs in enumerate(device.arcs[b]):
            for source, taken, cost in arcs:
                parts[source].append(_moved(device, b, taken, cost, rests[-1][g]))
        rests.append([_merged(part, device.target, COARSE) for part in parts])
    return rests[::-1]


def _greatest(device: _KindBudget, rests: list[list[_Labels]], floor: float, steps: int) -> float:
    """Return the greatest value of a set within the target, or `floor` if none is above it."""
    labels: list[_Labels] = [(np.zeros(1), np.zeros(1))]
    for b, incoming in enumerate(device.arcs):
        after = []
        for g, arcs in enumerate(incoming):
            load, value = _merged(
                [_moved(device, b, taken, cost, labels[s]) for s, taken, cost in arcs],
                device.target,
                steps,
                device.parts,
            )
            rest_load, rest_value = rests[b + 1][g]
            if not len(rest_load):
                after.append((rest_load, rest_value))
                continue
            room = np.searchsorted(rest_load, (device.target - load) * (1 + 1e-12), side="right")
            hope = np.where(room > 0, rest_value[np.maximum(room - 1, 0)], -np.inf)
            keep = value + hope > floor
            after.append((load[keep], value[keep]))
        labels = after
    return max(floor, _last(labels[0]))


def _moved(device: _KindBudget, b: int, taken: bool, cost: float, labels: _Labels) -> _Labels:
    """Return labels extended by block b, taken or not, and the transfers that this adds."""
    load, value = labels
    more = 0.0 if device.overlap else cost
    worth = -device.transfer_price * cost
    if taken:
        more += float(device.time[b])
        worth += float(device.value[b])
    return load + more, value + worth


def _merged(labels: list[_Labels], target: float, steps: int, parts: int = 0) -> _Labels:
    """Return the undominated labels, at most one per step of load, or per part."""
    if not labels:
        return np.zeros(0), np.zeros(0)
    load = np.concatenate([load for load, _ in labels])
    value = np.concatenate([value for _, value in labels])
    within = load <= target
    load, value = load[within], value[within]
    if len(load) == 0:
        return load, value
    if parts:
        order = np.lexsort((load, -np.rint(value * parts)))
        load, value = load[order], value[order]
        less = load < np.minimum.accumulate(np.concatenate([[np.inf], load[:-1]]))
        return load[less][::-1], value[less][::-1]
    step: Ints = (load / target * steps if target > 0 else 0.0 * load).astype(np.int64)
    order = np.argsort(step, kind="stable")
    first = np.flatnonzero(np.diff(step[order], prepend=-1))
    least, most = np.minimum.reduceat(load[order], first), np.maximum.reduceat(value[order], first)
    before = np.maximum.accumulate(np.concatenate([[-np.inf], most[:-1]]))
    better = most > before
    return least[better], most[better]


def _last(labels: _Labels) -> float:
    """Return the value of the last label, the greatest; −inf without labels."""
    return float(labels[1][-1]) if len(labels[1]) else -math.inf


def _arcs(size: int, nets: Mapping[tuple[int, ...], Any], most: float) -> tuple[_Arcs, ...]:
    """Return the groups of partial sets after each block, within a transfer time, by their arcs.

    A group's key is two sets of open outputs: those with a block inside, those with one outside.
    """
    merged = [(blocks, float(cost)) for blocks, cost in nets.items()]
    touching: list[list[int]] = [[] for _ in range(size)]
    last = [blocks[-1] for blocks, _ in merged]
    for e, (blocks, _) in enumerate(merged):
        for b in blocks:
            touching[b].append(e)
    groups = {(frozenset[int](), frozenset[int]()): 0}
    least = [0.0]
    arcs = []
    total = 0
    for b in range(size):
        mine = frozenset(touching[b])
        open_after = frozenset(e for e in mine if last[e] > b)
        after: dict[tuple[frozenset[int], frozenset[int]], int] = {}
        incoming: list[list[tuple[int, bool, float]]] = []
        paid: list[float] = []
        for (inside, outside), g in groups.items():
            for taken in (False, True):
                other = outside if taken else inside
                before = inside if taken else outside
                cost = math.fsum(merged[e][1] for e in mine if e in other and e not in before)
                if least[g] + cost > most:
                    continue
                ended = mine - open_after
                now = (before | mine) - ended
                key = (now, other - ended) if taken else (other - ended, now)
                if key not in after:
                    after[key] = len(after)
                    incoming.append([])
                    paid.append(math.inf)
                incoming[after[key]].append((g, taken, cost))
                paid[after[key]] = min(paid[after[key]], least[g] + cost)
        groups, least = after, paid
        arcs.append(tuple(map(tuple, incoming)))
        total += len(after)
        if total > MOST_GROUPS:
            raise too_much(f"there are more than {MOST_GROUPS} groups of partial sets")
    return tuple(arcs)
