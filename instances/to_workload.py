"""Workloads from operator graphs: operators, or layers by module, with times and a cluster."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .common.arrays import Floats
from .common.units import ROOT_MODULE
from .generate.roofline import CPU_CORE, Machine
from .model.cluster import ACCELERATOR, CPU, Cluster, DeviceKind, Link
from .model.contiguity import leads_to
from .model.workload import Copy, Tie, Workload
from .operator_graph import OperatorGraph, SharedWeight, TracedOperator


@dataclass(frozen=True)
class Grouping:
    """Assignment of operators to nodes."""

    node: tuple[int, ...]  # node of each operator
    names: tuple[str, ...]  # of the nodes, all different
    # names of the nodes with the modules around them; empty if they are `names`
    paths: tuple[str, ...] = ()
    granularity: str = "operators"  # text for the provenance


#: Columns whose sum is a node's memory.
MEMORY = (
    "weight_bytes",
    "constant_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
)


@dataclass(frozen=True)
class OperatorTimes:
    """Times of operators, each array of shape (operators,)."""

    # accelerator_ms, cpu_ms: on the accelerator that is planned for, and on a CPU core
    accelerator_ms: Floats
    cpu_ms: Floats
    link: Link  # of the suggested cluster
    provenance: Mapping[str, str]  # origin of the times
    # measured, spread: 1 if the time was measured, else 0; interquartile range of measurements
    # relative to their median. None if nothing was measured.
    measured: Floats | None = None
    spread: Floats | None = None


#: Least accelerators of the suggested cluster, and fraction of its memory that is spare.
LEAST_ACCELERATORS = 4
SPARE = 0.2


def suggested_cluster(
    machine: Machine, total_bytes: float, accelerators: int | None = None
) -> Cluster:
    """Return accelerators that hold `total_bytes` with a fifth to spare, and a CPU core."""
    count = accelerators or LEAST_ACCELERATORS
    while accelerators is None and total_bytes > (1 - SPARE) * count * machine.memory_bytes:
        count *= 2
    memory, link = machine.memory_bytes, machine.peer
    device = DeviceKind(machine.name, count, memory, times=ACCELERATOR, link=link)
    return Cluster((device, DeviceKind(CPU, 1, host=True)))


def estimated_times(graph: OperatorGraph, target: Machine) -> OperatorTimes:
    """Return times by the roofline of a machine; nothing runs."""
    return OperatorTimes(
        accelerator_ms=estimated_ms(graph.operators, target),
        cpu_ms=estimated_ms(graph.operators, CPU_CORE),
        link=target.peer,
        provenance={
            "cost_model": "roofline",
            "accelerator": f"{target.name}: {target.source}",
            "cpu": f"{CPU_CORE.name}: {CPU_CORE.source}",
            "link": "between accelerators",
        },
    )


def estimated_ms(operators: tuple[TracedOperator, ...], machine: Machine) -> Floats:
    """Return the time of each operator: the sum of its kernels' rooflines, launches included."""
    kernels = [(v, k) for v, op in enumerate(operators) for k in op.kernels]
    seconds = machine.seconds(
        np.array([k.flops for _, k in kernels]),
        np.array([k.moved_bytes for _, k in kernels]),
        np.ones(len(kernels)),
    )
    where = np.array([v for v, _ in kernels], np.int64)
    total = np.bincount(where, weights=1e3 * seconds, minlength=len(operators))
    return np.asarray(total, np.float64)


def memory_bytes(graph: OperatorGraph) -> float:
    """Return the bytes of memory of all operators."""
    return sum(float(getattr(op, key)) for op in graph.operators for key in MEMORY)


def to_workload(
    graph: OperatorGraph,
    grouping: Grouping,
    times: OperatorTimes,
    *,
    name: str,
    cluster: Cluster,
    provenance: Mapping[str, str],
) -> Workload:
    """Return a workload with a node for each group of operators.

    A weight that several nodes read is counted once, and has no colour: see `ties_of`. A node's
    output is the parts of its tensors that other nodes read; parts that several read count once,
    and no tensor counts more than its size.
    """
    count = len(grouping.names)
    group = np.array(grouping.node, np.int64)

    def total(values: Floats) -> Floats:
        return np.bincount(group, weights=values, minlength=count).astype(np.float64)

    extra: dict[str, Floats] = {
        "parameters": total(np.array([op.parameters for op in graph.operators])),
        "flops": total(np.array([sum(k.flops for k in op.kernels) for op in graph.operators])),
    }
    for key in MEMORY:
        extra[key] = total(np.array([getattr(op, key) for op in graph.operators]))
    weight = np.maximum(times.accelerator_ms, 1e-30)
    for key, values in (("measured", times.measured), ("spread", times.spread)):
        if values is not None:
            extra[key] = total(weight * values) / total(weight)
    pairs = {(grouping.node[u], grouping.node[v]) for u, v in graph.edges()}
    output = outputs(graph, grouping)
    backward = np.zeros(count, np.bool_)
    for v, op in enumerate(graph.operators):
        backward[grouping.node[v]] = op.backward
    colours, labels = _colours(graph, grouping)
    return Workload(
        name=name,
        ids=grouping.names,
        names=grouping.paths,
        edges=np.array(sorted((a, b) for a, b in pairs if a != b), np.int64).reshape(-1, 2),
        times={ACCELERATOR: total(times.accelerator_ms), CPU: total(times.cpu_ms)},
        memory_bytes=sum((extra[key] for key in MEMORY), start=np.zeros(count)),
        transfer=np.array([1e3 * times.link.seconds(size) for size in output.tolist()]),
        output_bytes=output,
        backward=backward,
        colours=colours,
        colour_labels=labels,
        time_unit="ms",
        extra=extra,
        cluster=cluster,
        provenance={**provenance, **times.provenance},
    )


def ties_of(graph: OperatorGraph, grouping: Grouping, once: Workload, link: Link) -> list[Tie]:
    """Return the ties: weights of several readers that need not share a device otherwise.

    Weights of the same users make up one tie; `once` has each weight once, as `to_workload` makes
    it.
    """
    position = {v: k for k, v in enumerate(once.order)}
    found: dict[tuple[Copy, ...], list[SharedWeight]] = {}
    for weight in graph.shared:
        users: dict[tuple[int, ...], tuple[int, list[int]]] = {}
        for op in weight.readers:
            v = grouping.node[op]
            users.setdefault(_together(once, v), (v, []))
        for op in weight.deliverers:
            v = grouping.node[op]
            if _together(once, v) in users:
                users[_together(once, v)][1].append(v)
        copies = tuple(
            Copy(nodes, holder, max(late, key=position.__getitem__, default=None))
            for nodes, (holder, late) in users.items()
        )
        if len(copies) > 1:
            found.setdefault(copies, []).append(weight)
    ties = []
    for copies, weights in found.items():
        gradient = sum(weight.gradient_bytes for weight in weights)
        more = f" and {len(weights) - 1} more" if len(weights) > 1 else ""
        ties.append(
            Tie(
                weight=weights[0].name + more,
                copies=copies,
                weight_bytes=sum(weight.weight_bytes for weight in weights),
                gradient_bytes=gradient,
                optimizer_bytes=sum(weight.optimizer_bytes for weight in weights),
                exchange_time=1e3 * link.seconds(2 * gradient),
            )
        )
    return ties


def _together(workload: Workload, v: int) -> tuple[int, ...]:
    """Return the nodes of a node's colour."""
    colour = int(workload.colours[v])
    return (v,) if colour < 0 else workload.colour_classes[colour]


def outputs(graph: OperatorGraph, grouping: Grouping) -> Floats:
    """Return the bytes that each node gives to others, or to the model's caller; shape (nodes,)."""
    sent: dict[tuple[int, int], dict[tuple[int, float], float]] = {}
    added: set[tuple[int, tuple[int, int]]] = set()
    for flow in graph.flows:
        source, tensor = grouping.node[flow.source], flow.tensor
        if flow.target >= 0 and grouping.node[flow.target] == source:
            continue
        if flow.slot is not None:
            if (source, flow.slot) in added:
                continue
            added.add((source, flow.slot))
        parts = sent.setdefault((source, tensor.storage), {})
        parts[tensor.offset, tensor.size_bytes] = tensor.size_bytes
    total = np.zeros(len(grouping.names))
    for (source, storage), parts in sent.items():
        total[source] += min(graph.sizes[storage], sum(parts.values()))
    return total


def _colours(graph: OperatorGraph, grouping: Grouping) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the colour of each node and its label; classes with a common node are merged."""
    from networkx.utils import UnionFind

    alike = UnionFind(range(len(grouping.names)))
    for members in graph.colours:
        alike.union(*(grouping.node[v] for v in members))
    colours = np.full(len(grouping.names), -1)
    labels: list[str] = []
    for nodes in sorted(sorted(each) for each in alike.to_sets() if len(each) > 1):
        colours[nodes] = len(labels)
        labels.append(grouping.names[nodes[0]])
    return colours, tuple(labels)


def grouped(graph: OperatorGraph, depth: int | Literal["auto"] | None) -> Grouping:
    """Return the grouping at a depth: modules, operators for None, see `fitting_depth` for auto."""
    if depth == "auto":
        depth = fitting_depth(graph)
    return by_operator(graph) if depth is None else by_layer(graph, depth)


def by_operator(graph: OperatorGraph) -> Grouping:
    """Return the grouping by operators, with paths such as ``module/operator``."""
    names = tuple(op.name for op in graph.operators)
    paths = tuple(f"{_path(op.modules, len(op.modules))}/{op.name}" for op in graph.operators)
    return Grouping(tuple(range(len(names))), names, paths)


def by_layer(graph: OperatorGraph, depth: int) -> Grouping:
    """Group operators by the module `depth` calls below the outermost one.

    An operator whose call is less deep belongs to the innermost module around it; the backward
    operators of a layer make up a node of their own. Operators join the newest node of their module
    unless that would close a cycle between nodes (a module called twice, or one that works before
    and after its children): then they begin another one, called ``path#2`` and so on. Containers
    that are not called themselves, such as `ModuleList`, do not count. Linear in operators times
    edges between nodes. The result is acyclic by construction: every operator is added to an
    acyclic graph of nodes, after all operators that it waits for.
    """
    before: list[list[int]] = [[] for _ in graph.operators]
    for u, v in graph.edges():
        before[v].append(u)
    node: list[int] = []
    names: list[str] = []
    newest: dict[Hashable, int] = {}
    count: dict[str, int] = {}
    follows: list[set[int]] = []
    for v, op in enumerate(graph.operators):
        sources = {node[u] for u in before[v]}
        if op.backward and op.partner >= 0:
            name = f"{names[node[op.partner]]}.backward"
        else:
            name = _path(op.modules, depth) + (".backward" if op.backward else "")
        g = newest.get(name, -1)
        if g < 0 or leads_to(follows, {g}, sources - {g}):
            g = newest[name] = len(names)
            count[name] = count.get(name, 0) + 1
            names.append(name if count[name] == 1 else f"{name}#{count[name]}")
            follows.append(set())
        node.append(g)
        for u in sources - {g}:
            follows[u].add(g)
    return Grouping(tuple(node), tuple(names), granularity=f"modules, depth {depth}")


def fitting_depth(graph: OperatorGraph, least: int = 8) -> int:
    """Return the smallest depth with at least `least` forward nodes, or the greatest depth."""
    deepest = max(len(op.modules) for op in graph.operators)
    for depth in range(1, deepest):
        if sum(not name.endswith(".backward") for name in by_layer(graph, depth).names) >= least:
            return depth
    return max(1, deepest - 1)


def _path(modules: tuple[str, ...], depth: int) -> str:
    inside = modules[: depth + 1]
    return (inside[-1] if inside else "") or ROOT_MODULE
