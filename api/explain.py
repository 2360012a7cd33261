"""Explanations of plans: limiting device, most expensive transfers, remedies, moves of a node.

Where a search finds no plan, the reason, and the memory or devices that would make one possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..formulations.task import Task, pose
from ..instances import (
    CallPlacement,
    Cluster,
    DeviceMapping,
    InputError,
    Latency,
    PipelineJob,
    PipelinePlacement,
    Placement,
    Plan,
    Planned,
    Problem,
    Sharding,
    Solution,
    StagePlacement,
    Throughput,
    Workload,
    is_iteration,
    is_stream,
    plan_of,
    price,
)
from ..instances.common.arrays import Ints
from ..instances.common.errors import quote
from ..instances.common.units import show_bytes, show_count, show_percent, show_time
from ..instances.formats.files import load
from ..instances.model.schedule import parse_action
from ..runtime import Report, evaluate
from ..runtime.simulate.simulator import simulate
from ..runtime.verify.report import Load, loads_of
from ..solvers import Limits
from ..solvers.core.search import OPTIMAL_GAP
from .common import with_defaults
from .explanation import Crossing, Explanation, Move, NodeMoves
from .gain import largest_part
from .remedies import made_feasible, remedies
from .solve import solve


def explain(
    workload: Workload | str | Path,
    plan: Plan | Planned | None = None,
    *,
    cluster: Cluster | None = None,
    problem: Problem | None = None,
    node: object = None,
    seconds: float = 20.0,
    most: int = 10,
) -> Explanation:
    """Explain a plan: limiting device, costly transfers, remedies, places of nodes.

    Parameters
    ----------
    workload
        What the plan was made for; or its file, or the name of a shipped workload.
    plan
        A plan, or the result that holds it; default: the plan that a search for `cluster` and
        `problem` finds. If there is none, the explanation says why, and how much memory or how many
        devices would do.
    cluster, problem
        In place of a plan, as for `solve`.
    node
        Id or name of a node. It is moved, with all nodes of its colour, to each other place.
    seconds
        For all searches for remedies together: each solves the problem again with one change, from
        the plan. 0: no remedies.
    most
        Number of transfers to list.

    Returns
    -------
    Explanation
        Shown as text. Statements about the plan are verified; of each change it has the best plan
        found in the time, and a bound on the gain of any plan.

    Raises
    ------
    InputError
        If the plan was made for another workload or is a mapping, the result has none, or there
        is no such node.

    Examples
    --------
    >>> import stagecut
    >>> workload, cluster = stagecut.load("gpt2-xl"), stagecut.accelerators_and_cpus(2)
    >>> plan = stagecut.solve(workload, cluster, method="greedy").plan
    >>> print(stagecut.explain(workload, plan, seconds=0).reasons[0])  # doctest: +ELLIPSIS
    accelerator ... limits: in ... ms it is busy for ... ms (100 %), ... ms compute + ... transfers.
    """
    if not seconds >= 0:
        raise InputError(f"seconds: {seconds:g}; it must be at least 0")
    if not isinstance(workload, Workload):
        workload = load(workload)
    if plan is not None:
        plan = plan_of(plan)
    asked = problem if plan is None else plan.problem
    if isinstance(asked, Sharding):
        raise InputError(
            "explain: it takes no shardings; stagecut simulate shows what takes the time"
        )
    if isinstance(asked, DeviceMapping):
        raise InputError(
            "explain: it takes plans for throughput, pipelines and latency; for a "
            "mapping, stagecut solve shows the stages and the busiest link"
        )
    if plan is None:
        return _searched(workload, cluster, problem, node, seconds, most)
    plan.check_made_for(workload)
    report = evaluate(workload, plan.cluster, plan.problem, plan.solution)
    loads = loads_of(plan.problem, report)
    valid = not report.violations
    name = limiting(workload, plan, loads) if valid else ""
    return Explanation(
        plan=plan,
        unit=workload.time_unit,
        objective=report.objective,
        loads=loads,
        limiting=name,
        reasons=tuple(reasons(workload, plan, report, loads, name)),
        crossings=crossings(workload, plan, report, most) if valid and most > 0 else (),
        remedies=remedies(workload, plan, seconds) if seconds else (),
        node=None if node is None else moves(workload, plan, node),
    )


def _searched(
    workload: Workload,
    cluster: Cluster | None,
    problem: Problem | None,
    node: object,
    seconds: float,
    most: int,
) -> Explanation:
    """Explain the plan that a search finds, or that there is none."""
    if not seconds:
        raise InputError("seconds: 0; without a plan a search must have time: give more")
    half = seconds / 2
    workload, cluster, problem = with_defaults(workload, cluster, problem)
    result = solve(workload, cluster, problem, limits=Limits(seconds=half, gap=0.01))
    if result.plan is not None:
        return explain(workload, result.plan, node=node, seconds=half, most=most)
    why = f"Infeasible: {result.reason}."
    if result.status != "infeasible":
        why = f"No plan was found within {half:g} s, and none was ruled out."
    return Explanation(
        plan=None,
        unit=workload.time_unit,
        objective=float("inf"),
        loads=(),
        limiting="",
        reasons=(why,),
        remedies=made_feasible(workload, cluster, problem, half),
    )


#: Least share of a memory in use to call it full, and least share of a device's work in one part
#: to call the part large.
FULL, LARGE = 0.95, 0.5
#: Microbatches per stage up to which they are few, and factor from which a first stage is long.
FEW, LONGER = 4, 1.25


def limiting(workload: Workload, plan: Plan, loads: tuple[Load, ...]) -> str:
    """Return the name of the limiting device or stage: the busiest one.

    For a request, the device with most time on its critical path.
    """
    if isinstance(plan.problem, Latency):
        path = _on_path(workload, plan)
        return max(path, key=lambda name: path[name])
    return max(loads, key=lambda load: load.busy).name


def reasons(
    workload: Workload, plan: Plan, report: Report, loads: tuple[Load, ...], name: str
) -> Iterator[str]:
    """Yield sentences on the limiting part, evenness of work, memory, and the bound."""
    yield from (f"It breaks a rule: {line}." for line in report.violations)
    if not math.isfinite(report.objective):
        return
    unit, problem = workload.time_unit, plan.problem
    load = next((load for load in loads if load.name == name), None)
    if load is not None:
        yield _busy(load, report, problem, unit)
        yield from _parts(workload, plan, load)
    if isinstance(problem, Latency):
        yield _path(workload, plan, report)
    elif is_iteration(problem) and load is not None:
        yield from _waiting(load, report, problem, unit)
    if isinstance(problem, Throughput) and problem.pipeline == "gpipe":
        forward, backward = (
            max(report.devices, key=lambda d: getattr(d, side)) for side in ("forward", "backward")
        )
        yield (
            f"Under gpipe the passes count apart: {forward.name} has the longest forward pass, "
            f"{show_time(forward.forward, unit)}, {backward.name} the longest backward pass, "
            f"{show_time(backward.backward, unit)}."
        )
    if not (isinstance(problem, Latency) or is_stream(problem)):
        yield from _evenness(plan, loads, unit)
    if is_iteration(problem):
        yield from _long_first(problem, loads)
    yield from _memory(loads, name)
    if math.isfinite(plan.bound):
        gap = (report.objective - plan.bound) / report.objective if report.objective else 0.0
        origin = plan.certificate.get("origin")
        by = f"the bound is {show_time(plan.bound, unit)}{f' ({origin})' if origin else ''}"
        if gap <= OPTIMAL_GAP:
            yield f"No plan is better: {by}."
        else:
            yield f"No plan is better by more than {show_percent(gap, 2)}: {by}."


def _busy(load: Load, report: Report, problem: Problem, unit: str) -> str:
    parts = [
        f"{show_time(value, unit)} {what}"
        for value, what in (
            (load.compute, "compute"),
            (load.transfer, "transfers"),
            (load.synchronise, "synchronisation"),
        )
        if value
    ]
    share = load.busy / report.objective if report.objective else 0.0
    span = "the request" if isinstance(problem, Latency) else show_time(report.objective, unit)
    joined = " beside " if getattr(problem, "overlap", False) else " + "
    return (
        f"{load.name} limits: in {span} it is busy for {show_time(load.busy, unit)} "
        f"({show_percent(share, 0)}), {joined.join(parts) or 'nothing'}."
    )


def _parts(workload: Workload, plan: Plan, load: Load) -> Iterator[str]:
    """Yield a sentence on the indivisible part of the device's work, if it is most of it."""
    own = np.array([workload.index[node] for node in load.nodes])
    if is_stream(plan.problem):
        if len(own) == 1:
            yield f"It has one layer alone, {workload.ids[own[0]]}, which cannot be cut."
        return
    if not len(own):
        return
    task: Task[Problem] = pose(workload, plan.cluster, plan.problem)
    kind = next(device.kind for device in plan.cluster.devices if device.name == load.name)
    nodes, share, colours = largest_part(task, task.costs.compute[kind], own)
    if share < LARGE:
        return
    what = f"node {workload.ids[nodes[0]]}"
    if len(nodes) > 1:
        what = f"{len(nodes)} nodes that must be together"
        if len(colours) == 1:
            what += f" (colour {colours[0]})"
    yield f"{show_percent(share, 0)} of its compute is one part that cannot be cut: {what}."


def _waiting(load: Load, report: Report, problem: PipelineJob, unit: str) -> Iterator[str]:
    waits = report.objective - load.busy
    schedule = "the schedule given" if problem.order else problem.schedule
    if waits > 1e-9 * report.objective:
        yield (
            f"The other {show_time(waits, unit)} ({show_percent(waits / report.objective, 0)}) it "
            f"waits while the pipeline of {show_count(problem.batch, 'microbatch')} under "
            f"{schedule} fills and drains; more microbatches, or another schedule "
            "(solve --schedule all), make that share smaller."
        )


def _on_path(workload: Workload, plan: Plan) -> dict[str, float]:
    """Return the time of each device on the critical path of a request.

    A node on a CPU counts for the device that the plan names, whichever core the simulator shows.
    """
    spent: dict[str, float] = {}
    run = simulate(workload, plan)
    for step in run.critical_path():
        node = run.stages.nodes[parse_action(step.what).stage][0][0]
        name = plan.device_names[int(plan.placement[node])]
        spent[name] = spent.get(name, 0.0) + step.end - step.start
    return spent


def _path(workload: Workload, plan: Plan, report: Report) -> str:
    unit = workload.time_unit
    spent = _on_path(workload, plan)
    listed = ", ".join(f"{name} {show_time(spent[name], unit)}" for name in spent if spent[name])
    return (
        f"What the request of {show_time(report.objective, unit)} waits for, one after the other: "
        f"{listed}. What other devices do beside that costs nothing."
    )


def _evenness(plan: Plan, loads: tuple[Load, ...], unit: str) -> Iterator[str]:
    """Yield a sentence on the evenness of compute, where all devices in use are alike."""
    kinds = {plan.cluster.devices[d].kind for d in plan.placement.tolist()}
    named = {device.name: device.kind for device in plan.cluster.devices}
    loads = tuple(load for load in loads if named[load.name] in kinds)
    if len(kinds) > 1 or len(loads) < 2:
        return
    total = sum(load.compute for load in loads)
    even, most = total / len(loads), max(load.compute for load in loads)
    yield (
        f"The {len(loads)} devices together compute for {show_time(total, unit)}: spread evenly, "
        f"{show_time(even, unit)} each; the most that one has is "
        f"{show_percent(most / even - 1 if even else 0.0)} above that."
    )
    idle = [load.name for load in loads if not load.nodes]
    if idle:
        yield f"Without any work: {', '.join(idle)}."


def _long_first(problem: PipelineJob, loads: tuple[Load, ...]) -> Iterator[str]:
    """Yield a sentence on a long first stage of a chain with few microbatches."""
    used = [load for load in loads if load.nodes]
    few = problem.batch <= FEW * len(used)
    if len(used) < 2 or problem.split != "contiguous" or problem.chunks_per_device > 1 or not few:
        return
    first, others = used[0].busy, max(load.busy for load in used[1:])
    if 0 < LONGER * others < first:
        yield (
            f"{used[0].name}, with the first stage, is busy {first / others:.3g} times as long as "
            f"any other: with few microbatches ({problem.batch} in {len(used)} stages) the others "
            "wait for fill and drain, in which it works."
        )


def _memory(loads: tuple[Load, ...], name: str) -> Iterator[str]:
    limited = [load for load in loads if math.isfinite(load.capacity_bytes)]
    if not limited:
        yield "Memory does not limit: no device has a limit."
        return
    full = [load for load in limited if load.memory_bytes >= FULL * load.capacity_bytes]
    if not full:
        most = max(limited, key=lambda load: load.memory_bytes / max(load.capacity_bytes, 1e-300))
        yield (
            f"Memory does not limit: the fullest, {most.name}, has {show_bytes(most.memory_bytes)} "
            f"of {show_bytes(most.capacity_bytes)}."
        )
        return
    others = [load.name for load in full if load.name != name]
    listed = ", ".join(
        f"{load.name} with {show_bytes(load.memory_bytes)} of {show_bytes(load.capacity_bytes)}"
        for load in full
    )
    why = f"; no more of the work of {name} can move there" if others else ""
    yield f"Memory is full: {listed}{why}."


def crossings(workload: Workload, plan: Plan, report: Report, most: int) -> tuple[Crossing, ...]:
    """Return the transfers between devices that cost most, the most expensive first.

    The cost of one is the difference in the verified plan if it takes no time; so relays, links and
    schedules count as they do for the plan. Only the `most` longest transfers are evaluated.
    """
    places = places_of(plan)
    where = places.of.tolist()
    targets = {
        u: sorted({where[v] for v in after} - {where[u]})
        for u, after in enumerate(workload.successors)
    }
    crossing = [u for u, others in targets.items() if others]
    if is_stream(plan.problem):
        longest = _edge_bytes(workload)
    else:
        longest = price(workload, plan.cluster).transfer.max(axis=0)
    crossing.sort(key=lambda u: (-longest[u] * len(targets[u]), u))
    paid = _paid(plan, report)
    found = []
    for u in crossing[:most]:
        without = evaluate(_free(workload, u), plan.cluster, plan.problem, plan.solution)
        found.append(
            Crossing(
                node=workload.ids[u],
                source=places.names[where[u]],
                targets=tuple(places.names[p] for p in targets[u]),
                size_bytes=_size(workload, u),
                paid=max(0.0, paid - _paid(plan, without)),
                saved=max(0.0, report.objective - without.objective),
            )
        )
    return tuple(sorted(found, key=lambda c: (-c.paid, str(c.node))))


def _paid(plan: Plan, report: Report) -> float:
    return sum(load.transfer for load in loads_of(plan.problem, report))


def _free(workload: Workload, node: int) -> Workload:
    """Return the workload with the output of a node moved in no time."""
    if workload.layers is not None:
        edge_bytes = np.where(workload.edges[:, 0] == node, 0.0, workload.layers.edge_bytes)
        return replace(workload, layers=replace(workload.layers, edge_bytes=edge_bytes))
    keep = np.arange(workload.n) != node
    return replace(
        workload,
        transfer=None if workload.transfer is None else workload.transfer * keep,
        output_bytes=None if workload.output_bytes is None else workload.output_bytes * keep,
    )


def _edge_bytes(workload: Workload) -> np.ndarray:
    """Return the bytes that leave each node of a workload with layers, shape (n,)."""
    assert workload.layers is not None
    return np.bincount(workload.edges[:, 0], workload.layers.edge_bytes, minlength=workload.n)


def _size(workload: Workload, node: int) -> float | None:
    if workload.layers is not None:
        return float(_edge_bytes(workload)[node])
    return None if workload.output_bytes is None else float(workload.output_bytes[node])


def moves(workload: Workload, plan: Plan, node: object) -> NodeMoves:
    """Return the objectives after moving a node, with its colour, to each other place.

    Where that breaks a rule, its descendants or its ancestors on its device move with it, if that
    breaks none. The node is given by its id, also as text, or its name; InputError if there is
    none.
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
    return NodeMoves(
        node=workload.ids[v],
        where=places.names[here],
        together=tuple(workload.ids[u] for u in alone if u != v),
        moves=tuple(found),
    )


#: Nodes that move with a node: none, or its descendants, or its ancestors, in the same place; the
#: latter two keep contiguous neighbours contiguous.
_DIRECTIONS = ("", "successors", "predecessors")


def _better(move: Move) -> tuple[float, int]:
    return move.objective, move.further


def _closed(workload: Workload, nodes: list[int], place: Ints, direction: str) -> list[int]:
    """Return nodes with all nodes of their colours and, in their place, all in a direction.

    The direction is followed from forward node to forward node; backward nodes follow by colour.
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
    solution: Callable[[Ints], Solution]  # returns the solution of other places, shape (n,)

    def move(self, nodes: Sequence[int], to: int) -> Solution:
        """Return the solution with some nodes in another place, all else the same."""
        where = self.of.copy()
        where[list(nodes)] = to
        return self.solution(where)


def places_of(plan: Plan) -> NodePlaces:
    """Return the places of a plan of any problem but a mapping."""
    solution = plan.solution
    if isinstance(solution, Placement):
        return NodePlaces(
            plan.device_names, solution.device, lambda where: replace(solution, device=where)
        )
    if isinstance(solution, PipelinePlacement):
        names = tuple(f"stage {s} ({plan.device_names[d]})" for s, d in enumerate(solution.devices))
        return NodePlaces(names, solution.stage, lambda where: replace(solution, stage=where))
    if isinstance(solution, CallPlacement):
        return _calls(plan, solution)
    assert isinstance(solution, StagePlacement)
    return _stages(solution)


def _calls(plan: Plan, solution: CallPlacement) -> NodePlaces:
    """Return the calls, a first one on each accelerator that has none, and the pools of CPUs."""
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

    device, call = np.array(known).T
    return NodePlaces(names, np.array(of), lambda where: CallPlacement(device[where], call[where]))


def _stages(solution: StagePlacement) -> NodePlaces:
    of = np.zeros(len(solution.device), np.int64)
    for s, stage in enumerate(solution.stages):
        of[list(stage.nodes)] = s

    chosen = {v: c for s in solution.stages for v, c in zip(s.nodes, s.configuration, strict=True)}

    def of_stages(where: Ints) -> Solution:
        """Keep each node's configuration, so that a move to another tensor degree breaks a rule."""
        stages = []
        for s, stage in enumerate(solution.stages):
            own = tuple(np.flatnonzero(where == s).tolist())
            stages.append(replace(stage, nodes=own, configuration=tuple(chosen[v] for v in own)))
        return StagePlacement(tuple(stages), solution.device)

    return NodePlaces(tuple(f"stage {s}" for s in range(len(solution.stages))), of, of_stages)
