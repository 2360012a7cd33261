"""Rules of operators that a device cannot compute on its part alone.

Some need statistics of the whole axis, which the devices add up meanwhile (batch normalisation,
softmax along a split axis, the mean of a loss); some must know which part of an axis they have
(rows of an embedding, classes of a loss). `runtime/execution/sharded/local.py` computes them so.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from .letters import Maker, Rule, Shape

#: Bytes of a statistic.
_FLOAT = 4.0


def _batch_norm(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    """Sums and sums of squares of each channel are added up where samples are split."""
    data = "nc" + "YXUV"[: len(inputs[0]) - 2]
    training = bool(node.args[5])
    channels = ("c" if training else "Z",) * (len(outputs) - 1)
    texts = (data, *("c",) * (len(inputs) - 1))
    if not training:
        return Rule(texts, (data, *channels))
    apart = [("n", k) for k in range(1, len(outputs))]
    return Rule(
        texts,
        (data, *channels),
        apart=tuple(apart),
        reduced=(("n", 2 * _FLOAT * inputs[0][1]),),
    )


def _batch_norm_backward(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    """What is added up over split samples are the gradients of weight and bias themselves."""
    data = "nc" + "YXUV"[: len(inputs[0]) - 2]
    training = bool(node.args[7])
    read = tuple(
        data if len(shape) == len(data) else "c" if shape == inputs[0][1:2] else "Z"
        for shape in inputs
    )
    made = tuple(data if len(shape) == len(data) else "c" for shape in outputs)
    if not training:
        return Rule(read, made)
    apart = tuple(("n", k) for k, text in enumerate(made) if text == "c")
    return Rule(read, made, apart=apart, reduced=(("n", 2 * _FLOAT * inputs[0][1]),))


def _softmax(values: int, at: int) -> Maker:
    """Softmax along an axis, which may be split: `values` of each row are added up then."""

    def rule(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule:
        given: Any = node.args[at]
        axis = given % len(inputs[0])
        letters = string.ascii_lowercase[: len(inputs[0])]
        rows = math.prod(inputs[0]) / max(inputs[0][axis], 1)
        reduced = ((letters[axis], values * _FLOAT * rows),)
        return Rule((letters,) * len(inputs), (letters,), reduced=reduced)

    return rule


def _loss(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    """A loss of log-probabilities; the number of samples that count is added up."""
    if len(inputs[0]) != 2 or len(inputs) != 2 or node.args[3] == 0:
        return None
    apart = (("n", 1), ("c", 1))
    return Rule(("nc", "n"), ("", ""), apart=apart, reduced=(("n", _FLOAT),))


def _loss_backward(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    if len(inputs[1]) != 2 or len(inputs) != 4 or node.args[4] == 0:
        return None
    return Rule(("", "nc", "n", ""), ("nc",), ((0,),))


def _embedding(_: fx.Node, inputs: Sequence[Shape], __: Sequence[Shape]) -> Rule:
    letters = string.ascii_lowercase[: len(inputs[1])]
    return Rule(("vz", letters), (f"{letters}z",), ((0,),))


def _embedding_backward(_: fx.Node, inputs: Sequence[Shape], __: Sequence[Shape]) -> Rule:
    letters = string.ascii_lowercase[: len(inputs[1])]
    return Rule((f"{letters}z", letters), ("vz",), ((0,),))


#: By the operator's name.
EXCHANGES: Mapping[str, Maker] = {
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "_softmax": _softmax(2, 1),
    "_log_softmax": _softmax(2, 1),
    "_softmax_backward_data": _softmax(1, 2),
    "_log_softmax_backward_data": _softmax(1, 2),
    "nll_loss_forward": _loss,
    "nll_loss_backward": _loss_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
}
