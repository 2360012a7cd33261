"""Splitting rules of ATen operators: the axes of their tensors by letters, as in ``mk,kn->mn``.

A small letter may be split: tensors with this letter are split along its axis, others are copied.
An output without it is partial, if the operator sums over it; then a term of the sum (a bias) must
be partial too. An operator that is linear in some inputs, the others copied, takes these as
partial. Capital letters, and axes of extent 1 where a letter has another extent, are not split.

All rules are tested on numbers, part by part (`tests/runtime/execution/test_local_operators.py`).

*Exchanges*: operators that a device cannot compute from its part alone. Some need statistics of the
whole axis, which the devices reduce meanwhile (batch normalisation, softmax along a split axis, the
mean of a loss); some must know the position of their part (rows of an embedding, classes of a
loss). `runtime/execution/sharded/local.py` computes them.

*Picks*: operators that pick, put or compare along one axis, which is not split: experts' routers.
The elements they pick depend on data, so that no device can tell from a part of that axis the
positions of the others. All other axes can be split.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import fx

from ..common.errors import InputError
from ..model.tensor_program import COPIED, PARTIAL, Signature

Shape = tuple[int, ...]

#: Maker of a rule, from a node of a traced graph and the shapes of its inputs and outputs.
Maker = Callable[["fx.Node", Sequence[Shape], Sequence[Shape]], "Rule | None"]


@dataclass(frozen=True)
class Rule:
    """Splitting rule of an operator: the axes of its tensors as letters."""

    inputs: tuple[str, ...]  # inputs, outputs: the letters of each tensor
    outputs: tuple[str, ...]
    linear: tuple[tuple[int, ...], ...] = ()  # sets of inputs in which together it is linear
    additive: tuple[int, ...] = ()  # inputs that are added to a sum
    # pairs of a letter and an output that is copied, not partial, if the letter is split
    apart: tuple[tuple[str, int], ...] = ()
    # pairs of a letter and the bytes that devices reduce if they split it
    reduced: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(
        cls,
        text: str,
        linear: Iterable[tuple[int, ...]] = (),
        additive: tuple[int, ...] = (),
    ) -> Rule:
        """Return the rule that a text such as ``mk,kn->mn`` writes down."""
        read, made = text.split("->")
        inputs = tuple(read.split(",")) if read else ()
        return cls(inputs, tuple(made.split(",")), tuple(linear), additive)


def signatures(
    rule: Rule, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> tuple[Signature, ...]:
    """Return an operator's signatures for these shapes, the replicated one last.

    InputError if the rule is for tensors of other shapes.
    """
    extents = _extents(rule, inputs, outputs)
    reduced = dict(rule.reduced)
    found: dict[str, Signature] = {}
    for letter, extent in extents.items():
        if extent < 2 or not letter.islower():
            continue
        read = [
            _axis_of(text, letter, shape) for text, shape in zip(rule.inputs, inputs, strict=True)
        ]
        made = [
            _axis_of(text, letter, shape) for text, shape in zip(rule.outputs, outputs, strict=True)
        ]
        summed = any(axis >= 0 for axis in read)
        for k, axis in enumerate(made):
            if axis == COPIED and summed and (letter, k) not in rule.apart:
                made[k] = PARTIAL
        if PARTIAL in made:
            for k in rule.additive:
                read[k] = PARTIAL
        one = Signature(tuple(read), tuple(made), extent, reduced.get(letter, 0.0))
        found.setdefault(one.text, one)
    for together in rule.linear:
        read = [PARTIAL if k in together else COPIED for k in range(len(inputs))]
        one = Signature(tuple(read), (PARTIAL,) * len(outputs))
        found.setdefault(one.text, one)
    copied = Signature((COPIED,) * len(inputs), (COPIED,) * len(outputs))
    found.setdefault(copied.text, copied)
    return tuple(found.values())


def _extents(rule: Rule, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> dict[str, int]:
    extents: dict[str, int] = {}
    texts = (*rule.inputs, *rule.outputs)
    for text, shape in zip(texts, (*inputs, *outputs), strict=True):
        if len(text) != len(shape):
            raise InputError(f"rule {','.join(texts)}: {text} is not for a tensor of {shape}")
        for letter, extent in zip(text, shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                if 1 not in (extent, extents[letter]):
                    raise InputError(f"rule {','.join(texts)}: {letter} has two extents")
                extents[letter] = max(extent, extents[letter])
    return extents


def _axis_of(text: str, letter: str, shape: Shape) -> int:
    axis = text.find(letter)
    return axis if axis >= 0 and shape[axis] > 1 else COPIED


#: Bytes of a statistic.
_FLOAT = 4.0

#: First code point of letters for axes that differ and cannot be split.
_OTHERS = 0x4E00

#: Operators whose letters are always the same.
LETTERS: Mapping[str, Rule] = {
    "mm": Rule.of("mk,kn->mn", [(0,), (1,)]),
    "bmm": Rule.of("bmk,bkn->bmn", [(0,), (1,)]),
    "dot": Rule.of("k,k->", [(0,), (1,)]),
    "_adaptive_avg_pool2d": Rule.of("ncYX->ncHW", [(0,)]),
    "_adaptive_avg_pool2d_backward": Rule.of("ncHW,ncYX->ncYX", [(0,)]),
    "avg_pool2d": Rule.of("ncYX->ncHW", [(0,)]),
    "avg_pool2d_backward": Rule.of("ncHW,ncYX->ncYX", [(0,)]),
    "max_pool2d_with_indices": Rule.of("ncYX->ncHW,ncHW"),
    "max_pool2d_with_indices_backward": Rule.of("ncHW,ncYX,ncHW->ncYX"),
}

#: Sets of inputs in which a pointwise operator is linear.
LINEAR: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "add": ((0, 1),),
    "sub": ((0, 1),),
    "mul": ((0,), (1,)),
    "div": ((0,),),
    "neg": ((0,),),
    "clone": ((0,),),
    "_to_copy": ((0,),),
    "where": ((1, 2),),
    **{
        f"{name}_backward": ((0,),)
        for name in ("threshold", "gelu", "silu", "sigmoid", "tanh", "hardtanh", "elu", "hardswish")
    },
}

#: Pointwise operators that torch does not tag as such.
POINTWISE = frozenset(
    (
        "clone", "_to_copy", "fill", "gelu_backward", "silu_backward", "hardtanh_backward",
        "threshold_backward", "hardswish_backward", "elu_backward",
    )
)  # fmt: skip

#: Operators that return views of their input, which take neither memory nor time.
VIEWS = frozenset(
    (
        "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze",
        "expand", "slice", "select", "split", "split_with_sizes", "unbind",
    )
)  # fmt: skip

#: Constants, of which every device makes its part: of a tensor they read only size and type. By
#: name, the position of the argument with their size; None if it is that of the tensor.
CONSTANTS: Mapping[str, int | None] = {
    **dict.fromkeys(("ones_like", "zeros_like", "full_like", "empty_like"), None),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), 1),
    **dict.fromkeys(("zeros", "ones", "full", "empty"), 0),
}


def signatures_of(
    node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> tuple[Signature, ...] | None:
    """Return the signatures of a call of an ATen operator, None if there is no rule for it."""
    name = name_of(node)
    if name in ("view", "_unsafe_view", "reshape") and len(inputs) == 1:
        return view_signatures(inputs[0], outputs[0])
    if name in CONSTANTS:
        return signatures(Rule((), (_letters(len(outputs[0])),)), inputs, outputs)
    if name in LETTERS:
        rule = LETTERS[name]
        alike = all(len(text) == len(one) for text, one in zip(rule.inputs, inputs, strict=True))
        return signatures(rule, inputs, outputs) if alike else None
    if name in VIEWS:
        return signatures(_view(node, inputs, outputs), inputs, outputs)
    if name in _MAKERS:
        made = _MAKERS[name](node, inputs, outputs)
        return None if made is None else signatures(made, inputs, outputs)
    if is_pointwise(node):
        return signatures(_pointwise(node, inputs, outputs), inputs, outputs)
    return None


def name_of(node: fx.Node) -> str:
    """Return the ATen name of a node's operator, without the mark of in-place variants."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", str(node.target))
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_pointwise(node: fx.Node) -> bool:
    """Whether a node's operator is elementwise."""
    tags = getattr(node.target, "tags", ())
    random = torch.Tag.nondeterministic_seeded in tags
    return (torch.Tag.pointwise in tags or name_of(node) in POINTWISE) and not random


def _pointwise(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    name = name_of(node)
    letters = string.ascii_lowercase[: max((len(shape) for shape in outputs), default=0)]
    texts = [letters[len(letters) - len(shape) :] for shape in (*inputs, *outputs)]
    linear = LINEAR.get(name, ())
    if max((k for group in linear for k in group), default=0) >= len(inputs):
        alone = name in ("mul", "div")  # the other one is a number
        linear = ((0,),) if alone and inputs else ()
    if node.kwargs.get("rounding_mode"):
        linear = ()
    return Rule(tuple(texts[: len(inputs)]), tuple(texts[len(inputs) :]), linear)


def _letters(count: int, capital: Sequence[int] = ()) -> str:
    return "".join(
        c.upper() if axis in capital else c for axis, c in enumerate(string.ascii_lowercase[:count])
    )


def _axes(given: Any, count: int) -> list[int]:
    """Return axes as numbers from 0; all if none is given."""
    listed = [given] if isinstance(given, int) else list(given or range(count))
    return [axis % count for axis in listed] if count else []


def _argument(node: fx.Node, at: int, key: str, default: Any) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(key, default)


def _view(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    """Return the rule of a view, with axes identified by strides; axes that are cut stay whole."""
    letters, strides = _letters(len(inputs[0])), [1]
    for extent in reversed(inputs[0][1:]):
        strides.insert(0, strides[0] * (2 * extent + 1))
    like = torch.empty_strided(inputs[0], strides[: len(letters)], device="meta")
    made = node.target(like, *node.args[1:], **node.kwargs)
    known = dict(zip(zip(strides, inputs[0], strict=False), letters, strict=True))
    if name_of(node).startswith("split") and len(outputs) == 1:  # into pieces of all that there is
        (axis,) = _axes(_argument(node, 2, "dim", 0), len(letters))
        del known[strides[axis], inputs[0][axis]]
    new, whole = iter(string.ascii_lowercase[len(letters) :]), map(chr, count(_OTHERS))
    texts = [
        "".join(
            known.get(axis) or next(whole if axis[0] else new)  # of stride 0: repeated
            for axis in zip(view.stride(), view.shape, strict=True)
        )
        for view in (made if isinstance(made, tuple | list) else [made])
    ]
    read = "".join(c if any(c in text for text in texts) else c.upper() for c in letters)
    return Rule((read,), tuple(texts), ((0,),))


def _slice_backward(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    (axis,) = _axes(node.args[2], len(outputs[0]))
    letters = _letters(len(inputs[0]), (axis,))
    return Rule((letters,), (letters.replace(letters[axis], "Z"),), ((0,),))


def _select_backward(node: fx.Node, _: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    (axis,) = _axes(node.args[2], len(outputs[0]))
    letters = _letters(len(outputs[0]), (axis,))
    return Rule((letters[:axis] + letters[axis + 1 :],), (letters,), ((0,),))


def _cat(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule | None:
    if any(len(shape) != len(outputs[0]) for shape in inputs):
        return None
    (axis,) = _axes(_argument(node, 1, "dim", 0), len(outputs[0]))
    letters = _letters(len(outputs[0]), (axis,))
    read = tuple(letters.replace(letters[axis], chr(_OTHERS + k)) for k in range(len(inputs)))
    return Rule(read, (letters,), (tuple(range(len(inputs))),))


def _stack(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    (axis,) = _axes(_argument(node, 1, "dim", 0), len(outputs[0]))
    letters = _letters(len(inputs[0]))
    made = f"{letters[:axis]}Z{letters[axis:]}"
    return Rule((letters,) * len(inputs), (made,), (tuple(range(len(inputs))),))


def _sum(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    letters = _letters(len(inputs[0]))
    axes = _axes(_argument(node, 1, "dim", None), len(letters))
    kept = len(outputs[0]) == len(letters)
    made = "".join(("Z" if kept else "") if axis in axes else c for axis, c in enumerate(letters))
    return Rule((letters,), (made,), ((0,),))


def _layer_norm(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    count = len(inputs[0])
    last = count - len(node.args[1])
    letters = _letters(count, range(last, count))
    statistics = letters[:last] + "".join(chr(_OTHERS + k) for k in range(count - last))
    affine = (letters[last:],) * (len(inputs) - 1)
    return Rule((letters, *affine), (letters, *(statistics,) * (len(outputs) - 1)))


def _layer_norm_backward(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    count = len(inputs[0])
    last = count - len(node.args[2])
    letters = _letters(count, range(last, count))
    statistics = letters[:last] + "".join(chr(_OTHERS + k) for k in range(count - last))
    affine = (letters[last:],) * (len(inputs) - 4)
    made = tuple(letters if len(shape) == count else letters[last:] for shape in outputs)
    return Rule((letters, letters, statistics, statistics, *affine), made, ((0,),))


def _convolution_letters(read: Shape, weight: Shape, groups: int) -> tuple[str, str, str]:
    """Return the letters of a convolution's input, weight and output; spatial axes stay whole."""
    count = len(read) - 2
    if groups == 1:
        channels = "nc", "fc", "nf"
    elif groups == read[1] == weight[0]:
        channels = "nf", "fZ", "nf"
    else:
        channels = "nC", "FK", "nF"
    places = (letters[:count] for letters in ("YXUV", "ABCD", "HWGI"))
    one, kernel, made = (f"{a}{b}" for a, b in zip(channels, places, strict=True))
    return one, kernel, made


def _convolution(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    groups, bias = _argument(node, 8, "groups", 1), len(inputs) == 3
    if _argument(node, 6, "transposed", False):
        return None
    read, weight, out = _convolution_letters(inputs[0], inputs[1], groups)
    texts = (read, weight, *((out[1],) if bias else ()))
    linear = ((0, 2), (1, 2)) if bias else ((0,), (1,))
    return Rule(texts, (out,), linear, additive=(2,) if bias else ())


def _convolution_backward(
    node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> Rule | None:
    groups, mask = _argument(node, 9, "groups", 1), _argument(node, 10, "output_mask", [])
    if _argument(node, 7, "transposed", False):
        return None
    read, weight, out = _convolution_letters(inputs[1], inputs[2], groups)
    texts = tuple(t for t, wanted in zip((read, weight, out[1]), mask, strict=True) if wanted)
    apart = [("c", k) for k, text in enumerate(texts) if text == out[1] and groups == 1]
    assert len(texts) == len(outputs)
    return Rule((out, read, weight), texts, ((0,),), apart=tuple(apart))


def _addmm(_: fx.Node, inputs: Sequence[Shape], __: Sequence[Shape]) -> Rule:
    added = "mn"[2 - len(inputs[0]) :]
    return Rule.of(f"{added},mk,kn->mn", [(0, 1), (0, 2)], additive=(0,))


def _attention(_: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule | None:
    if any(len(shape) != 4 for shape in inputs[:3]) or inputs[0][1] != inputs[1][1]:
        return None
    mask = [_mask(shape) for shape in inputs[3:]]
    return Rule(("bhQD", "bhKD", "bhKE", *mask), ("bhQE", _by_row(inputs[0], outputs[1])))


def _attention_backward(_: fx.Node, inputs: Sequence[Shape], __: Sequence[Shape]) -> Rule | None:
    if any(len(shape) != 4 for shape in inputs[:5]) or inputs[1][1] != inputs[2][1]:
        return None
    mask = [_mask(shape) for shape in inputs[6:]]
    read = ("bhQE", "bhQD", "bhKD", "bhKE", "bhQE", _by_row(inputs[1], inputs[5]), *mask)
    return Rule(read, ("bhQD", "bhKD", "bhKE"))


def _mask(shape: Shape) -> str:
    """Letters of a mask, which may lack the first axes of the scores to which it is added."""
    return "bhQK"[4 - len(shape) :]


def _by_row(query: Shape, statistics: Shape) -> str:
    """Letters of attention's saved row statistics, rows or heads first by kernel."""
    return "bhQ" if statistics == query[:3] else "bQh"


def _batch_norm(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    """Batch norm: sums and sums of squares of channels are reduced if samples are split."""
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
    """Batch norm's backward pass: gradients of weight and bias are partial sums."""
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
    """Softmax along an axis; if it is split, `values` numbers of each row are reduced."""

    def rule(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule:
        given: Any = node.args[at]
        axis = given % len(inputs[0])
        letters = string.ascii_lowercase[: len(inputs[0])]
        rows = math.prod(inputs[0]) / max(inputs[0][axis], 1)
        reduced = ((letters[axis], values * _FLOAT * rows),)
        return Rule((letters,) * len(inputs), (letters,), reduced=reduced)

    return rule


def _loss(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    """Loss of log-probabilities; the number of samples that count is reduced."""
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


def _embedding_backward(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    if node.args[4]:  # gradients are divided by how often a word occurs in the whole batch
        return None
    letters = string.ascii_lowercase[: len(inputs[1])]
    return Rule((f"{letters}z", letters), ("vz",), ((0,),))


def _along(at: int, default: int, text: str, linear: Sequence[tuple[int, ...]] = ()) -> Maker:
    """Return a maker of rules for operators along one axis, which argument `at` names.

    The text has a capital letter for that axis in each tensor, and a small one for a list of
    positions along it. There is no rule for tensors whose other axes differ.
    """

    def rule(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule | None:
        read, made = (side.split(",") for side in text.split("->"))
        whole = [s for s, c in zip((*inputs, *outputs), (*read, *made), strict=True) if c.isupper()]
        (axis,) = _axes(_argument(node, at, "dim", default), max(len(inputs[0]), 1))
        if len({(len(s), s[:axis] + s[axis + 1 :]) for s in whole}) > 1:
            return None
        letters = string.ascii_lowercase[: len(inputs[0])]

        def of(c: str) -> str:
            return f"{letters[:axis]}{c}{letters[axis + 1 :]}" if c.isupper() else c.upper()

        return Rule(tuple(map(of, read)), tuple(map(of, made)), tuple(linear))

    return rule


def _scatter(node: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule | None:
    """Scatter: the source may be longer than the index, or a number."""
    if len(inputs) == 2:
        return _along(1, 0, "A,B->A")(node, inputs, outputs)
    put = _along(1, 0, "A,B,C->A", [(0, 2)])
    return put(node, inputs, outputs) if inputs[1] == inputs[2] else None


def _index(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    """Indexing of a tensor's rows by a list of their numbers: the list can be split, too."""
    if not _by_rows(node, inputs):
        return None
    rest = string.ascii_lowercase[1 : len(inputs[0])]
    return Rule((f"A{rest}", "a"), (f"a{rest}",), ((0,),))


def _index_put(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule | None:
    """Index put: rows may be added to; overwriting depends on the order."""
    if not _by_rows(node, inputs) or True not in node.args[3:]:
        return None
    rest = string.ascii_lowercase[1 : len(inputs[0])]
    if inputs[2] != (*inputs[1], *inputs[0][1:]):
        return None
    whole = f"A{rest}"
    return Rule((whole, "a", f"a{rest}"), (whole,), ((0, 2),), additive=(0,))


def _by_rows(node: fx.Node, inputs: Sequence[Shape]) -> bool:
    """Whether the tensor is indexed along its first axis alone, by one index tensor."""
    indices: Any = node.args[1]
    return len(indices) == 1 and len(inputs[1]) == 1


def _pad(node: fx.Node, inputs: Sequence[Shape], _: Sequence[Shape]) -> Rule:
    """Padding: axes that become longer stay whole."""
    count = len(inputs[0])
    before = [*string.ascii_lowercase[:count]]
    after = list(before)
    for axis in range(count - len(node.args[1]) // 2, count):
        before[axis], after[axis] = chr(ord("A") + 2 * axis), chr(ord("B") + 2 * axis)
    value = node.args[2] if len(node.args) > 2 else 0
    return Rule(("".join(before),), ("".join(after),), ((0,),) if value == 0 else ())


def _mse_loss(_: fx.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule | None:
    """Squared error; a mean over parts is the sum of their means, divided by their number."""
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


def view_signatures(before: Shape, after: Shape) -> tuple[Signature, ...]:
    """Return the signatures of a view with another shape.

    Axes that are joined or parted form a group; a group can be split along its first axes, where
    the parts divide both. Everything that is linear may be partial.
    """
    found: dict[str, Signature] = {}
    first, second = _leading(before), _leading(after)
    for i, j in ((first[held], second[held]) for held in sorted(first.keys() & second.keys())):
        extent = math.gcd(before[i], after[j])
        if extent > 1:
            one = Signature((i,), (j,), extent)
            found.setdefault(one.text, one)
    for kind in (PARTIAL, COPIED):
        one = Signature((kind,), (kind,))
        found[one.text] = one
    return tuple(found.values())


def _leading(shape: Shape) -> dict[int, int]:
    """Return each axis at which a group may begin, by the product of the extents before it."""
    return {math.prod(shape[:axis]): axis for axis, extent in enumerate(shape) if extent != 1}


#: Makers of rules, by the operator's name: of exchanges, of picks, and of others.
_MAKERS: Mapping[str, Maker] = {
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
    "addmm": _addmm,
    "slice_backward": _slice_backward,
    "select_backward": _select_backward,
    "cat": _cat,
    "stack": _stack,
    "sum": _sum,
    "mean": _sum,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_safe_softmax": _along(1, -1, "A->A"),
    "topk": _along(2, -1, "A->B,B"),
    "gather": _along(1, 0, "A,B->B", [(0,)]),
    "scatter": _scatter,
    "scatter_add": _scatter,
    "index_add": _along(1, 0, "A,b,B->A", [(0, 2)]),
    "index_select": _along(1, 0, "A,b->B", [(0,)]),
    "index": _index,
    "index_put": _index_put,
    "cumsum": _along(1, 0, "A->A", [(0,)]),
    "constant_pad_nd": _pad,
    "mse_loss": _mse_loss,
    "mse_loss_backward": _mse_loss_backward,
}
