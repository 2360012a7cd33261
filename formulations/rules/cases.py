"""A task with placement rules for devices as tasks without rules: a reduction with its inverse.

*Pins.* Devices that may hold different nodes become kinds of their own, and a node is unsupported
on a kind where it must not be. So every method that handles several kinds of devices, and nodes
that some do not support, keeps pins.

*Together.* Nodes that rules keep together, and nodes pinned to one device, are merged like those of
a colour.

*Apart, and at most so many devices.* Plans are divided into *cases*, which fix, for groups that
must be apart from others, the device, which is then forbidden to the others; and the devices in
use. Of devices that differ only in name, only the first is tried: with one kind of devices and one
group apart from all others there is a single case. The least optimum of the cases is the optimum,
and the least of their bounds is a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import numpy as np

from ...instances import (
    CallPlacement,
    Cluster,
    InfeasibleError,
    InputError,
    PairLink,
    PipelinePlacement,
    Placement,
    Solution,
    Throughput,
    is_stream,
)
from ...instances.common.arrays import Bools, Ints, frozen
from ...instances.model.costs import times_column
from ...instances.model.placement_rules import PlacementRules
from ...instances.model.problem import names_stages
from ..task import Task
from .groups import Devices, devices_of, groups_of


@dataclass(frozen=True, eq=False)
class RuleCase:
    """A task without rules, each of whose plans is a plan of the task with rules."""

    task: Task[Any]  # the task without rules
    device: Ints  # (D',): number of each of its devices in the task with rules

    def expand(self, solution: Solution) -> Solution:
        """Return a solution of `task` as one of the task with rules."""
        return _moved(solution, self.device)

    def has(self, solution: Solution) -> bool:
        """Whether a solution of `task` has every node where this case allows it."""
        costs = self.task.linked_costs
        kind = costs.kind_of[solution.device]
        return bool(np.isfinite(costs.compute[kind, np.arange(len(kind))]).all())

    def restrict(self, solution: Solution) -> Solution | None:
        """Return a solution of the task with rules as one of `task`; None if it lacks a device."""
        inverse = np.full(max(int(self.device.max()), int(solution.device.max())) + 1, -1)
        inverse[self.device] = np.arange(len(self.device))
        return _moved(solution, inverse) if (inverse[solution.device] >= 0).all() else None


def _moved(solution: Solution, to: Ints) -> Solution:
    if np.array_equal(to, np.arange(len(to))):
        return solution
    if isinstance(solution, Placement):
        return Placement(to[solution.device], tuple(to[list(solution.order)].tolist()))
    if isinstance(solution, CallPlacement):
        return CallPlacement(to[solution.device], solution.call)
    if isinstance(solution, PipelinePlacement):
        return PipelinePlacement(solution.stage, tuple(to[list(solution.devices)].tolist()))
    raise TypeError(f"{type(solution).__name__}: it has no devices that rules could name")


def relaxed(task: Task[Any], devices: Devices) -> RuleCase:
    """Return the task with only pins and together: a relaxation of the task with all rules."""
    return _case(task, devices, devices.allowed)


def cases(task: Task[Any], devices: Devices) -> Iterator[RuleCase]:
    """Yield the cases, as tasks without rules.

    Their number is that of ways, up to names, to choose devices for groups that together cover all
    pairs that are apart, times that of ways to choose the devices in use.
    """
    alike = _alike(task)
    pairs = np.array(list(devices.groups.apart), np.int64).reshape(-1, 2)
    for allowed in _separated(devices.allowed, pairs, alike):
        most = task.problem.placement_rules.max_stages
        for used in _in_use(allowed, alike, len(alike) if most is None else most):
            yield _case(task, devices, allowed & used)


def _alike(task: Task[Any]) -> Ints:
    """Return, shape (D,), a number that is equal for devices that differ only in name."""
    if task.cluster.links:
        return np.arange(task.cluster.size)
    return np.array([device.kind for device in task.cluster.devices])


def _classes(allowed: Bools, alike: Ints) -> list[list[int]]:
    """Return the devices that groups may use, grouped by those that are interchangeable."""
    found: dict[tuple[int, bytes], list[int]] = {}
    for d in np.flatnonzero(allowed.any(axis=0)).tolist():
        found.setdefault((int(alike[d]), allowed[:, d].tobytes()), []).append(d)
    return list(found.values())


def _separated(allowed: Bools, pairs: Ints, alike: Ints) -> Iterator[Bools]:
    """Yield the restrictions of `allowed` in which no device is left to two groups apart."""
    spread = _propagated(allowed, pairs)
    if spread is None:
        return
    left = pairs[(spread[pairs[:, 0]] & spread[pairs[:, 1]]).any(axis=1)]
    if not len(left):
        yield spread
        return
    group = int(np.bincount(left.ravel()).argmax())
    for devices in _classes(spread, alike):
        if spread[group, devices[0]]:
            chosen = spread.copy()
            chosen[group] = False
            chosen[group, devices[0]] = True
            yield from _separated(chosen, left, alike)


def _propagated(allowed: Bools, pairs: Ints) -> Bools | None:
    """Remove from each group the only device of a group apart from it; None if none is left."""
    allowed = allowed.copy()
    while True:
        alone = allowed.sum(axis=1) == 1
        both = np.concatenate((pairs, pairs[:, ::-1]))
        both = both[alone[both[:, 0]]]
        taken = np.zeros_like(allowed)
        np.logical_or.at(taken, both[:, 1], allowed[both[:, 0]])
        if not (allowed & taken).any():
            return allowed
        allowed &= ~taken
        if not allowed.any(axis=1).all():
            return None


def _in_use(allowed: Bools, alike: Ints, most: int) -> Iterator[Bools]:
    """Yield, shape (D,), the sets of at most `most` devices that may be in use."""
    classes = _classes(allowed, alike)
    needed = {int(allowed[g].argmax()) for g in np.flatnonzero(allowed.sum(axis=1) == 1)}
    if sum(map(len, classes)) <= most:
        yield np.ones(allowed.shape[1], np.bool_)
        return
    ranges = [range(len(needed.intersection(own)), len(own) + 1) for own in classes]
    for counts in product(*ranges):
        used = np.zeros(allowed.shape[1], np.bool_)
        for own, count in zip(classes, counts, strict=True):
            used[own[:count]] = True
        if sum(counts) == most and (allowed & used).any(axis=1).all():
            yield used


def _case(task: Task[Any], devices: Devices, allowed: Bools) -> RuleCase:
    cluster, order, times = _kinds(task, devices, allowed)
    plain = replace(task.problem, placement_rules=PlacementRules())
    alone = allowed.sum(axis=1) == 1
    label = np.where(alone, len(allowed) + allowed.argmax(axis=1), np.arange(len(allowed)))
    merged = colours_of(task, label[devices.groups.group_of])
    joined = None
    if isinstance(plain, Throughput):
        joined, merged = merged["colours"], {}  # contiguity depends on the workload's own colours
    workload = replace(task.workload, times=times, cluster=None, **merged)
    bare = Task(workload, cluster, plain, None, task.options, joined)
    return RuleCase(bare, frozen(order, np.int64))


def _kinds(
    task: Task[Any], devices: Devices, allowed: Bools
) -> tuple[Cluster, list[int], dict[str, Any]]:
    """Return the cluster of the devices in use by kind, their old numbers, and times by kind."""
    workload, cluster = task.workload, task.cluster
    kind_of = np.array([device.kind for device in cluster.devices])
    kinds, order, times = [], [], {}
    for own in sorted(_classes(allowed, kind_of)):
        kind = cluster.kinds[int(kind_of[own[0]])]
        pool = np.flatnonzero(np.isin(devices.place, own)).tolist()  # all of a pool's devices
        able = allowed[devices.groups.group_of, own[0]]
        name = f"{kind.name} ({', '.join(cluster.devices[d].name for d in pool[:3])}"
        name = kind.name if len(pool) == kind.count else name + (", …)" if pool[3:] else ")")
        column = workload.times[times_column(workload, kind)]
        times[name] = np.where(able, column, np.inf)
        kinds.append(replace(kind, name=name, count=len(pool), times=name))
        order += pool
    return Cluster(tuple(kinds), _links(cluster, Cluster(tuple(kinds)), order)), order, times


def _links(cluster: Cluster, renamed: Cluster, order: Sequence[int]) -> tuple[PairLink, ...]:
    """Return the links of `cluster` between the devices that `renamed` contains."""
    if not cluster.links:
        return ()
    table = cluster.link_of[np.ix_(order, order)]
    names = [device.name for device in renamed.devices]
    return tuple(
        PairLink((names[a], names[b]), cluster.links[int(table[a, b])].link)
        for a, b in zip(*np.nonzero(np.triu(table >= 0, 1)), strict=True)
    )


def colours_of(task: Task[Any], label: Ints) -> dict[str, Any]:
    """Return the fields ``colours`` and ``colour_labels`` of a workload: one colour per label."""
    _, colour, count = np.unique(label, return_inverse=True, return_counts=True)
    used, number = np.unique(np.where(count[colour] > 1, colour, -1), return_inverse=True)
    colours = number.ravel() - int(used[0] < 0)
    names = []
    for c in range(int(colours.max()) + 1):
        nodes = np.flatnonzero(colours == c).tolist()
        shown = ", ".join(str(task.workload.ids[v]) for v in nodes[:3])
        names.append(f"{c}: nodes {shown}{', …' if nodes[3:] else ''}")
    return {"colours": frozen(colours, np.int64), "colour_labels": tuple(names)}


@dataclass(frozen=True, eq=False)
class RuleCases:
    """The cases of a task with rules."""

    relaxation: RuleCase  # a task whose plans include every plan
    # tasks whose plans together are all plans, made when asked for
    cases: Iterator[RuleCase]


def stage_task(task: Task[Any]) -> Task[Any]:
    """Return a task whose rules name stages in the form for its methods, which keep the rules.

    Errors are those of `groups_of`.
    """
    coloured = not is_stream(task.problem)
    groups = groups_of(task.workload, task.problem.placement_rules, coloured=coloured)
    if not coloured:
        return task
    return replace(task, workload=replace(task.workload, **colours_of(task, groups.group_of)))


def without_rules(task: Task[Any]) -> RuleCases:
    """Return the cases of a task whose rules name devices.

    InputError if a rule names a node or device that does not exist, InfeasibleError if rules
    contradict each other.
    """
    devices = devices_of(task, groups_of(task.workload, task.problem.placement_rules))
    return RuleCases(relaxed(task, devices), cases(task, devices))


def only_rule_case(task: Task[Any]) -> RuleCase:
    """Return the only case of a task with rules.

    For a task without rules, or whose methods keep them, that is the task itself.

    InputError if there are several, as there are several ways to keep nodes apart or to use few
    devices; InfeasibleError if rules contradict each other.
    """
    if not task.problem.placement_rules or names_stages(task.problem):
        own = stage_task(task) if task.problem.placement_rules else task
        return RuleCase(own, np.arange(task.cluster.size))
    found = list(islice(without_rules(task).cases, 2))
    if not found:
        raise InfeasibleError(why_no_case(task))
    if len(found) > 1:
        raise InputError(
            "placement rules: they are several programs, one for each way to keep nodes apart or "
            "to choose devices; pin more nodes, or leave out apart or max_stages"
        )
    return found[0]


def why_no_case(task: Task[Any]) -> str:
    """Return, for users, why a task with rules has no case at all."""
    most = task.problem.placement_rules.max_stages
    few = "" if most is None else f", or the {most} that may be used"
    return (
        f"placement rules: what is pinned or apart needs more than the {task.cluster.size} "
        f"devices{few}; leave out a rule, or add devices"
    )
