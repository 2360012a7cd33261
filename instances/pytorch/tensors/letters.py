"""Signatures of operators by named axes, as in ``mk,kn->mn``.

A small letter may be split: tensors that have it are split along its axis, those that have not are
copied. What is made without it is partial, if the operator adds up over it; then what is added to
the sum (a bias) must be partial too. An operator that is linear in some of its inputs, the others
copied, takes these as partial. Capital letters, and axes of extent 1 where a letter has another
extent, are not split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...common.errors import InputError
from ...model.sharding.program import COPIED, PARTIAL, Signature

if TYPE_CHECKING:
    from torch import fx

Shape = tuple[int, ...]

#: What makes a rule: from the node of a traced graph, and the shapes of its tensors.
Maker = Callable[["fx.Node", Sequence[Shape], Sequence[Shape]], "Rule | None"]


@dataclass(frozen=True)
class Rule:
    """Splitting rule of an operator: the axes of its tensors as letters."""

    inputs: tuple[str, ...]  # inputs, outputs: the letters of each tensor
    outputs: tuple[str, ...]
    linear: tuple[tuple[int, ...], ...] = ()  # sets of inputs in which together it is linear
    additive: tuple[int, ...] = ()  # inputs that are added to what is summed up
    # letters and outputs that do not depend on them: those are copied, not partial
    apart: tuple[tuple[str, int], ...] = ()
    # letters with the bytes that devices add up among themselves if they split them
    reduced: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(
        cls,
        text: str,
        linear: Iterable[tuple[int, ...]] = (),
        additive: tuple[int, ...] = (),
        apart: Iterable[tuple[str, int]] = (),
        reduced: Iterable[tuple[str, float]] = (),
    ) -> Rule:
        """Return the rule that a text such as ``mk,kn->mn`` writes down."""
        read, made = text.split("->")
        return cls(
            tuple(read.split(",")) if read else (),
            tuple(made.split(",")),
            tuple(linear),
            additive,
            tuple(apart),
            tuple(reduced),
        )


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
        read = [_axis(text, letter, shape) for text, shape in zip(rule.inputs, inputs, strict=True)]
        made = [
            _axis(text, letter, shape) for text, shape in zip(rule.outputs, outputs, strict=True)
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


def _axis(text: str, letter: str, shape: Shape) -> int:
    axis = text.find(letter)
    return axis if axis >= 0 and shape[axis] > 1 else COPIED
