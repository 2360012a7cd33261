"""Searches that take turns, in steps: who is next, and how each one's time counts.

The one that suits a case best comes to its end in a small multiple of the time that it would take
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...instances import Solution
from ..core.search import Search


class Turn(NamedTuple):
    """When it is a search's turn: the one that has had the least time, as counted here, is next.

    Parameters
    ----------
    weight
        By how much its time counts more than that of others.
    ahead
        Seconds that do not count.
    """

    weight: float = 1.0
    ahead: float = 0.0


#: Annealing that cools more slowly, which has no end of its own.
LONG = {"long annealing": Turn(6.0, -1.0)}
#: Branch and bound where it alone proves. It is ahead, as most cases with coarse layers end within
#: that time, and the kernels of the others take 13 s to compile on a machine's first call.
ALONE = LONG | {"branch and bound": Turn(ahead=1.5)}
#: Where chains by device prove beside it, they are what closes gaps: Semantic FPN, 1F1B, K = M =
#: 16, 1.1 % after 60 s in place of 1.9 with equal turns, and 4.8 with the weights exchanged.
BY_DEVICE = LONG | {"branch and bound": Turn(12.0, 1.5)}
#: The same where devices hold two stages: branch and bound from the last stage does not see what
#: the first stage of a device costs, and annealing finds early.
TWO_STAGES = LONG | {"annealing": Turn(2.0), "branch and bound": Turn(12.0, 0.125)}
#: What runs in other processes by this name, and the turns that are left to them then.
ANNEALING, LEFT_TO_OTHERS = "annealing", ("annealing", "long annealing")


def take_turns(
    search: Search[Solution], turns: dict[str, Iterator[None]], counted: Mapping[str, Turn]
) -> None:
    """Run searches in steps, next always the one that has had the least time, until all have ended.

    Those in `LONG` have no end of their own. What other processes do meanwhile has no turn.

    Parameters
    ----------
    turns
        By the name of their phase; they may end early.
    counted
        How the time of some of them counts.
    """

    def had(name: str) -> float:
        weight, ahead = counted.get(name, Turn())
        spent = search.phases.get(name, 0.0) - ahead
        return spent if spent < 0 else spent * weight

    left = dict(turns)

    def own() -> list[str]:
        elsewhere = LEFT_TO_OTHERS if ANNEALING in search.beside else ()
        return [name for name in left if name not in elsewhere]

    while (names := own()) and not (LONG.keys() >= set(names) or search.should_stop()):
        name = min(names, key=had)
        with search.phase(name):
            try:
                next(left[name])
            except StopIteration:
                del left[name]
