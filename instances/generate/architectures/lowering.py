"""From a described network to a workload: layers or operators, inference or training.

*Output bytes* of a layer are the tensors that others read. A backward node sends the gradients of
the tensors that its forward node received from others; a sum sends one gradient to all its terms.
The gradients that several nodes send for one tensor are added up where the tensor came from, so
operators may send more between devices than the layers that they make up.

*Colours*: a backward node shares its forward node's. Nodes that use one weight matrix are a tie
(`instances/model/ties.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from ...common.arrays import Floats, Ints
from ...common.choices import Choice, Tied
from ...model.cluster import ACCELERATOR, CPU, Cluster, DeviceKind
from ...model.network.links import Link
from ...model.tied_weights import with_ties
from ...model.ties import Copy, Tie
from ...model.workload import Workload
from ..microbatches import per_microbatch
from ..roofline import CPU_CORE, Machine
from .accounting import (
    GRADIENT_BYTES,
    NUMBER_BYTES,
    OPTIMIZER_BYTES,
    Columns,
    backward_costs,
    forward_costs,
    loss,
)
from .network import Network, Operator

Granularity = Literal["layers", "operators"]


class Via(Choice):
    """Where transfers between accelerators go."""

    PEER = "peer"
    HOST = "host"


#: Columns that a node's memory is the sum of.
MEMORY = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")

#: The suggested cluster has at least so many accelerators, and this share of memory to spare.
LEAST_ACCELERATORS = 4
SPARE = 0.2


def to_workload(
    network: Network,
    name: str,
    machine: Machine,
    *,
    granularity: Granularity = "layers",
    training: bool = False,
    tied: Tied = Tied.COPIES,
    via: Via = Via.PEER,
    accelerators: int | None = None,
    microbatches: int = 1,
    provenance: Mapping[str, str] | None = None,
) -> Workload:
    """Return the network as a workload, with a cluster that it fits on.

    Parameters
    ----------
    machine
        The accelerator that times and cluster are for.
    tied
        What weights used twice mean; see `instances/model/ties.py`.
    via
        What the suggested cluster's accelerators send over: ``peer``, the fast links between
        them, or ``host``, host memory. Both ends pay either way, each on a link of its own, as
        through a switch. (With ``peer``, what a CPU core exchanges is priced too low.) The
        workload's `transfer` is for the same link, so that clusters without links can be planned.
    accelerators
        How many the suggested cluster has; default: 4, doubled until everything fits with a fifth
        to spare. A CPU core comes with them.
    microbatches
        How many the graph is of; see `microbatches.py`.
    provenance
        Entries added to those of the generator.

    Notes
    -----
    Linear in operators and edges.
    """
    operators = [*network.operators, *([loss(network)] if training else [])]
    group, nodes = _groups(operators, granularity)
    count = len(nodes)
    columns = _columns(forward_costs(operators, training), machine, group, count)
    columns["output_bytes"] = _outputs(operators, group, count)
    edges = _edges(operators, group)
    colours = np.arange(count) if training else np.full(count, -1)
    labels = tuple(nodes) if training else ()
    if training:  # backward nodes come last, in reverse: v's is numbered 2·count − 1 − v
        mirror = _columns(backward_costs(operators), machine, group, count)
        mirror["output_bytes"] = _gradients(operators, group, count)
        columns = {key: np.concatenate([columns[key], mirror[key][::-1]]) for key in columns}
        last = 2 * count - 1
        back = [(last - v, last - u) for u, v in edges]
        edges = [*edges, *((v, last - v) for v in range(count)), *back]
        nodes = [*nodes, *(f"{node}.backward" for node in reversed(nodes))]
        colours = np.concatenate([colours, colours[::-1]])
    memory = sum((columns[key] for key in MEMORY), start=np.zeros(len(nodes)))
    held = float(memory.sum() + (microbatches - 1) * columns["activation_bytes"].sum())
    link = machine.peer if via == Via.PEER else machine.host
    transfer = [1e3 * link.seconds(size) for size in columns["output_bytes"].tolist()]
    once = Workload(
        name=name,
        ids=tuple(nodes),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        times={kind: columns[kind] for kind in (ACCELERATOR, CPU)},
        memory_bytes=memory,
        transfer=np.array(transfer),
        output_bytes=columns["output_bytes"],
        backward=np.arange(len(nodes)) >= count,
        colours=colours,
        colour_labels=labels,
        time_unit="ms",
        extra={key: columns[key] for key in ("parameters", "flops", *MEMORY)},
        cluster=suggested_cluster(machine, link, held, accelerators),
        provenance={
            "generator": "stagecut.instances.generate.architectures",
            "network": network.title,
            "sample": network.sample,
            "accelerator": f"{machine.name}: {machine.source}",
            "cpu": f"{CPU_CORE.name}: {CPU_CORE.source}",
            "cost_model": "roofline",
            "link": "between accelerators" if via == Via.PEER else "to host memory",
            **(provenance or {}),
        },
    )
    ties = _ties(operators, group, count if training else 0, link)
    return with_ties(*per_microbatch(once, ties, microbatches), tied)


def _groups(operators: list[Operator], granularity: Granularity) -> tuple[Ints, list[str]]:
    """Number the nodes in the order in which they first occur; return each operator's node."""
    names = [op.layer if granularity == "layers" else op.name for op in operators]
    numbers: dict[str, int] = {}
    group = [numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(group, dtype=np.int64), list(numbers)


def _columns(costs: Columns, machine: Machine, group: Ints, count: int) -> Columns:
    """Return the costs of nodes as sums over their operators, with their times in ms."""
    work = (costs["flops"], costs["moved_bytes"], costs["launches"])
    timed = {
        **costs,
        ACCELERATOR: 1e3 * machine.seconds(*work),
        CPU: 1e3 * CPU_CORE.seconds(*work),
    }
    return {
        key: np.bincount(group, weights=values, minlength=count).astype(np.float64)
        for key, values in timed.items()
    }


def _edges(operators: list[Operator], group: Ints) -> list[tuple[int, int]]:
    """Return the edges between nodes, in order, each once."""
    of = group.tolist()
    pairs = {(of[u], of[v]) for v, op in enumerate(operators) for u in op.inputs}
    return sorted((a, b) for a, b in pairs if a != b)


def _outputs(operators: list[Operator], group: Ints, count: int) -> Floats:
    """Bytes of the tensors of each node that other nodes read, or that nobody does."""
    read: dict[int, set[int]] = {}
    for v, op in enumerate(operators):
        for u in op.inputs:
            read.setdefault(u, set()).add(int(group[v]))
    size = np.zeros(count)
    for u, op in enumerate(operators):
        if read.get(u, set()) != {int(group[u])}:
            size[group[u]] += NUMBER_BYTES * op.output_elements
    return size


def _gradients(operators: list[Operator], group: Ints, count: int) -> Floats:
    """Bytes of the gradients that the backward node of each node sends to others."""
    users: dict[tuple[int, int], list[int]] = {}
    for v, op in enumerate(operators):
        for u in op.inputs:
            if group[u] != group[v]:
                users.setdefault((int(group[v]), u), []).append(v)
    sent: dict[tuple[int, str, int], int] = {}
    for (node, u), by in users.items():
        # users of a tensor in one node add their gradients up; terms of a sum get the same one
        shared = len(by) == 1 and operators[by[0]].kind == "add"
        key = (node, "sum", by[0]) if shared else (node, "tensor", u)
        sent[key] = max(operators[u].output_elements, sent.get(key, 0))
    total = np.zeros(count)
    for (node, _, _), size in sent.items():
        total[node] += NUMBER_BYTES * size
    return total


def _ties(operators: list[Operator], group: Ints, backward: int, link: Link) -> list[Tie]:
    """Return the weights that several nodes use.

    Parameters
    ----------
    backward
        Number of backward nodes.
    """
    at = {op.name: int(group[v]) for v, op in enumerate(operators)}
    users: dict[str, dict[int, int]] = {}
    for v, op in enumerate(operators):
        if op.owner:
            users.setdefault(op.owner, {at[op.owner]: 0})[int(group[v])] = op.shared
    ties = []
    for owner, sizes in users.items():
        if len(sizes) < 2:
            continue
        size = max(sizes.values())
        gradient = float(GRADIENT_BYTES * size) if backward else 0.0
        last = 2 * backward - 1
        ties.append(
            Tie(
                weight=owner,
                copies=tuple(
                    Copy((v, last - v), v, last - v) if backward else Copy((v,), v) for v in sizes
                ),
                weight_bytes=float(NUMBER_BYTES * size),
                gradient_bytes=gradient,
                optimizer_bytes=float(OPTIMIZER_BYTES * size) if backward else 0.0,
                exchange_time=1e3 * link.seconds(2 * gradient),
            )
        )
    return ties


def suggested_cluster(
    machine: Machine, link: Link, total_bytes: float, accelerators: int | None = None
) -> Cluster:
    """Return accelerators that hold `total_bytes` with a fifth to spare, and a CPU core."""
    count = accelerators or LEAST_ACCELERATORS
    while accelerators is None and total_bytes > (1 - SPARE) * count * machine.memory_bytes:
        count *= 2
    device = DeviceKind(machine.name, count, machine.memory_bytes, times=ACCELERATOR, link=link)
    return Cluster((device, DeviceKind(CPU, 1, host=True)))
