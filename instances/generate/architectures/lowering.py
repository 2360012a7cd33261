"""Conversion of networks to workloads: layers or operators, inference or training, microbatches.

From the operator graph on, a network is processed like a traced PyTorch model.

*Output bytes* of a layer are those of the tensors that others read. A backward node sends the
gradients of the tensors that its forward node received; a sum sends one gradient to all its terms.
The gradients that several nodes send for one tensor are added up where the tensor came from, so
operators may send more between devices than the layers that they make up.

*Colours*: a backward node shares its forward node's. Nodes that use one weight matrix are a tie
(`instances/model/workload.py`).

Costs
-----
Numbers are 16-bit: 2 bytes in weights, activations and gradients, on CPU cores too.

*Time* is the roofline's (`instances/generate/roofline.py`), operator by operator; a layer takes the
sum over its operators. The backward pass of a matrix product is two products of the same size, one
for each operand's gradient, or one if an operand is an input of the network. That of an elementwise
operator costs as much as its forward pass, plus reading the saved tensors; the backward pass of a
sum stands for adding up the gradients where a tensor is used twice. The optimizer's step is once
per batch and is left out.

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
"ZeRO", SC 2020, section 3.1). A tensor counts once, at the operator that makes it, however many
read it. Scratch space and tensors that live only between two operators are not counted.

Microbatches
------------
The graph may be repeated for each microbatch of an iteration, as in traces: node v of microbatch m
is numbered m·n + v and called ``ID#m``. All microbatches of a node, and the nodes of its colour,
share one device, because they use the same weights. Weights, gradients and optimizer state are
counted once, with microbatch 0; activations once per microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ...common.choices import Tied
from ...model.tied_weights import with_ties
from ...model.workload import Copy, Tie, Workload, node_columns
from ...operator_graph import Flow, KernelCall, OperatorGraph, Read, SharedWeight, TracedOperator
from ...to_workload import (
    Grouping,
    estimated_times,
    memory_bytes,
    suggested_cluster,
    ties_of,
)
from ...to_workload import to_workload as grouped_workload
from ..roofline import Machine
from .network import Network, NetworkOperator, NetworkTensor

#: Columns of `Workload.extra` that count for every microbatch; the others count once.
OF_EACH = frozenset({"flops", "activation_bytes"})

#: Bytes per number of a tensor, and per parameter of a gradient and of Adam's state.
NUMBER_BYTES = 2
GRADIENT_BYTES = 2
OPTIMIZER_BYTES = 12

Granularity = Literal["layers", "operators"]


def to_workload(
    network: Network,
    machine: Machine,
    *,
    granularity: Granularity = "layers",
    training: bool = False,
    tied: Tied = Tied.COPIES,
    accelerators: int | None = None,
    microbatches: int = 1,
) -> Workload:
    """Return the network as a workload of its title, with a cluster that it fits on.

    Times and cluster are for the accelerator `machine`; `tied` is described in
    `instances/model/workload.py`. The cluster's accelerators send over the fast links between them;
    both ends pay, each on a link of its own, as through a switch. (What a CPU core exchanges is
    priced too low.) The workload's `transfer` is for the same link, so that clusters without links
    can be planned. By default there are 4 accelerators, doubled until everything fits with a fifth
    to spare, and a CPU core. Linear in operators and edges.
    """
    graph = graph_of(with_loss(network) if training else network.operators, training)
    grouping, times = _grouping(graph, granularity), estimated_times(graph, machine)
    more = (microbatches - 1) * sum(op.activation_bytes for op in graph.operators)
    once = grouped_workload(
        graph,
        grouping,
        times,
        name=network.title,
        cluster=suggested_cluster(machine, memory_bytes(graph) + more, accelerators),
        provenance={
            "generator": "stagecut.instances.generate.architectures",
            "network": network.title,
            "sample": network.sample,
        },
    )
    ties = ties_of(graph, grouping, once, times.link)
    return with_ties(*per_microbatch(once, ties, microbatches), tied)


def _grouping(graph: OperatorGraph, granularity: Granularity) -> Grouping:
    """Return the grouping by layers or operators, in the order of their first operators."""
    numbers: dict[str, int] = {}
    node = []
    for op in graph.operators:
        layer = op.modules[0] + (".backward" if op.backward else "")
        name = layer if granularity == "layers" else op.name
        node.append(numbers.setdefault(name, len(numbers)))
    return Grouping(tuple(node), tuple(numbers))


def with_loss(network: Network) -> list[NetworkOperator]:
    """Return the operators, and a loss that reads all outputs without a reader once."""
    read = {u for op in network.operators for u in op.inputs}
    longer = replace(network, operators=list(network.operators))
    sinks = [
        NetworkTensor((op.output_elements,), v)
        for v, op in enumerate(network.operators)
        if v not in read
    ]
    with longer.layer("loss"):
        size = sum(sink.elements for sink in sinks)
        longer.add("loss", "", sinks, (1,), flops=5 * size, saves="inputs")
    return longer.operators


def graph_of(operators: Sequence[NetworkOperator], training: bool) -> OperatorGraph:
    """Return the graph of the operators, in training with backward passes in reverse order."""
    count = len(operators)
    last = 2 * count - 1  # the backward operator of v is numbered last − v
    held = _saved(operators) if training else _kept(operators)
    sizes = [float(NUMBER_BYTES * op.output_elements) for op in operators]
    made = [
        TracedOperator(
            op.name,
            (op.layer,),
            (KernelCall(op.kind, op.flops, _moved(op)),),
            parameters=float(op.parameters),
            weight_bytes=float(NUMBER_BYTES * op.parameters),
            activation_bytes=sizes[v] if v in held else 0.0,
        )
        for v, op in enumerate(operators)
    ]
    flows = [Flow(u, v, Read(u, 0, sizes[u])) for v, op in enumerate(operators) for u in op.inputs]
    read = {u for op in operators for u in op.inputs}
    flows += [Flow(v, -1, Read(v, 0, sizes[v])) for v in range(count) if v not in read]
    if training:
        for op, forward in zip(reversed(operators), reversed(range(count)), strict=True):
            gradient = float(GRADIENT_BYTES * op.parameters)
            state = float(OPTIMIZER_BYTES * op.parameters)
            made.append(
                TracedOperator(
                    f"{op.name}.backward",
                    (op.layer,),
                    _backward_kernels(op),
                    True,
                    forward,
                    gradient_bytes=gradient,
                    optimizer_bytes=state,
                )
            )
        for v, op in enumerate(operators):
            for k, u in enumerate(op.inputs):
                if k == 0 or op.kind != "add":  # a sum sends one gradient to all its terms
                    sizes.append(sizes[u])
                sizes[-1] = max(sizes[-1], sizes[u])
                gradient_of_u = Read(len(sizes) - 1, 0, sizes[u])
                flows.append(Flow(last - v, last - u, gradient_of_u, (last - u, 0)))
    return OperatorGraph(
        operators=tuple(made),
        flows=tuple(flows),
        sizes=tuple(sizes),
        colours=tuple((v, last - v) for v in range(count)) if training else (),
        shared=tuple(_shared(operators, last if training else None)),
        anywhere=(),
    )


def _backward_kernels(op: NetworkOperator) -> tuple[KernelCall, ...]:
    """Return the kernels of the backward pass: two products, or one elementwise kernel."""
    if op.products:
        once = KernelCall(op.kind, op.backward_flops / 2, _moved(op))
        return (once,) * (2 if op.inputs else 1)
    inputs = op.input_elements if op.saves in ("inputs", "both") else 0
    output = op.output_elements if op.saves in ("output", "both") else 0
    moved = _moved(op) + NUMBER_BYTES * (inputs + output)
    return (KernelCall(op.kind, op.backward_flops, moved),)


def _moved(op: NetworkOperator) -> float:
    """Bytes of an operator's inputs, weights and output."""
    return float(NUMBER_BYTES * (op.input_elements + op.weights_read + op.output_elements))


def _shared(operators: Sequence[NetworkOperator], last: int | None) -> list[SharedWeight]:
    """Return the weights that several operators use; trained if `last` is given."""
    number = {op.name: v for v, op in enumerate(operators)}
    users: dict[str, list[int]] = {}
    for v, op in enumerate(operators):
        if op.owner:
            users.setdefault(op.owner, [number[op.owner]]).append(v)
    found = []
    for owner, readers in users.items():
        size = float(max(operators[v].shared for v in readers))
        learned = float(last is not None)
        found.append(
            SharedWeight(
                owner,
                tuple(readers),
                () if last is None else tuple(last - v for v in readers),
                NUMBER_BYTES * size,
                GRADIENT_BYTES * size * learned,
                OPTIMIZER_BYTES * size * learned,
            )
        )
    return found


def _saved(operators: Sequence[NetworkOperator]) -> set[int]:
    """Operators with outputs that the backward pass needs."""
    saved = {v for v, op in enumerate(operators) if op.saves in ("output", "both")}
    return saved.union(*(op.inputs for op in operators if op.saves in ("inputs", "both")))


def _kept(operators: Sequence[NetworkOperator]) -> set[int]:
    """Operators whose outputs are cached, read by another layer, or not read at all."""
    inner = {u for v in operators for u in v.inputs}
    leaving = {u for v in operators for u in v.inputs if operators[u].layer != v.layer}
    return {v for v, op in enumerate(operators) if op.cached or v in leaving or v not in inner}


def per_microbatch(once: Workload, ties: Sequence[Tie], count: int) -> tuple[Workload, list[Tie]]:
    """Return the graph of `count` microbatches and its ties, given those of one.

    `once` has ``activation_bytes`` in its extras, and colours without ties. The last microbatch
    delivers the gradients of ties.
    """
    if count == 1:
        return once, list(ties)
    n, shift = once.n, np.arange(count)[:, None] * once.n
    columns = node_columns(once, np.tile(np.arange(n), count))
    columns["memory_bytes"][n:] = columns["extra"]["activation_bytes"][n:]
    for key in columns["extra"].keys() - OF_EACH:
        columns["extra"][key][n:] = 0.0
    alone = np.arange(n) + len(once.colour_labels)
    labels = np.where(once.colours >= 0, once.colours, alone)
    _, lead, colours = np.unique(labels, return_index=True, return_inverse=True)
    workload = replace(
        once,
        **columns,
        ids=tuple(f"{node}#{m}" for m in range(count) for node in once.ids),
        names=tuple(f"{node}#{m}" for m in range(count) for node in once.names),
        edges=(once.edges[None] + shift[:, :, None]).reshape(-1, 2),
        colours=np.tile(colours, count),
        colour_labels=tuple(once.ids[v] for v in lead.tolist()),
        provenance={**once.provenance, "microbatches": str(count)},
    )
    return workload, [
        replace(tie, copies=tuple(_copy(copy, n, count) for copy in tie.copies)) for tie in ties
    ]


def _copy(copy: Copy, n: int, count: int) -> Copy:
    nodes = tuple(m * n + v for m in range(count) for v in copy.nodes)
    late = None if copy.deliverer is None else (count - 1) * n + copy.deliverer
    return Copy(nodes, copy.holder, late)
