"""Any split that fits: for memories so tight that filling them one by one fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

from ...formulations.linear import Linear
from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph
from ...formulations.throughput.whole_bytes import room_of, whole_bytes
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Ints
from ..core.highs import run_highs
from ..core.proofs.exact_packing import RoomClass, pack
from ..core.search import Search


@dataclass(frozen=True, eq=False)
class Packing:
    """What is known about assignments of units to devices that keep all memories.

    Parameters
    ----------
    device
        Shape (U,): device of each unit; None if no assignment was found.
    why_infeasible
        In words, where it is proved that there is none; else None.
    """

    device: Ints | None
    why_infeasible: str | None


def prove_unpackable(
    task: Task[Throughput], graph: Hypergraph, should_stop: Callable[[], bool] = lambda: False
) -> Packing:
    """Find an assignment that keeps all memories, or prove that there is none, or give up.

    Transfers and contiguity are left out, so the proof holds for every split whose units contain
    those of `graph`. In whole numbers of bytes: no tolerance plays a part.
    """
    costs = task.costs
    whole = whole_bytes(task, graph)
    supported = np.isfinite(graph.compute).all(axis=1) & (costs.count > 0)[:, None]  # (K, U)
    device = np.full(graph.size, -1)
    first = np.concatenate([[0], np.cumsum(costs.count)])
    for k in [k for k, room in enumerate(whole.rooms) if room is None]:
        device[(device < 0) & supported[k]] = first[k]  # they take nothing from others there
    rest = np.flatnonzero(device < 0).tolist()
    packed = pack(
        [whole.units[u] for u in rest],
        [
            RoomClass(room or 0, int(count))
            for room, count in zip(whole.rooms, costs.count, strict=True)
        ],
        [np.flatnonzero(supported[:, u]).tolist() for u in rest],
        should_stop,
    )
    if packed.place is not None:
        device[rest] = [first[k] + number for k, number in packed.place]
        return Packing(device, None)
    return Packing(
        None,
        f"no assignment of the {graph.size} units (nodes that must stay together) to the devices "
        "keeps all memories; give more memory or more devices"
        if packed.proved
        else None,
    )


def packing(task: Task[Throughput], graph: Hypergraph, search: Search[Solution]) -> None:
    """Offer a split that keeps all memories, of about the least maximal compute time.

    Where there is one: `prove_unpackable` comes first. Then a small program for HiGHS: x_{v,d} = 1
    if device d holds unit v; transfers are left out. Ends with the first split within a tenth of
    the best. If HiGHS finds none, that proves nothing.
    """
    exact = prove_unpackable(task, graph, search.should_stop)
    if exact.why_infeasible is not None:
        search.prove_infeasible(exact.why_infeasible)
        return
    if exact.device is not None:
        search.offer(Placement(graph.expand(exact.device)))
    kind_of = task.costs.kind_of
    size, devices = graph.size, len(kind_of)
    time = graph.compute.sum(axis=1)[kind_of]  # (D, U)
    room = task.costs.capacity_bytes[kind_of]
    able = np.isfinite(time) & (graph.memory_bytes <= room_of(room)[:, None])
    unit, device = (found.ravel() for found in np.meshgrid(range(size), range(devices)))
    columns = np.arange(size * devices)
    finite = np.where(np.isfinite(time), time, 0.0)
    scale = max(1e-300, finite.max(axis=0).sum())
    most = np.append(np.zeros(size * devices), 1.0)
    limited = (room > 0) & np.isfinite(room)
    share = graph.memory_bytes / np.where(limited, room, 1.0)[:, None]
    share = np.where(able & limited[:, None], share, 0.0)  # else it may be too large for HiGHS
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

    run_highs(linear, search, on_incumbent=offer, gap=0.1)
