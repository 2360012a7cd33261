"""What each operator costs, forward and backward: operations, bytes moved, bytes held.

What is counted
---------------
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
"""

from __future__ import annotations

import numpy as np

from ...common.arrays import Floats
from .network import Network, Operator

#: Bytes per number of a tensor, and per parameter of a gradient and of Adam's state.
NUMBER_BYTES = 2
GRADIENT_BYTES = 2
OPTIMIZER_BYTES = 12


#: Numbers per operator, or per node, by what they are.
Columns = dict[str, Floats]


def loss(network: Network) -> Operator:
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


def forward_costs(operators: list[Operator], training: bool) -> Columns:
    """Return what the forward pass of each operator costs.

    Returns
    -------
    dict of arrays of shape (operators,)
        ``flops``, ``moved_bytes``, ``launches`` (kernels), ``parameters``, and the columns of the
        table above.
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


def backward_costs(operators: list[Operator]) -> Columns:
    """Return what the backward pass of each operator costs; columns as of `forward_costs`."""
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


def _moved(op: Operator) -> float:
    """Bytes of inputs, weights and output."""
    return float(NUMBER_BYTES * (op.input_elements + op.weights_read + op.output_elements))


def _held(operators: list[Operator]) -> Floats:
    """Parameters that each operator holds, each tied one once."""
    return np.array([float(op.parameters) for op in operators])


def _saved(operators: list[Operator]) -> set[int]:
    """Operators whose output the backward pass needs."""
    saved = {v for v, op in enumerate(operators) if op.saves in ("output", "both")}
    return saved.union(*(op.inputs for op in operators if op.saves in ("inputs", "both")))


def _kept(operators: list[Operator]) -> set[int]:
    """Operators whose output is cached, read by another layer, or read by nobody here."""
    inner = {u for v in operators for u in v.inputs}
    leaving = {u for v in operators for u in v.inputs if operators[u].layer != v.layer}
    return {v for v, op in enumerate(operators) if op.cached or v in leaving or v not in inner}
