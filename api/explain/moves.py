"""Verified objectives of moving a node to each other place."""

from __future__ import annotations

import math

from ...instances import InputError, Plan, Workload
from ...instances.common.arrays import Ints
from ...instances.common.errors import quote
from ...runtime import evaluate
from .answers import Move, MoveGains
from .places import places_of


def moves(workload: Workload, plan: Plan, node: object) -> MoveGains:
    """Return the cost of moving a node, with its colour, to each other place.

    Where that breaks a rule, all that the node leads to, or all that leads to it, on its device
    moves with it, if that breaks none.

    Parameters
    ----------
    node
        Its id or name; a number as text will do.

    Raises
    ------
    InputError
        If there is no such node.
    """
    v = _number(workload, node)
    places = places_of(plan)
    here = int(places.of[v])
    sets = [_closed(workload, [v], places.of, steps) for steps in _DIRECTIONS]
    alone = sets[0]
    found = []
    for to, name in enumerate(places.names):
        if to == here:
            continue
        tried = []
        for together in sets:
            solution = places.move(together, to)
            report = evaluate(workload, plan.cluster, plan.problem, solution)
            broken = report.violations[0] if report.violations else ""
            objective = math.inf if broken else report.objective
            tried.append(Move(name, objective, broken, len(together) - len(alone)))
        found.append(tried[0] if tried[0].broken == "" else min(tried, key=_better))
    return MoveGains(
        node=workload.ids[v],
        where=places.names[here],
        together=tuple(workload.ids[u] for u in alone if u != v),
        moves=tuple(found),
    )


#: What goes with a node: nothing, what it leads to, what leads to it, in the same place; the
#: latter two keep contiguous neighbours contiguous.
_DIRECTIONS = ("", "successors", "predecessors")


def _better(move: Move) -> tuple[float, int]:
    return move.objective, move.further


def _closed(workload: Workload, nodes: list[int], place: Ints, direction: str) -> list[int]:
    """Return nodes with all of their colours and, in their place, all that a direction leads to.

    Steps go from forward node to forward node: backward nodes follow by their colours.
    """
    steps = getattr(workload, direction) if direction else ((),) * workload.n
    found: set[int] = set()
    while nodes:
        v = nodes.pop()
        if v in found:
            continue
        found.add(v)
        colour = int(workload.colours[v])
        nodes += workload.colour_classes[colour] if colour >= 0 else ()
        if not workload.backward[v]:
            nodes += [w for w in steps[v] if place[w] == place[v] and not workload.backward[w]]
    return sorted(found)


def _number(workload: Workload, node: object) -> int:
    """Return the number of the node with an id or, if it is the only one, a name."""
    named = [v for v, name in enumerate(workload.names) if name == str(node)]
    as_ids = [v for v, known in enumerate(workload.ids) if str(known) == str(node)]
    found = as_ids or named
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"node: {len(found)} nodes are called {quote(node)}; name one by its id")
    known = ", ".join(str(node) for node in workload.ids[:3])
    raise InputError(f"node: {workload.name} has no {quote(node)}; it has {known}, …")
