"""Verified objectives of moving a node to each other place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...instances import (
    CallPlacement,
    InputError,
    PipelinePlacement,
    Placement,
    Plan,
    Solution,
    StagePlacement,
    Workload,
)
from ...instances.common.arrays import Ints
from ...instances.common.errors import quote
from ...runtime import evaluate
from .explanation import Move, MoveGains


def moves(workload: Workload, plan: Plan, node: object) -> MoveGains:
    """Return the cost of moving a node, with its colour, to each other place.

    Where that breaks a rule, all that the node leads to, or all that leads to it, on its device
    moves with it, if that breaks none. The node is named by its id, also as text, or its name;
    InputError if there is none.
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


@dataclass(frozen=True)
class NodePlaces:
    """Places of a plan's nodes."""

    names: tuple[str, ...]  # of all places
    of: Ints  # shape (n,): place of each node
    # returns the solution with some nodes in another place, all else the same
    move: Callable[[Sequence[int], int], Solution]


def places_of(plan: Plan) -> NodePlaces:
    """Return the places of a plan of any problem but a mapping."""
    solution = plan.solution
    if isinstance(solution, Placement):
        return _devices(plan, solution)
    if isinstance(solution, PipelinePlacement):
        return _pipeline(plan, solution)
    if isinstance(solution, CallPlacement):
        return _calls(plan, solution)
    assert isinstance(solution, StagePlacement)
    return _stages(solution)


def _devices(plan: Plan, solution: Placement) -> NodePlaces:
    def move(nodes: Sequence[int], to: int) -> Solution:
        return replace(solution, device=_put(solution.device, nodes, to))

    return NodePlaces(plan.device_names, solution.device, move)


def _pipeline(plan: Plan, solution: PipelinePlacement) -> NodePlaces:
    names = tuple(f"stage {s} ({plan.device_names[d]})" for s, d in enumerate(solution.devices))

    def move(nodes: Sequence[int], to: int) -> Solution:
        return replace(solution, stage=_put(solution.stage, nodes, to))

    return NodePlaces(names, solution.stage, move)


def _calls(plan: Plan, solution: CallPlacement) -> NodePlaces:
    """Return the calls, a first one on each device that has none, and the pools of CPUs."""
    devices, kinds = plan.device_names, plan.cluster.kinds
    host = [kinds[device.kind].host for device in plan.cluster.devices]
    first = [plan.cluster.devices[d - 1].kind != plan.cluster.devices[d].kind or d == 0
             for d in range(len(host))]  # fmt: skip
    pairs = set(zip(solution.device.tolist(), solution.call.tolist(), strict=True))
    used = {d for d, _ in pairs}
    pools = {plan.cluster.devices[d].kind for d in used if host[d]}
    for d, is_host in enumerate(host):
        if not is_host and d not in used:
            pairs.add((d, 0))
        elif is_host and first[d] and plan.cluster.devices[d].kind not in pools:
            pairs.add((d, -1))
    known = sorted(pairs)
    number = {pair: p for p, pair in enumerate(known)}
    of = [
        number[pair] for pair in zip(solution.device.tolist(), solution.call.tolist(), strict=True)
    ]
    names = tuple(
        kinds[plan.cluster.devices[d].kind].name if call < 0 else f"call {call + 1} of {devices[d]}"
        for d, call in known
    )

    def move(nodes: Sequence[int], to: int) -> Solution:
        device, call = known[to]
        return CallPlacement(_put(solution.device, nodes, device), _put(solution.call, nodes, call))

    return NodePlaces(names, np.array(of), move)


def _stages(solution: StagePlacement) -> NodePlaces:
    of = np.zeros(len(solution.device), np.int64)
    for s, stage in enumerate(solution.stages):
        of[list(stage.nodes)] = s

    def move(nodes: Sequence[int], to: int) -> Solution:
        """Keep each node's configuration, so that a move to another tensor degree breaks a rule."""
        chosen = {
            v: c for s in solution.stages for v, c in zip(s.nodes, s.configuration, strict=True)
        }
        where = _put(of, nodes, to)
        stages = []
        for s, stage in enumerate(solution.stages):
            own = tuple(np.flatnonzero(where == s).tolist())
            stages.append(replace(stage, nodes=own, configuration=tuple(chosen[v] for v in own)))
        return StagePlacement(tuple(stages), solution.device)

    return NodePlaces(tuple(f"stage {s}" for s in range(len(solution.stages))), of, move)


def _put(numbers: Ints, nodes: Sequence[int], to: int) -> Ints:
    changed = numbers.copy()
    changed[list(nodes)] = to
    return changed
