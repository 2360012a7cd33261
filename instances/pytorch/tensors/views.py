"""Letters of operators that only look at a tensor in another way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...model.sharding.program import COPIED, PARTIAL, Signature
from .letters import Shape


def view_signatures(before: Shape, after: Shape) -> tuple[Signature, ...]:
    """Return the signatures of a view with another shape.

    Axes that are joined or parted form a group; a group can be split along its first axes, where
    the parts divide both. Everything that is linear may be partial.
    """
    found: dict[str, Signature] = {}
    for i, j in _leading(before, after):
        extent = math.gcd(before[i], after[j])
        if extent > 1:
            one = Signature((i,), (j,), extent)
            found.setdefault(one.text, one)
    for kind in (PARTIAL, COPIED):
        one = Signature((kind,), (kind,))
        found[one.text] = one
    return tuple(found.values())


def _leading(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """Return the first axis of each group of axes, before and after; those of extent 1 left out."""
    pairs = []
    one, other = _wide(before), _wide(after)
    while one and other:
        (i, left), (j, right) = one.pop(0), other.pop(0)
        pairs.append((i, j))
        while left != right:
            rest = one if left < right else other
            if not rest:
                return pairs
            _, extent = rest.pop(0)
            if left < right:
                left *= extent
            else:
                right *= extent
    return pairs


def _wide(shape: Sequence[int]) -> list[tuple[int, int]]:
    return [(axis, extent) for axis, extent in enumerate(shape) if extent != 1]
