"""Places of nodes in plans: devices, stages, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...instances import CallPlacement, PipelinePlacement, Placement, Plan, Solution, StagePlacement
from ...instances.common.arrays import Ints


@dataclass(frozen=True)
class NodePlaces:
    """Places of a plan's nodes.

    Parameters
    ----------
    names
        Of all places.
    of
        Shape (n,): place of each node.
    move
        Returns the solution with some nodes in another place, all else the same.
    """

    names: tuple[str, ...]
    of: Ints
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
