"""Baseline placements: greedy filling, a single device, and an expert's split from a file."""

from __future__ import annotations

from itertools import accumulate
from operator import and_, eq
from pathlib import Path

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph, hypergraph, pipeline_units
from ...instances import InputError, Placement, Solution, Throughput
from ...instances.common.arrays import Ints
from ...instances.formats.files import load_split
from ..core.search import Search


def greedy(task: Task[Throughput], search: Search[Solution]) -> None:
    """Fill one accelerator after the other in topological order, each up to an even share.

    A unit that fits on no accelerator goes to the CPU core with the least load. Larger shares are
    tried after the even one, with which not everything may fit into the memories.
    """
    graph, relayed = hypergraph(task, pipeline_units(task)), task.problem.relayed
    order = topological_units(graph)
    for stretch in (1.0, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 1e9):
        placement = _fill(task, graph, order, stretch)
        if placement is not None:
            stages = tuple(dict.fromkeys(placement[order].tolist())) if relayed else ()
            search.offer(Placement(graph.expand(placement), stages))
        if search.should_stop():  # last: a first plan even if time is up
            return


def topological_units(graph: Hypergraph) -> list[int]:
    """Return the units in topological order of the pipeline edges; ties by lowest number."""
    import networkx as nx

    return list(nx.lexicographical_topological_sort(graph.digraph()))


def _fill(
    task: Task[Throughput], graph: Hypergraph, order: list[int], stretch: float
) -> Ints | None:
    costs = task.costs
    kind = costs.kind_of.tolist()
    times = graph.compute.sum(axis=1)  # (K, U)
    accelerators = [d for d, k in enumerate(kind) if not costs.host[k]]
    cores = [d for d, k in enumerate(kind) if costs.host[k]]
    finite = np.where(np.isinf(times), 0.0, times).sum(axis=1)
    share = (stretch * finite / max(1, len(accelerators))).tolist()
    time, bytes_of, capacity = times.tolist(), graph.memory_bytes.tolist(), costs.capacity_bytes
    load, used = [0.0] * len(kind), [0.0] * len(kind)
    placement = np.zeros(graph.size, dtype=np.int64)
    at = 0
    for unit in order:
        device = -1
        for i in range(at, len(accelerators)):
            d = accelerators[i]
            k = kind[d]
            if time[k][unit] == np.inf or used[d] + bytes_of[unit] > capacity[k]:
                continue
            device = d
            if load[d] + time[k][unit] <= share[k]:
                at = i
                break
        if device < 0:
            able = [d for d in cores if time[kind[d]][unit] < np.inf]
            if not able:
                return None
            device = min(able, key=lambda d: load[d])
        placement[unit] = device
        load[device] += time[kind[device]][unit]
        used[device] += bytes_of[unit]
    return placement


def single_device(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer the whole workload on one device of each kind."""
    for kind in np.unique(task.costs.kind_of):
        device = int(np.argmax(task.costs.kind_of == kind))
        order = (device,) if task.problem.relayed else ()
        search.offer(Placement(np.full(task.workload.n, device), order))


def expert(task: Task[Throughput], search: Search[Solution]) -> None:
    """Offer the split of a file; of a folder, the file whose name resembles the workload's most.

    Files of a folder that do not fit the workload are skipped. A file that lists only forward nodes
    fits the training workload, too: backward nodes follow their colours. Raises `InputError` if no
    file is named, or if it, or every file of the folder, does not fit workload and cluster.
    """
    if "split" not in task.options:
        raise InputError("method expert: it needs a split file, or a folder of them: expert:FILE")
    path = Path(task.options["split"])
    if not path.is_dir():
        search.offer(load_split(path, task.workload, task.cluster))
        return
    name = task.workload.name

    def unlike(file: Path) -> tuple[int, str]:
        return -sum(accumulate(map(eq, file.name, name), and_)), file.name

    for file in sorted(path.glob("*.json"), key=unlike):
        try:
            split = load_split(file, task.workload, task.cluster)
        except InputError:
            continue  # of another workload
        search.offer(split)
        return
    raise InputError(f"method expert: no file of {path} is a split of {name}; name its file")
