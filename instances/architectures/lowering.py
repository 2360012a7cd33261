"""From a described network to a workload: layers or operators, inference or training, priced.

What is counted
---------------
Numbers are 16-bit: 2 bytes in weights, activations and gradients, on CPU cores too.

*Time* is the roofline's (`roofline.py`), operator by operator; a layer takes the sum over its
operators. The backward pass of a matrix product is two products of the same size, one for each
operand's gradient, and one where an operand comes from outside the network. What is done element
by element goes back at the price of the forward pass plus reading what was saved; the backward
pass of a sum stands for adding up the gradients where a tensor is used twice. The optimizer's step
is once per batch and is left out.

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

*Output bytes* of a layer are the tensors that others read. A backward node sends the gradients of
the tensors that its forward node received from others; a sum sends one gradient to all its terms.

*Colours*: a backward node shares its forward node's, and nodes that use one weight matrix share
one (``tied="colour"``): the matrix exists once. With ``tied="copies"`` each of them has the matrix,
its gradient and its optimizer state, as pipelines do whose first and last stage keep a copy each
(Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", SC 2021); adding up the two gradients once per batch is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..arrays import Floats, Ints
from ..cluster import ACCELERATOR, CPU, Cluster, DeviceKind
from ..roofline import CPU_CORE, Machine
from ..workload import Workload
from .network import Network, Operator

Granularity = Literal["layers", "operators"]
Tied = Literal["colour", "copies"]
Via = Literal["peer", "host"]

#: Bytes per number of a tensor, and per parameter of a gradient and of Adam's state.
NUMBER_BYTES = 2
GRADIENT_BYTES = 2
OPTIMIZER_BYTES = 12
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
    tied: Tied = "colour",
    via: Via = "peer",
    accelerators: int | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Workload:
    """Return the network as a workload, with a cluster that it fits on.

    Parameters
    ----------
    machine
        The accelerator that times and cluster are for.
    tied
        What weights used twice mean; see above.
    via
        What the suggested cluster's accelerators send over: ``peer``, the fast links between
        them, or ``host``, host memory. Both ends pay either way, each on a link of its own, as
        through a switch. (With ``peer``, what a CPU core exchanges is priced too low.)
    accelerators
        How many the suggested cluster has; default: 4, doubled until everything fits with a fifth
        to spare. A CPU core comes with them.
    provenance
        Entries added to those of the generator.

    Notes
    -----
    Linear in operators and edges.
    """
    operators = [*network.operators, *([_loss(network)] if training else [])]
    group, nodes = _groups(operators, granularity)
    passes = [_forward(operators, training, tied)]
    if training:
        passes.append(_backward(operators, tied))
    count = len(nodes)
    columns = [
        _Costs(*(_sums(column, group, count) for column in vars(p).values())) for p in passes
    ]
    edges = sorted(
        {
            (int(group[u]), v)
            for v, op in zip(group.tolist(), operators, strict=True)
            for u in op.inputs
        }
    )
    edges = [(u, v) for u, v in edges if u != v]
    outputs = [_outputs(operators, group, count)]
    ids = list(nodes)
    if training:  # backward nodes come last, in reverse: v's is numbered 2·count − 1 − v
        last = 2 * count - 1
        mirrored = [(last - v, last - u) for u, v in edges]
        edges = [*edges, *((v, last - v) for v in range(count)), *mirrored]
        outputs.append(_gradients(operators, group, count)[::-1])
        columns[1] = _Costs(*(column[::-1] for column in vars(columns[1]).values()))
        ids += [f"{node}.backward" for node in reversed(nodes)]

    costs = _Costs(*(np.concatenate(parts) for parts in zip(*(vars(c).values() for c in columns))))
    memory = costs.weights + costs.gradients + costs.optimizer + costs.activations
    colours, labels = _colours(operators, group, nodes, training, tied)
    return Workload(
        name=name,
        ids=tuple(ids),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        times={
            ACCELERATOR: 1e3 * _seconds(passes, machine, group, count),
            CPU: 1e3 * _seconds(passes, CPU_CORE, group, count),
        },
        memory_bytes=memory,
        transfer=None,
        output_bytes=np.concatenate(outputs),
        backward=np.arange(len(ids)) >= count,
        colours=colours,
        colour_labels=labels,
        time_unit="ms",
        extra={
            "parameters": costs.parameters,
            "flops": costs.flops,
            "weight_bytes": costs.weights,
            "gradient_bytes": costs.gradients,
            "optimizer_bytes": costs.optimizer,
            "activation_bytes": costs.activations,
        },
        cluster=_cluster(machine, via, float(memory.sum()), accelerators),
        provenance={
            "generator": "stagecut.instances.architectures",
            "network": network.title,
            "sample": network.sample,
            "accelerator": f"{machine.name}: {machine.source}",
            "cpu": f"{CPU_CORE.name}: {CPU_CORE.source}",
            "cost_model": "roofline",
            "link": "between accelerators" if via == "peer" else "to host memory",
            **(provenance or {}),
        },
    )


@dataclass(frozen=True, eq=False)
class _Costs:
    """Costs of one pass, each of shape (operators,) or (nodes,)."""

    flops: Floats
    moved: Floats
    launches: Floats
    parameters: Floats
    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats


def _loss(network: Network) -> Operator:
    """The loss of everything that nobody reads: one pass over it."""
    read = {u for op in network.operators for u in op.inputs}
    sinks = tuple(v for v in range(len(network.operators)) if v not in read)
    size = sum(network.operators[v].output_elements for v in sinks)
    return Operator(
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


def _groups(operators: list[Operator], granularity: Granularity) -> tuple[Ints, list[str]]:
    """Number the nodes in the order in which they first occur; return each operator's node."""
    names = [op.layer if granularity == "layers" else op.name for op in operators]
    numbers: dict[str, int] = {}
    group = [numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(group, dtype=np.int64), list(numbers)


def _forward(operators: list[Operator], training: bool, tied: Tied) -> _Costs:
    held = np.zeros(len(operators))
    for u in _saved(operators) if training else _kept(operators):
        held[u] = NUMBER_BYTES * operators[u].output_elements
    owned = _owned(operators, tied)
    nothing = np.zeros(len(operators))
    return _Costs(
        flops=np.array([op.flops for op in operators]),
        moved=np.array([_moved(op) for op in operators]),
        launches=np.ones(len(operators)),
        parameters=np.array([float(op.parameters) for op in operators]),
        weights=NUMBER_BYTES * owned,
        gradients=nothing,
        optimizer=nothing,
        activations=held,
    )


def _backward(operators: list[Operator], tied: Tied) -> _Costs:
    flops, moved, launches = [], [], []
    for op in operators:
        if op.products:
            products = 2 if op.inputs else 1
            flops.append(op.backward_flops / 2 * products)
            moved.append(_moved(op) * products)
            launches.append(products)
        else:
            inputs = op.input_elements if op.saves in ("inputs", "both") else 0
            output = op.output_elements if op.saves in ("output", "both") else 0
            flops.append(op.backward_flops)
            moved.append(_moved(op) + NUMBER_BYTES * (inputs + output))
            launches.append(1)
    owned = _owned(operators, tied)
    nothing = np.zeros(len(operators))
    return _Costs(
        flops=np.array(flops),
        moved=np.array(moved, dtype=np.float64),
        launches=np.array(launches, dtype=np.float64),
        parameters=nothing,
        weights=nothing,
        gradients=GRADIENT_BYTES * owned,
        optimizer=OPTIMIZER_BYTES * owned,
        activations=nothing,
    )


def _moved(op: Operator) -> float:
    """Bytes of inputs, weights and output."""
    return float(NUMBER_BYTES * (op.input_elements + op.weights_read + op.output_elements))


def _owned(operators: list[Operator], tied: Tied) -> Floats:
    """Parameters that each operator holds."""
    shared = tied == "copies"
    return np.array([float(op.parameters + (op.shared if shared else 0)) for op in operators])


def _saved(operators: list[Operator]) -> set[int]:
    """Operators whose output the backward pass needs."""
    saved = {v for v, op in enumerate(operators) if op.saves in ("output", "both")}
    return saved.union(*(op.inputs for op in operators if op.saves in ("inputs", "both")))


def _kept(operators: list[Operator]) -> set[int]:
    """Operators whose output is cached, read by another layer, or read by nobody here."""
    inner = {u for v in operators for u in v.inputs}
    leaving = {u for v in operators for u in v.inputs if operators[u].layer != v.layer}
    return {v for v, op in enumerate(operators) if op.cached or v in leaving or v not in inner}


def _sums(column: Floats, group: Ints, count: int) -> Floats:
    return np.bincount(group, weights=column, minlength=count).astype(np.float64)


def _seconds(passes: list[_Costs], machine: Machine, group: Ints, count: int) -> Floats:
    """Seconds of each node: the sum over its operators, backward nodes last and in reverse."""
    seconds = [_sums(machine.seconds(p.flops, p.moved, p.launches), group, count) for p in passes]
    return np.concatenate([seconds[0], *(column[::-1] for column in seconds[1:])])


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
    sent: dict[tuple[int, str, int], int] = {}
    for v, op in enumerate(operators):
        for u in op.inputs:
            if group[u] != group[v]:
                # all terms of a sum get the same gradient; users of a tensor add theirs up first
                key = ("sum of", v) if op.kind == "add" else ("gradient of", u)
                size = operators[u].output_elements
                to = (int(group[v]), *key)
                sent[to] = max(size, sent.get(to, 0))
    total = np.zeros(count)
    for (node, _, _), size in sent.items():
        total[node] += NUMBER_BYTES * size
    return total


def _colours(
    operators: list[Operator], group: Ints, nodes: list[str], training: bool, tied: Tied
) -> tuple[Ints, tuple[str, ...]]:
    """Return the colour of each node, and what the colours are called: the node they begin at."""
    at = {op.name: int(group[v]) for v, op in enumerate(operators)}
    leader = list(range(len(nodes)))
    if tied == "colour":
        for v, op in enumerate(operators):
            if op.owner:
                leader[int(group[v])] = at[op.owner]
    alike = [training or leader.count(lead) > 1 for lead in leader]
    numbers: dict[int, int] = {}
    colours = [
        numbers.setdefault(lead, len(numbers)) if shared else -1
        for lead, shared in zip(leader, alike, strict=True)
    ]
    both = [*colours, *reversed(colours)] if training else colours
    return np.array(both, dtype=np.int64), tuple(nodes[lead] for lead in numbers)


def _cluster(
    machine: Machine, via: Via, total_bytes: float, accelerators: int | None
) -> Cluster:
    count = accelerators or LEAST_ACCELERATORS
    while accelerators is None and total_bytes > (1 - SPARE) * count * machine.memory_bytes:
        count *= 2
    link = machine.peer if via == "peer" else machine.host
    device = DeviceKind(machine.name, count, machine.memory_bytes, times=ACCELERATOR, link=link)
    return Cluster((device, DeviceKind(CPU, 1, host=True)))
