"""Conversion of networks to workloads: layers or operators, inference or training, microbatches.

*Output bytes* of a layer are the tensors that others read. A backward node sends the gradients of
the tensors that its forward node received from others; a sum sends one gradient to all its terms.
The gradients that several nodes send for one tensor are added up where the tensor came from, so
operators may send more between devices than the layers that they make up.

*Colours*: a backward node shares its forward node's. Nodes that use one weight matrix are a tie
(`instances/model/ties.py`).

Costs
-----
Numbers are 16-bit: 2 bytes in weights, activations and gradients, on CPU cores too.

*Time* is the roofline's (`instances/generate/roofline.py`), operator by operator; a layer takes the
sum over its operators. The backward pass of a matrix product is two products of the same size, one
for each operand's gradient, and one where an operand comes from outside the network. What is done
element by element goes back at the price of the forward pass plus reading what was saved; the
backward pass of a sum stands for adding up the gradients where a tensor is used twice. The
optimizer's step is once per batch and is left out.

*Memory* of a node, each byte on one node only, so that totals are totals:

====================  ==========================================  =============================
column                inference                                   training
====================  ==========================================  =============================
``weight_bytes``      2 per parameter                             2 per parameter, forward node
``gradient_bytes``    0                                           2 per parameter, backward node
``optimizer_bytes``   0                                           12 per parameter, backward node
``activation_bytes``  outputs that leave their layer, and keys    outputs that the backward pass
                      and values of decoders                      needs, of one microbatch
====================  ==========================================  =============================

12 bytes are Adam's: a 32-bit copy of the weight and two 32-bit moments (Rajbhandari et al.,
"ZeRO", SC 2020, section 3.1). A tensor is kept by the operator that made it, once, however many
read it. Scratch space and what is alive only between two operators is not counted.

Microbatches
------------
The graph may be repeated for each microbatch of an iteration, as in traces: node v of microbatch m
is numbered m·n + v and called ``ID#m``. All microbatches of a node, and the nodes of its colour,
share one device, because they use the same weights. Weights, gradients and optimizer state are
there once, with microbatch 0; activations once per microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ...common.arrays import Floats, Ints
from ...common.choices import Choice, Tied
from ...model.cluster import ACCELERATOR, CPU, Cluster, DeviceKind
from ...model.links import Link
from ...model.tied_weights import with_ties
from ...model.ties import Copy, Tie
from ...model.workload import Workload
from ..roofline import CPU_CORE, Machine
from .network import Network, NetworkOperator

#: What a microbatch has of its own; the other columns of `Workload.extra` are there once.
OF_EACH = frozenset({"flops", "activation_bytes"})

#: Bytes per number of a tensor, and per parameter of a gradient and of Adam's state.
NUMBER_BYTES = 2
GRADIENT_BYTES = 2
OPTIMIZER_BYTES = 12

#: Numbers per operator, or per node, by what they are.
Columns = dict[str, Floats]
Granularity = Literal["layers", "operators"]


class Via(Choice):
    """Path of transfers between accelerators."""

    PEER = "peer"
    HOST = "host"


#: Columns that a node's memory is the sum of.
MEMORY = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")

#: The suggested cluster has at least so many accelerators, and this share of memory to spare.
LEAST_ACCELERATORS = 4
SPARE = 0.2


def to_workload(
    network: Network,
    machine: Machine,
    *,
    granularity: Granularity = "layers",
    training: bool = False,
    tied: Tied = Tied.COPIES,
    via: Via = Via.PEER,
    accelerators: int | None = None,
    microbatches: int = 1,
) -> Workload:
    """Return the network as a workload of its title, with a cluster that it fits on.

    Times and cluster are for the accelerator `machine`; `tied` is described in
    `instances/model/ties.py`. The cluster's accelerators send over ``peer``, the fast links between
    them, or ``host``, host memory. Both ends pay either way, each on a link of its own, as through
    a switch. (With ``peer``, what a CPU core exchanges is priced too low.) The workload's
    `transfer` is for the same link, so that clusters without links can be planned. By default there
    are 4 accelerators, doubled until everything fits with a fifth to spare, and a CPU core. Linear
    in operators and edges.
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
        name=network.title,
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
        },
    )
    ties = _ties(operators, group, count if training else 0, link)
    return with_ties(*per_microbatch(once, ties, microbatches), tied)


def _groups(operators: list[NetworkOperator], granularity: Granularity) -> tuple[Ints, list[str]]:
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


def _edges(operators: list[NetworkOperator], group: Ints) -> list[tuple[int, int]]:
    """Return the edges between nodes, in order, each once."""
    of = group.tolist()
    pairs = {(of[u], of[v]) for v, op in enumerate(operators) for u in op.inputs}
    return sorted((a, b) for a, b in pairs if a != b)


def _outputs(operators: list[NetworkOperator], group: Ints, count: int) -> Floats:
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


def _gradients(operators: list[NetworkOperator], group: Ints, count: int) -> Floats:
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


def _ties(operators: list[NetworkOperator], group: Ints, backward: int, link: Link) -> list[Tie]:
    """Return the weights that several nodes use."""
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


def loss(network: Network) -> NetworkOperator:
    """The loss of everything that nobody reads: one pass over it."""
    read = {u for op in network.operators for u in op.inputs}
    sinks = tuple(v for v in range(len(network.operators)) if v not in read)
    size = sum(network.operators[v].output_elements for v in sinks)
    return NetworkOperator(
        name="loss",
        kind="loss",
        layer="loss",
        inputs=sinks,
        flops=5.0 * size,
        parameters=0,
        shared=0,
        owner="",
        weights_read=0,
        input_elements=size,
        output_elements=1,
        saves="inputs",
        products=False,
        backward_flops=float(size),
        cached=False,
    )


def forward_costs(operators: list[NetworkOperator], training: bool) -> Columns:
    """Return the costs of each operator's forward pass, by column, shape (operators,).

    ``flops``, ``moved_bytes``, ``launches`` (kernels), ``parameters``, and the columns of the table
    above.
    """
    held = np.zeros(len(operators))
    for u in _saved(operators) if training else _kept(operators):
        held[u] = NUMBER_BYTES * operators[u].output_elements
    nothing = np.zeros(len(operators))
    return {
        "flops": np.array([op.flops for op in operators]),
        "moved_bytes": np.array([_moved(op) for op in operators]),
        "launches": np.ones(len(operators)),
        "parameters": np.array([float(op.parameters) for op in operators]),
        "weight_bytes": NUMBER_BYTES * _held(operators),
        "gradient_bytes": nothing,
        "optimizer_bytes": nothing,
        "activation_bytes": held,
    }


def backward_costs(operators: list[NetworkOperator]) -> Columns:
    """Return the costs of each operator's backward pass; columns as of `forward_costs`."""
    flops, moved, launches = [], [], []
    for op in operators:
        if op.products:
            products = 2 if op.inputs else 1
            flops.append(op.backward_flops / 2 * products)
            moved.append(_moved(op) * products)
            launches.append(float(products))
        else:
            inputs = op.input_elements if op.saves in ("inputs", "both") else 0
            output = op.output_elements if op.saves in ("output", "both") else 0
            flops.append(op.backward_flops)
            moved.append(_moved(op) + NUMBER_BYTES * (inputs + output))
            launches.append(1.0)
    held = _held(operators)
    nothing = np.zeros(len(operators))
    return {
        "flops": np.array(flops),
        "moved_bytes": np.array(moved),
        "launches": np.array(launches),
        "parameters": nothing,
        "weight_bytes": nothing,
        "gradient_bytes": GRADIENT_BYTES * held,
        "optimizer_bytes": OPTIMIZER_BYTES * held,
        "activation_bytes": nothing,
    }


def _moved(op: NetworkOperator) -> float:
    """Bytes of inputs, weights and output."""
    return float(NUMBER_BYTES * (op.input_elements + op.weights_read + op.output_elements))


def _held(operators: list[NetworkOperator]) -> Floats:
    """Parameters that each operator holds, each tied one once."""
    return np.array([float(op.parameters) for op in operators])


def _saved(operators: list[NetworkOperator]) -> set[int]:
    """Operators with outputs that the backward pass needs."""
    saved = {v for v, op in enumerate(operators) if op.saves in ("output", "both")}
    return saved.union(*(op.inputs for op in operators if op.saves in ("inputs", "both")))


def _kept(operators: list[NetworkOperator]) -> set[int]:
    """Operators with outputs cached, read by another layer, or read by none here."""
    inner = {u for v in operators for u in v.inputs}
    leaving = {u for v in operators for u in v.inputs if operators[u].layer != v.layer}
    return {v for v, op in enumerate(operators) if op.cached or v in leaving or v not in inner}


def per_microbatch(once: Workload, ties: Sequence[Tie], count: int) -> tuple[Workload, list[Tie]]:
    """Return the graph of `count` microbatches and its ties, given those of one.

    That has ``activation_bytes`` among its extras, and colours that say nothing of ties. Gradients
    of ties are delivered by the last microbatch.
    """
    if count == 1:
        return once, list(ties)
    n, shift = once.n, np.arange(count)[:, None] * once.n
    activations = np.tile(once.extra["activation_bytes"], count)
    activations[:n] = once.memory_bytes

    def first(values: Floats) -> Floats:
        return np.concatenate([values, np.zeros((count - 1) * n)])

    def each(values: Floats | None) -> Floats | None:
        return None if values is None else np.tile(values, count)

    alone = np.arange(n) + len(once.colour_labels)
    labels = np.where(once.colours >= 0, once.colours, alone)
    _, lead, colours = np.unique(labels, return_index=True, return_inverse=True)
    workload = replace(
        once,
        ids=tuple(f"{node}#{m}" for m in range(count) for node in once.ids),
        names=tuple(f"{node}#{m}" for m in range(count) for node in once.names),
        edges=(once.edges[None] + shift[:, :, None]).reshape(-1, 2),
        times={kind: np.tile(values, count) for kind, values in once.times.items()},
        memory_bytes=activations,
        transfer=each(once.transfer),
        output_bytes=each(once.output_bytes),
        backward=np.tile(once.backward, count),
        colours=np.tile(colours, count),
        colour_labels=tuple(once.ids[v] for v in lead.tolist()),
        extra={
            key: np.tile(values, count) if key in OF_EACH else first(values)
            for key, values in once.extra.items()
        },
        provenance={**once.provenance, "microbatches": str(count)},
    )
    return workload, [
        replace(tie, copies=tuple(_copy(copy, n, count) for copy in tie.copies)) for tie in ties
    ]


def _copy(copy: Copy, n: int, count: int) -> Copy:
    nodes = tuple(m * n + v for m in range(count) for v in copy.nodes)
    late = None if copy.deliverer is None else (count - 1) * n + copy.deliverer
    return Copy(nodes, copy.holder, late)
