"""Check a bound by prices and hubs: its certificate has them, and the target T.

Let π_v be prices of the nodes, and a *case* say of each hub whether a device has it, and, in
contiguous splits, if it does not have it, whether it has nothing that comes after the hub or
nothing that comes before it. A device of the certificate's kind, on which nodes take p_v, that
keeps to T and to case h holds a set of nodes worth at most

    s_h T − min { s_h (p(R) + transfers(R)) − π(R) : R in case h },

for any s_h ≥ 0. The minimum is that of a cut (`cuts`), nodes that must stay together made one.
Devices of other kinds hold what fits into T of the nodes that are worth most for their time, the
last one cut; their transfers are left aside. In contiguous splits one device at most has the first
hub, some of the others nothing after it, and the rest nothing before it: that is a *division*.
The certificate holds if for each division some of its prices make all nodes worth more than what
the devices hold at most.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache

import networkx as nx
import numpy as np

from ....instances import Costs, Throughput, VerificationError, Workload
from ....instances.common.arrays import Bools, Floats, Ints
from ....instances.common.units import LARGEST
from ....instances.formats.certificate import HubCertificate
from ....instances.model.contiguity import pipeline_edges
from .bound_check import BoundCheck
from .cuts import Nets, least_cut, nets_of
from .max_load import blocks, keeps_order

#: What is taken off for rounding, as a part of the sum of all magnitudes.
ROUNDING = 1e-12

#: Cuts that are made at most, and nodes that they divide; SciPy takes minutes for the cuts of more.
MOST_CUTS, MOST_NODES = 2_000, 50_000


@dataclass(frozen=True, eq=False)
class _Devices:
    """What devices of the certificate's kind can hold within the target; B blocks, H cases.

    Parameters
    ----------
    time
        Shape (B,): `inf` above the target.
    moved
        Shape (n,): transfer times of nodes.
    has, has_not
        Shape (H, B): which blocks a device has in a case, and which it has not.
    group
        Shape (H,): what a case says of the first hub.
    """

    target: float
    time: Floats
    moved: Floats
    nets: Nets
    has: Bools
    has_not: Bools
    group: Ints

    def most(self, value: Floats, slopes: list[float], g: int) -> float:
        """Return what a device in a case of a group is worth at most; −inf if none can be."""
        return max(
            self._worth(value, slopes[h], h) for h in np.flatnonzero(self.group == g).tolist()
        )

    def _worth(self, value: Floats, slope: float, h: int) -> float:
        if (self.has[h] & self.has_not[h]).any():
            return -math.inf
        able = np.isfinite(self.time)
        taken = slope * np.where(able, self.time, 0.0)
        net = np.where(able, taken - value, np.inf)
        side = self.has[h].astype(np.int64) - self.has_not[h]
        least = least_cut(side, net, slope * self.moved, self.nets)
        if math.isinf(least):
            return -math.inf
        paid = slope * self.target
        rounding = ROUNDING * (float((np.abs(value) + taken).sum()) + paid + abs(least))
        return paid - least + rounding


def check_hubs(
    workload: Workload, costs: Costs, problem: Throughput, data: HubCertificate
) -> BoundCheck:
    """Check that prices and hubs prove their target, for costs without links between devices.

    Raises
    ------
    VerificationError
        If they do not, or not within the means of this check.
    """
    if problem.overlap:
        raise VerificationError(
            "certificate: prices by hubs say nothing where transfers overlap compute"
        )
    block, target = blocks(workload, costs, problem), data.target
    has, has_not, group = _cases(workload, costs, problem, block, data.hubs)
    if any(len(slopes) != len(group) or min(slopes) < 0 for _, slopes in data.points):
        raise VerificationError(
            f"certificate: slopes must be {len(group)} numbers of at least 0 for all prices"
        )
    if len(data.points) * len(group) > MOST_CUTS or workload.n > MOST_NODES:
        raise VerificationError(
            f"certificate: more than {MOST_CUTS} cuts, or {MOST_NODES} nodes: too many for this "
            "check; the bound is neither proved nor refuted"
        )
    time = np.array([np.bincount(block, weights=one) for one in costs.compute])
    time[time > target * (1 + ROUNDING)] = np.inf
    devices = _Devices(
        target, time[data.kind], costs.transfer[data.kind], nets_of(workload, block),
        has, has_not, group,
    )  # fmt: skip
    worth = _values(costs, block, data)
    others = [k for k in np.flatnonzero(costs.count).tolist() if k != data.kind]
    rest = [sum(int(costs.count[k]) * _fitting(v, time[k], target) for k in others) for v in worth]

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
    """Return the blocks that a device has, and has not, in each case, and the case's group.

    Shapes (H, B), (H, B) and (H,); all are one group if the first hub has nothing on one side, or
    a split need not be contiguous.
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
    """Return how many devices may have the first hub, nothing after it, and nothing before it."""
    if not divided:
        return [(devices,)]
    return [
        (has, before, devices - has - before)
        for has in range(min(1, devices) + 1)
        for before in range(devices - has + 1)
    ]


def _values(costs: Costs, block: Ints, data: HubCertificate) -> list[Floats]:
    """Return what each block is worth by each list of prices."""
    own = costs.compute[data.kind]
    own = np.where(np.isfinite(own), own, 0.0)
    prices = (np.array(rates)[data.classes] for rates, _ in data.points)
    return [np.asarray(np.bincount(block, weights=one * own), np.float64) for one in prices]


def _fitting(value: Floats, time: Floats, room: float) -> float:
    """Return what a device can hold at most if nothing is moved and the last block is cut."""
    some = (value > 0) & np.isfinite(time)
    value, time = value[some], time[some]
    with np.errstate(divide="ignore", over="ignore"):
        rate = np.minimum(value / time, LARGEST)
    order = np.argsort(-rate, kind="stable")
    beyond = order[np.cumsum(time[order]) > room]
    price = float(rate[beyond[0]]) if len(beyond) else 0.0
    worth = float(np.maximum(value - price * time, 0.0).sum()) + price * room
    return worth + ROUNDING * (float((value + price * time).sum()) + price * room)
