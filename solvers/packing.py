"""Any split that fits: for memories so tight that filling them one by one fails."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csc_array

from ..formulations.certificate import PROOF_MARGIN
from ..formulations.hypergraph import Hypergraph
from ..formulations.task import Task
from ..instances import Placement, Solution
from .highs import run_highs
from .linear import Linear
from .search import Search


def packing(task: Task, graph: Hypergraph, search: Search[Solution]) -> None:
    """Offer a split that keeps all memories, of about the least maximal compute time.

    A small program for HiGHS: x_{v,d} = 1 if device d holds unit v; transfers are left out. Ends
    with the first split within a tenth of the best, or proves that there is none.
    """
    kind_of = task.costs.kind_of
    size, devices = graph.size, len(kind_of)
    time = graph.compute.sum(axis=1)[kind_of]  # (D, U)
    room = task.costs.capacity_bytes[kind_of]
    able = np.isfinite(time) & (graph.memory_bytes <= (room * (1 + PROOF_MARGIN))[:, None])
    unit, device = (found.ravel() for found in np.meshgrid(range(size), range(devices)))
    columns = np.arange(size * devices)
    finite = np.where(np.isfinite(time), time, 0.0)
    scale = max(1e-300, finite.max(axis=0).sum())
    most = np.append(np.zeros(size * devices), 1.0)
    share = graph.memory_bytes / np.where((room > 0) & np.isfinite(room), room, 1.0)[:, None]
    rows = np.concatenate([unit, size + device, size + devices + device])
    entries = np.concatenate([np.ones(len(columns)), share.ravel(), finite.ravel() / scale])
    rows = np.append(rows, size + devices + np.arange(devices))
    entries = np.append(entries, -np.ones(devices))
    at = np.append(np.tile(columns, 3), np.full(devices, len(columns)))
    linear = Linear(
        cost=most,
        column_lower=np.zeros(len(most)),
        column_upper=np.append(able.ravel().astype(np.float64), np.inf),
        integer=np.append(np.ones(len(columns), np.bool_), False),
        matrix=csc_array((entries, (rows, at)), shape=(size + 2 * devices, len(most))),
        row_lower=np.concatenate([np.ones(size), np.full(2 * devices, -np.inf)]),
        row_upper=np.concatenate(
            [np.ones(size), np.where(np.isinf(room), np.inf, 1.0), np.zeros(devices)]
        ),
    )

    def offer(x: np.ndarray) -> bool:
        held = x[:-1].reshape(devices, size) > 0.5
        return search.offer(Placement(graph.expand(held.argmax(axis=0))))

    outcome = run_highs(linear, search, on_incumbent=offer, gap=0.1)
    if outcome.status == "infeasible":
        search.prove_infeasible(
            f"no assignment of the {size} units (nodes that must stay together) to the devices "
            "keeps all memories; give more memory or more devices"
        )
