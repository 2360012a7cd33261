"""The relaxation of the compact program for non-contiguous splits, and the evidence of its bound.

Symbols and equations are those of `compact`; x, in and out may be fractions here, and the devices
of a kind hold their first units in turn, `compact_data` (17):

    minimise  T                                                                           (0)

    Σ_d x_{v,d} = 1                                                                       (1)
    Σ_v m_v x_{v,d} ≤ M_d                                                        (μ_d)    (2)
    x_{v,d} − x_{root,d} ≤ in_{e,d},  x_{root,d} − x_{v,d} ≤ out_{e,d}      (f_{e,d,v})   (3), (4)
    Σ_v p_{v,d} x_{v,d} + Σ_e w_{e,d} (in_{e,d} + out_{e,d}) ≤ T                 (λ_d)    (6)
    x_{v,d} ≤ Σ_{u before v} x_{u,d−1}                                           (σ_{v,d}) (17)

over units v, devices d, nets e with other pins v. Where transfers overlap compute, they have a row
(6) of their own, (ν_d). f is what (3) cost less what (4) cost; for the root it is that of all other
pins, negated. What the multipliers prove is written out in `runtime.verify.bounds.max_load`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances import Throughput
from ...instances.common.arrays import Floats, Ints, rows
from ..linear import Linear, LinearBuilder
from ..task import Task
from .compact_data import SYMMETRY_UNITS, heaviest_first
from .hypergraph import Hypergraph
from .whole_bytes import room_of

#: By which part of the limit a time may exceed it, for rounding.
LIMIT_SLACK = 1e-6


@dataclass(frozen=True, eq=False)
class CompactRelaxation:
    """Linear program with the places of its rows by constraint. D devices, U units."""

    graph: Hypergraph  # of the task
    linear: Linear  # times are parts of `limit`, memories of the device's room
    limit: float  # the max-load that plans of interest have at most
    room: Floats  # (D,): bytes
    load: Ints  # load, transfer, memory: (D,): rows (6) and (2); −1 where there is none
    transfer: Ints
    memory: Ints
    flows: list[int]  # for each device the first row (3); rows (4) follow as many rows later
    # for each device the nets and other pins of its rows (3); two of shape (rows,)
    cut: list[tuple[Ints, Ints]]
    order: Ints  # units in the order of (17)
    steps: Ints  # (S, 3): device, place in the order, and row (17)

    def evidence(self, multipliers: Floats, target: float) -> dict[str, object]:
        """Return what proves `target` as a `MultiplierCertificate`; `multipliers` of shape (m,)."""
        paid = np.maximum(0.0, -multipliers)
        first = np.array([nodes[0] for nodes in self.graph.members])

        def of(at: Ints) -> Floats:
            return np.where(at >= 0, paid[at], 0.0)

        flows: list[list[object]] = []
        for d, (nets, pins) in enumerate(self.cut):
            at = self.flows[d] + np.arange(len(nets))
            value = (paid[at] - paid[at + len(nets)]) * self.limit
            for here in np.split(np.arange(len(nets)), np.flatnonzero(np.diff(nets)) + 1):
                if value[here].any():
                    root = self.graph.pins[nets[here[0]]][0]
                    nodes = [int(first[root]), *first[pins[here]].tolist()]
                    flows.append([d, nodes, [-float(value[here].sum()), *value[here].tolist()]])
        steps = [
            [int(d), int(i), float(paid[row]) * self.limit]
            for d, i, row in self.steps.tolist()
            if paid[row] > 0
        ]
        return {
            "target": target,
            "loads": of(self.load).tolist(),
            "transfers": of(self.transfer).tolist(),
            "memories": (of(self.memory) * self.limit / self.room).tolist(),
            "flows": flows,
            "order": first[self.order].tolist(),
            "steps": steps,
        }


def relaxation(task: Task[Throughput], graph: Hypergraph, limit: float) -> CompactRelaxation:
    """State the relaxation of a task for plans of a max-load of at most `limit`.

    What alone takes longer is left out: a unit on a device, a net that it cuts. Nets of P pins in
    all take D·(U + 2E) columns and 2·D·P rows.
    """
    costs = task.costs
    kind, size = costs.kind_of, graph.size
    room = room_of(costs.capacity_bytes)[kind]
    time, weight = graph.compute.sum(axis=1)[kind] / limit, graph.weight.sum(axis=1)[kind] / limit
    able = (time <= 1 + LIMIT_SLACK) & (graph.memory_bytes <= room[:, None])
    program = LinearBuilder()
    most = program.columns(1, np.inf, whole=False)
    x = program.columns((len(kind), size), able.astype(np.float64), whole=False)
    for v in range(size):
        program.row(f"placed_once[{v}]", x[:, v], 1.0, 1.0, 1.0)
    done = size
    load, transfer, memory = np.full((3, len(kind)), -1)
    start, pins = rows(graph.pins)
    net = np.repeat(np.arange(len(graph.pins)), np.diff(start))
    others = np.setdiff1d(np.arange(len(pins)), start[:-1])
    flows, cut = [], []
    for d in range(len(kind)):
        paid = others[weight[d, net[others]] > 0]
        flows.append(done)
        cut.append((net[paid], pins[paid]))
        cuts = np.tile(np.where(weight[d] <= 1 + LIMIT_SLACK, 1.0, 0.0), (2, 1))
        moved = program.columns(cuts.shape, cuts, whole=False) if len(paid) else None
        for way in range(2 if moved is not None else 0):
            assert moved is not None
            sign = 1.0 - 2.0 * way
            root = pins[start[net[paid]]]
            columns = np.concatenate([x[d, pins[paid]], x[d, root], moved[way, net[paid]]])
            factors = np.repeat([sign, -sign, -1.0], len(paid))
            at = np.tile(np.arange(len(paid)), 3)
            program.table(f"{('entering', 'leaving')[way]}[{d}]", at, columns, factors, 0.0)
            done += len(paid)
        sums = [(x[d], np.where(able[d], time[d], 0.0))]
        if moved is not None:
            sums.append((moved.ravel(), np.tile(np.minimum(weight[d], 1.0), 2)))
        apart = [[part] for part in sums] if task.problem.overlap else [sums]
        for rows_of, parts in zip((load, transfer), apart, strict=False):
            columns = np.concatenate([most, *(columns for columns, _ in parts)])
            factors = np.concatenate([[-1.0], *(factors for _, factors in parts)])
            program.row(f"under_max_load[{d}]", columns, factors, -np.inf, 0.0)
            rows_of[d], done = done, done + 1
        if graph.memory_bytes[able[d]].sum() > room[d]:
            program.row(f"fits[{d}]", x[d], graph.memory_bytes / room[d], -np.inf, 1.0)
            memory[d], done = done, done + 1
    order = np.argsort(heaviest_first(graph))[:SYMMETRY_UNITS]
    steps = []
    for d in range(1, len(kind)):
        for i in range(len(order) if kind[d] == kind[d - 1] else 0):
            columns = np.concatenate([[x[d, order[i]]], x[d - 1, order[:i]]])
            factors = np.concatenate([[1.0], np.full(i, -1.0)])
            program.row(f"in_order[{i},{d}]", columns, factors, -np.inf, 0.0)
            steps.append((d, i, done))
            done += 1
    cost = np.zeros(len(program.upper))
    cost[most] = 1.0
    return CompactRelaxation(
        graph, program.build(cost), limit, room, load, transfer, memory, flows, cut, order,
        np.array(steps, np.int64).reshape(-1, 3),
    )  # fmt: skip
