"""The cheapest chain of P stages where each stage has a price of its own at each position.

With price_s,κ(I', I) of the stage I ∖ I' as stage s on a device of kind κ, and s_κ devices of each
kind used,

    dp[0][∅] = 0,   dp[(s_1, …, s_K)][I] = min over κ with s_κ ≥ 1 and stages (I', I) of
                                           dp[… s_κ − 1 …][I'] + price_s,κ(I', I),  s = Σ s_κ − 1;

or, for the least largest price, with the maximum of the two in place of their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...instances.common.arrays import Floats, Ints
from .stage_list import StageList

#: Price of each stage of the list at a position and on a kind of device, shape (R,); `inf`: none.
Price = Callable[[int, int], Floats]

#: How many devices of each kind are used.
Used = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cheapest:
    """The tables of the dynamic program.

    Parameters
    ----------
    value
        For each number of devices used, the least price to reach each ideal, shape (N,).
    price
        Least of the whole chain; `inf` if there is none.
    stages, kinds
        The chain: numbers in the list, and kinds of devices, first to last; () without chain.
    """

    value: dict[Used, Floats]
    price: float
    stages: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()


def cheapest_chain(
    stages: StageList, count: Ints, positions: int, price: Price, *, largest: bool = False
) -> Cheapest:
    """Return the cheapest chain of so many stages.

    Parameters
    ----------
    stages
        Sorted by their end.
    count
        Shape (K,): stages that the devices of each kind can take together.
    largest
        Whether the largest price of a chain counts, in place of the sum.

    Notes
    -----
    O(positions · R) for one kind of device.
    """
    size, kinds = stages.lattice.size, len(count)
    combine = np.maximum if largest else np.add
    first = np.flatnonzero(np.diff(stages.end, prepend=-1))
    ends = stages.end[first]
    none = (0,) * kinds
    value: dict[Used, Floats] = {none: np.full(size, np.inf)}
    value[none][0] = 0.0
    layer = [none]
    for s in range(positions):
        prices = [price(s, k) for k in range(kinds)]
        following: dict[Used, Floats] = {}
        for used in layer:
            before = value[used][stages.start]
            for k in range(kinds):
                if used[k] >= count[k]:
                    continue
                then = (*used[:k], used[k] + 1, *used[k + 1 :])
                reached = following.setdefault(then, np.full(size, np.inf))
                least = np.minimum.reduceat(combine(before, prices[k]), first)
                reached[ends] = np.minimum(reached[ends], least)
        value |= following
        layer = list(following)
    last = min(layer, key=lambda used: value[used][-1], default=none)
    total = float(value[last][-1]) if positions else np.inf
    if not np.isfinite(total):
        return Cheapest(value, np.inf)
    return Cheapest(value, total, *_read_back(stages, value, last, price, largest))


def _read_back(
    stages: StageList, value: dict[Used, Floats], used: Used, price: Price, largest: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Follow the cheapest chain from its end."""
    chosen: list[tuple[int, int]] = []
    ideal = stages.lattice.size - 1
    while sum(used):
        low, high = np.searchsorted(stages.end, [ideal, ideal + 1])
        best = (np.inf, -1, -1)
        for k in range(len(used)):
            before = (*used[:k], used[k] - 1, *used[k + 1 :])
            if used[k] and before in value:
                reached = value[before][stages.start[low:high]]
                added = price(sum(before), k)[low:high]
                own = np.maximum(reached, added) if largest else reached + added
                at = int(own.argmin())
                best = min(best, (float(own[at]), low + at, k))
        _, number, k = best
        chosen.append((number, k))
        ideal, used = int(stages.start[number]), (*used[:k], used[k] - 1, *used[k + 1 :])
    return tuple(n for n, _ in reversed(chosen)), tuple(k for _, k in reversed(chosen))
