"""A network while it is described: operators, and the tensors between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

Saves = Literal["inputs", "output", "both", "nothing"]


@dataclass(frozen=True)
class NetworkTensor:
    """A tensor: its whole shape, batch first, and the number of the operator that makes it.

    `producer` is None for what comes from outside: token numbers, pixels, a text's encoding.
    """

    shape: tuple[int, ...]
    producer: int | None = None

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class NetworkOperator:
    """One operator of the forward pass.

    Parameters
    ----------
    name
        All different; starts with the layer's.
    kind
        ``linear``, ``conv``, ``add``, ….
    layer
        The layer that it belongs to.
    inputs
        Operators whose outputs it reads, without repetition.
    flops
        Floating-point operations; a multiply-add counts as two.
    parameters
        Numbers in weights of its own.
    shared
        Numbers in weights that it uses, but `owner` owns.
    owner
        Name of the operator that owns those; empty without.
    weights_read
        Numbers in weights that one pass reads.
    input_elements, output_elements
        Numbers that it reads, and writes.
    saves
        What its backward pass needs of what the forward pass had.
    products
        True for matrix products, whose backward pass is two products of the same size; False for
        what is done element by element.
    backward_flops
        Floating-point operations of its backward pass, if it has inputs to derive by.
    cached
        Whether its output outlives the pass in inference: keys and values of a decoder.
    """

    name: str
    kind: str
    layer: str
    inputs: tuple[int, ...]
    flops: float
    parameters: int
    shared: int
    owner: str
    weights_read: int
    input_elements: int
    output_elements: int
    saves: Saves
    products: bool
    backward_flops: float
    cached: bool


@dataclass(frozen=True)
class Reads:
    """What an operator reads, in numbers.

    Parameters
    ----------
    parameters
        Weights of its own.
    shared, owner
        Weights of another operator, and that operator's name.
    weights
        How many of its weights a pass reads; default: all.
    elements
        How much a pass reads of its inputs; default: all.
    """

    parameters: int = 0
    shared: int = 0
    owner: str = ""
    weights: int | None = None
    elements: int | None = None


INPUTS_ALONE = Reads()

#: FLOPs of the backward pass over those of the forward pass, by kind of operator; of others 2 for
#: products, one for each operand's gradient, and else 1. Attention has five products, not two.
BACKWARD_RATIO = {"attention": 2.5}


@dataclass
class Network:
    """A network under construction.

    Parameters
    ----------
    title
        What people call it.
    sample
        What one pass is about, such as ``batch 8, 512 tokens``.
    """

    title: str
    sample: str
    operators: list[NetworkOperator] = field(default_factory=list)
    _layer: str = field(default="", init=False)

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Put the operators added inside into layer `name`."""
        before, self._layer = self._layer, name
        try:
            yield
        finally:
            self._layer = before

    def add(
        self,
        kind: str,
        name: str,
        inputs: Sequence[NetworkTensor],
        shape: tuple[int, ...],
        *,
        flops: float,
        saves: Saves,
        reads: Reads = INPUTS_ALONE,
        products: bool = False,
    ) -> NetworkTensor:
        """Add an operator and return its output.

        Parameters
        ----------
        name
            Within the layer; empty if the layer is one operator.
        shape
            Of the output.
        reads
            Its weights, and how much it reads of them and of its inputs.
        """
        producers = [t.producer for t in inputs if t.producer is not None]
        operands = {id(t) if t.producer is None else t.producer: t.elements for t in inputs}
        ratio = BACKWARD_RATIO.get(kind, 2.0 if products else 1.0)
        output = NetworkTensor(shape, len(self.operators))
        self.operators.append(
            NetworkOperator(
                name=f"{self._layer}.{name}" if name else self._layer,
                kind=kind,
                layer=self._layer,
                inputs=tuple(dict.fromkeys(producers)),
                flops=float(flops),
                parameters=reads.parameters,
                shared=reads.shared,
                owner=reads.owner,
                weights_read=reads.parameters + reads.shared
                if reads.weights is None
                else reads.weights,
                input_elements=sum(operands.values()) if reads.elements is None else reads.elements,
                output_elements=output.elements,
                saves=saves,
                products=products,
                backward_flops=ratio * flops,
                cached=False,
            )
        )
        return output

    def cache(self, output: NetworkTensor) -> NetworkTensor:
        """Let an operator's output outlive the pass in inference, and return it."""
        assert output.producer is not None
        self.operators[output.producer] = replace(self.operators[output.producer], cached=True)
        return output
