"""Rules of operators that pick, put or compare along one axis, which stays whole: experts' routers.

Which elements they pick depends on the numbers, so that no device can tell from a part of that axis
what the others hold. All other axes can be split.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from .letters import Maker, Rule, Shape

#: Letters of the axis, which cannot be split, in what is picked from, where, and what is put there.
_WHOLE, _PICKED, _PUT = "A", "B", "C"


def _axis(node: fx.Node, at: int, default: int, count: int) -> int:
    given: Any = node.args[at] if len(node.args) > at else node.kwargs.get("dim", default)
    return int(given) % max(count, 1)


def _texts(shapes: Sequence[Shape], axis: int, letters: str) -> tuple[str, ...] | None:
    """Return letters of tensors that differ along one axis alone; None if others differ."""
    count = len(shapes[0])
    others = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
    if len(others) > 1 or any(len(shape) != count for shape in shapes):
        return None
    plain = string.ascii_lowercase[:count]
    return tuple(f"{plain[:axis]}{one}{plain[axis + 1 :]}" for one in letters)


def _safe_softmax(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    texts = _texts(inputs, _axis(node, 1, -1, len(inputs[0])), _WHOLE)
    return None if texts is None else Rule(texts, texts)


def _topk(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule | None:
    axis = _axis(node, 2, -1, len(inputs[0]))
    texts = _texts((*inputs, outputs[0]), axis, _WHOLE + _PICKED)
    return None if texts is None else Rule(texts[:1], texts[1:] * 2)


def _gather(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    texts = _texts(inputs, _axis(node, 1, 0, len(inputs[0])), _WHOLE + _PICKED)
    return None if texts is None else Rule(texts, texts[1:], ((0,),))


def _scatter(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    """Of what is put there, and where it is put, the first may be longer, or a number."""
    axis = _axis(node, 1, 0, len(inputs[0]))
    texts = _texts(inputs, axis, (_WHOLE + _PICKED + _PUT)[: len(inputs)])
    if texts is None or (len(inputs) == 3 and inputs[1] != inputs[2]):
        return None
    return Rule(texts, texts[:1], ((0, 2),) if len(inputs) == 3 else ())


def _index_add(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    texts = _texts((inputs[0], inputs[2]), _axis(node, 1, 0, len(inputs[0])), _WHOLE + _PICKED)
    return None if texts is None else Rule((texts[0], _PICKED, texts[1]), texts[:1], ((0, 2),))


def _index_select(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule | None:
    axis = _axis(node, 1, 0, len(inputs[0]))
    texts = _texts((inputs[0], outputs[0]), axis, _WHOLE + _PICKED)
    return None if texts is None else Rule((texts[0], _PICKED), texts[1:], ((0,),))


def _index(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    """Rows of a tensor by a list of their numbers: the list can be split, too."""
    if not _by_rows(node, inputs):
        return None
    rest = string.ascii_lowercase[1 : len(inputs[0])]
    return Rule((f"{_WHOLE}{rest}", "a"), (f"a{rest}",), ((0,),))


def _index_put(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    """What is added to rows; what is put there in their place depends on what comes last."""
    if not _by_rows(node, inputs) or True not in node.args[3:]:
        return None
    rest = string.ascii_lowercase[1 : len(inputs[0])]
    if inputs[2] != (*inputs[1], *inputs[0][1:]):
        return None
    whole = f"{_WHOLE}{rest}"
    return Rule((whole, "a", f"a{rest}"), (whole,), ((0, 2),), additive=(0,))


def _by_rows(node: fx.Node, inputs: Sequence[Shape]) -> bool:
    """Whether what is indexed is indexed along its first axis alone, by a list."""
    indices: Any = node.args[1]
    return len(indices) == 1 and len(inputs[1]) == 1


def _cumsum(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    texts = _texts(inputs, _axis(node, 1, 0, len(inputs[0])), _WHOLE)
    return None if texts is None else Rule(texts, texts, ((0,),))


def _pad(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule:
    """Axes that become longer stay whole."""
    count = len(inputs[0])
    before = [*string.ascii_lowercase[:count]]
    after = list(before)
    for axis in range(count - len(node.args[1]) // 2, count):
        before[axis], after[axis] = chr(ord("A") + 2 * axis), chr(ord("B") + 2 * axis)
    value = node.args[2] if len(node.args) > 2 else 0
    return Rule(("".join(before),), ("".join(after),), ((0,),) if value == 0 else ())


def _mse_loss(_: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule | None:
    """A mean over parts is one of theirs, divided by their number when it is computed."""
    letters = string.ascii_lowercase[: len(inputs[0])]
    if inputs[0] != inputs[1]:
        return None
    return Rule((letters, letters), (letters if outputs[0] == inputs[0] else "",))


def _mse_loss_backward(_: fx.Node, inputs: Sequence[Shape], __: Sequence[Shape]) -> Rule | None:
    letters = string.ascii_lowercase[: len(inputs[1])]
    if inputs[1] != inputs[2]:
        return None
    gradient = letters if inputs[0] == inputs[1] else ""
    return Rule((gradient, letters, letters), (letters,), ((0,),))


#: By the operator's name.
PICKS: Mapping[str, Maker] = {
    "_safe_softmax": _safe_softmax,
    "topk": _topk,
    "gather": _gather,
    "scatter": _scatter,
    "scatter_add": _scatter,
    "index_add": _index_add,
    "index_select": _index_select,
    "index": _index,
    "index_put": _index_put,
    "cumsum": _cumsum,
    "constant_pad_nd": _pad,
    "mse_loss": _mse_loss,
    "mse_loss_backward": _mse_loss_backward,
}
