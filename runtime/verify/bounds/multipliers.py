"""Check the certificate of a bound, apart from the search that found it: multipliers of rules.

Any numbers λ_d, ν_d, μ_d, σ ≥ 0 and f prove a bound T on the max-load of all plans, if
Σ_d (λ_d + ν_d) ≤ 1. (Only plans up to the target need be looked at: no other is below it.) Let
x_{v,d} be 1 if block v is on device d. Then T is at least

    Σ_d λ_d load_d                            as no load exceeds T
    + Σ_d μ_d (Σ_v m_v x_{v,d} − M_d)         as no memory is exceeded
    + Σ σ_{v,d} (x_{v,d} − Σ_{u before v} x_{u,d−1})
                                              as devices of a kind may be numbered by their first
                                              blocks in any order of the blocks
    ≥ Σ_{v,d} r_{v,d} x_{v,d} − Σ_d μ_d M_d  ≥  Σ_v min_d r_{v,d} − Σ_d μ_d M_d

where r collects the factors of x. A transfer of net e at device d counts λ_d w_{e,d} where d holds
some of its blocks and not all; that is at least Σ_v f_v x_{v,d} for numbers f_v that add up to 0
and whose positive ones add up to λ_d w_{e,d} at most; to anything if w_{e,d} exceeds the target, as
no such plan cuts e there. With overlap compute and transfers are loads
of their own, with λ_d and ν_d. Numbers that are too large for this are scaled down first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ....instances import Costs, Throughput, VerificationError, Workload
from ....instances.common.arrays import Floats, Ints
from ....instances.formats.certificate import MultiplierCertificate
from ..rules import allowed_each

#: What is taken off for rounding, as a part of the sum of all magnitudes.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Nodes that stay together."""

    of: Ints  # (n,) block of each node
    members: list[tuple[int, ...]]


def proved_by(
    workload: Workload, costs: Costs, problem: Throughput, data: MultiplierCertificate
) -> float:
    """Return the bound on the max-load that the multipliers of a certificate prove.

    Raises
    ------
    VerificationError
        If a multiplier is negative that must not be.
    """
    blocks = _blocks(workload)
    load, transfer, memory = (
        np.array(part) for part in (data.loads, data.transfers, data.memories)
    )
    if min(load.min(), transfer.min(), memory.min()) < 0 or any(s[2] < 0 for s in data.steps):
        raise VerificationError("certificate: a multiplier is negative")
    if not problem.overlap:
        transfer = np.zeros(len(load))
    share = 1.0 / max(1.0, math.fsum([*load.tolist(), *transfer.tolist()]) * (1 + ROUNDING))
    kind = costs.kind_of
    sizes = np.array([math.fsum(workload.memory_bytes[list(m)]) for m in blocks.members])
    room = costs.capacity_bytes[kind]
    if (np.isinf(room) & (memory > 0)).any():
        raise VerificationError("certificate: a memory without limit has a multiplier")
    times = np.array([costs.compute[:, list(m)].sum(axis=1) for m in blocks.members]).T[kind]
    able = (times <= data.target) & (sizes <= allowed_each(room)[:, None])
    factors = np.where(able, times, 0.0) * load[:, None] + memory[:, None] * sizes
    size = np.abs(factors).sum()
    size += _add_flows(
        factors, workload, costs, blocks, data, transfer if problem.overlap else load
    )
    size += _add_steps(factors, kind, blocks, data)
    held = np.where(memory > 0, memory * np.where(np.isinf(room), 0.0, room) * (1 + 1e-9), 0.0)
    least = np.where(able, factors, np.inf).min(axis=0)
    if np.isinf(least).any():
        return math.inf  # a block that no device takes within the target
    total = math.fsum([*least.tolist(), *(-held).tolist()])
    return share * (total - ROUNDING * (float(size) + float(held.sum()) + abs(total)))


def _blocks(workload: Workload) -> _Blocks:
    """Return the nodes of each colour as a block, and the others alone."""
    of = np.full(workload.n, -1)
    members: list[tuple[int, ...]] = []
    together = [tuple(nodes) for nodes in workload.colour_classes if nodes]
    coloured = {v for nodes in together for v in nodes}
    for nodes in [*together, *((v,) for v in range(workload.n) if v not in coloured)]:
        of[list(nodes)] = len(members)
        members.append(nodes)
    return _Blocks(of, members)


def _add_flows(
    factors: Floats,
    workload: Workload,
    costs: Costs,
    blocks: _Blocks,
    data: MultiplierCertificate,
    paid: Floats,
) -> float:
    """Add what transfers cost at least; return the sum of magnitudes."""
    weight: dict[frozenset[int], Floats] = {}
    for u, successors in enumerate(workload.successors):
        touched = frozenset(int(blocks.of[v]) for v in (u, *successors))
        weight[touched] = weight.get(touched, 0.0) + costs.transfer[:, u]
    size, used = 0.0, set()
    for d, nodes, values in data.flows:
        net = frozenset(int(blocks.of[v]) for v in nodes)
        if net not in weight or (d, net) in used or not len(net) == len(nodes) == len(values):
            raise VerificationError("certificate: it counts what is no transfer, or one twice")
        used.add((d, net))
        flow = np.array([-math.fsum(values[1:]), *values[1:]])
        out = float(flow[flow > 0].sum())
        cost = float(weight[net][costs.kind_of[d]])
        most = math.inf if cost > data.target else float(paid[d]) * cost
        flow *= min(1.0, most / out * (1 - ROUNDING)) if out > 0 else 0.0
        np.add.at(factors[d], blocks.of[nodes], flow)
        size += float(np.abs(flow).sum())
    return size


def _add_steps(factors: Floats, kind: Ints, blocks: _Blocks, data: MultiplierCertificate) -> float:
    """Add what the numbering of devices allows; return the sum of magnitudes."""
    order = blocks.of[data.order]
    size = 0.0
    for d, i, value in data.steps:
        if d == 0 or kind[d] != kind[d - 1] or len(set(order.tolist())) < len(order):
            raise VerificationError("certificate: its order of devices or blocks is none")
        factors[d, order[i]] += value
        factors[d - 1, order[:i]] -= value
        size += value * (i + 1)
    return size
