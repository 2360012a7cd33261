"""Environments of a policy, by problem: the splits that it may make, and objectives of placements.

Many placements are evaluated at once; what is offered is still judged by the verifier.

For latency, calls are intervals of one topological order of the units, and those of a device run in
that order; other intervals run on the CPUs. So every call is convex, and calls never depend on each
other in a cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...formulations.job.line import Line, line
from ...formulations.job.orders import Chain, order_of
from ...formulations.latency.execute_kernel import call_slots, execute, flatten
from ...formulations.latency.graph import LatencyGraph, latency_graph
from ...formulations.task import Task
from ...formulations.throughput.hypergraph import (
    Hypergraph,
    colour_units,
    hypergraph,
    merge_cycles,
    pipeline_units,
)
from ...formulations.throughput.whole_bytes import room_of
from ...instances import (
    CallPlacement,
    Latency,
    PipelineJob,
    PipelinePlacement,
    Placement,
    Problem,
    Solution,
    Throughput,
    is_iteration,
)
from ...instances.common.arrays import Floats, Ints
from .features import Observation, observation
from .groups import GroupRules, cut_nets

#: Number of groups for a device without a limit.
ANY_NUMBER = np.iinfo(np.int64).max
#: Objectives of placements, (B,), by groups of units, (B, U), and devices of groups, (B, G).
Values = Callable[[Ints, Ints], Floats]


@dataclass(frozen=True, eq=False)
class PlacementEnvironment:
    """A task to be placed by a policy: observation, rules for groups, objectives of placements."""

    observation: Observation  # the policy's input
    # the splits that are allowed, by the number of groups; one is drawn for each batch
    rules: tuple[GroupRules, ...]
    most: Ints  # (D,): largest number of groups on each device
    values: Values  # relative to an even load
    # returns the solution of one placement: groups of units, (U,), and devices of groups, (G,)
    solution: Callable[[Ints, Ints], Solution]
    unit: float  # an objective of 1, in the workload's unit
    # whether groups run one after the other, so that objectives lie near that of one device
    one_after_another: bool = False


def numbers_of_groups(of: Observation, most: int) -> list[int]:
    """Return numbers of groups: one per accelerator, and one per device; at most `most` and U."""
    accelerators = int(of.count[of.host == 0].sum())
    numbers = {min(n, most, of.graph.size) for n in (accelerators, int(of.count.sum()))}
    return sorted(n for n in numbers if n > 0)


def largest_room(of: Observation) -> float:
    """Return the memory of the largest accelerator; of the largest host, if there is none."""
    used = of.count > 0
    able = used & (of.host == 0)
    return float(room_of(of.room[able if able.any() else used].max()))


def memory_excess(held: Floats, room: Floats) -> Floats:
    """Return the sum of held / room over exceeded memories, shape (B,); both are bytes, (B, D)."""
    with np.errstate(all="ignore"):
        over = np.where(held > room_of(room), held / np.maximum(room, 1.0), 0.0)
    total: Floats = np.minimum(over, 1e3).sum(axis=1)
    return total


def with_penalty(value: Floats, broken: Floats, devices: int) -> Floats:
    """Return values, (B,), with a penalty for placements that break rules, by `broken`, (B,).

    They count at least as much as all units on one device.
    """
    worth: Floats = np.where(broken > 0, np.maximum(value, devices) * (1 + broken), value)
    return worth


class _Makespans:
    """Makespans of chains of stages under their schedule, computed one by one."""

    def __init__(
        self,
        task: Task[PipelineJob],
        of: Line,
        seen: Observation,
        devices: Callable[[Ints, Ints], Ints],
    ) -> None:
        self.task, self.line, self.seen, self.devices = task, of, seen, devices
        self._chain = cache(self._chain_of)
        self._place = {int(kind): k for k, kind in enumerate(of.kinds)}
        finite = np.isfinite(of.compute)
        self._compute = np.where(finite, of.compute, 0.0)
        self._lacking = np.asarray(~finite.all(axis=1), np.float64)

    def _chain_of(self, stages: int) -> Chain:
        order = order_of(self.task.problem, stages, self.line.trains)
        return Chain(order, self.task.problem.weight_share)

    def __call__(self, group: Ints, device: Ints) -> Floats:
        member = (group[:, None, :] == np.arange(device.shape[1])[:, None]).astype(np.float64)
        cut = cut_nets(self.seen, member)
        used = [self.devices(g, d) for g, d in zip(group, device, strict=True)]
        return np.array([self._one(*each) for each in zip(used, member, cut, strict=True)])

    def _one(self, devices: Ints, member: Floats, cut: Floats) -> float:
        """Return the makespan of stages on devices, by the units and cut nets of each stage."""
        stages = len(devices)
        member, cut = member[:stages], cut[:stages]
        kind = np.array([self._place[k] for k in self.seen.kind_of[devices].tolist()])
        work = np.einsum("su,spu->sp", member, self._compute[kind])
        moved = np.einsum("se,spe->sp", cut, self.line.weight[kind])
        beside = np.einsum("se,se->s", cut, self.line.overlapped[kind])
        chain = self._chain(stages)
        time = np.maximum(work + moved, beside[:, None] / 2)
        span = chain.makespan(chain.durations(time[:, 0], time[:, 1], work[:, 1]))
        resident, kept = member @ self.line.resident, member @ self.line.activation
        held = np.zeros(len(chain.order.in_flight))
        for d, vectors in enumerate(chain.order.in_flight):
            own = chain.order.device == d
            held[d] = resident[own].sum() + (vectors @ kept[own]).max()
        room = np.take(self.line.room, kind[: len(held)]).reshape(1, -1)
        lacking = np.full(1, (member * self._lacking[kind]).sum())
        broken = memory_excess(held[None], room) + lacking
        value = np.array([span / self.seen.even_load / self.task.problem.batch])
        return float(with_penalty(value, broken, stages).item())


def environment(task: Task[Problem]) -> PlacementEnvironment:
    """Return the environment of a task for throughput, an iteration or latency."""
    if isinstance(task.problem, Latency):
        return latency_environment(task)  # type: ignore[arg-type]
    if is_iteration(task.problem):
        return _iteration(task)  # type: ignore[arg-type]
    return _throughput(task)  # type: ignore[arg-type]


def _throughput(task: Task[Throughput]) -> PlacementEnvironment:
    contiguous = task.problem.split != "noncontiguous"
    graph = hypergraph(task, pipeline_units(task) if contiguous else colour_units(task))
    seen = observation(task, graph)
    numbers = numbers_of_groups(seen, task.cluster.size)
    return PlacementEnvironment(
        observation=seen,
        rules=tuple(GroupRules(n, contiguous, room=largest_room(seen)) for n in numbers),
        most=np.full(task.cluster.size, 1 if contiguous else ANY_NUMBER),
        values=lambda group, device: max_loads(
            task, seen, np.take_along_axis(device, group, axis=1)
        ),
        solution=lambda group, device: Placement(graph.expand(device[group])),
        unit=seen.even_load,
    )


def max_loads(task: Task[Throughput], of: Observation, where: Ints) -> Floats:
    """Return the max-loads of placements of units, (B, U), relative to an even load."""
    graph, costs, problem = of.graph, task.costs, task.problem
    kind = costs.kind_of
    member = (where[:, None, :] == np.arange(len(kind))[:, None]).astype(np.float64)  # (B, D, U)
    finite = np.where(np.isfinite(graph.compute), graph.compute, 0.0)[kind]  # (D, 2, U)
    work = np.einsum("bdu,dpu->bdp", member, finite, optimize=True)
    moved = np.einsum("bde,dpe->bdp", cut_nets(of, member), graph.weight[kind], optimize=True)
    both = np.maximum(work, moved) if problem.overlap else work + moved
    if problem.pipeline == "gpipe":
        value = both.max(axis=1).sum(axis=1)
    else:
        total = np.maximum(work.sum(axis=2), moved.sum(axis=2)) if problem.overlap else both.sum(2)
        value = total.max(axis=1)
    lacking = np.einsum("bdu,du->b", member, 1 - of.supported[kind])
    over = memory_excess((member @ of.memory), costs.capacity_bytes[kind])
    return with_penalty(value / of.even_load, over + lacking, len(kind))


def _iteration(task: Task[PipelineJob]) -> PlacementEnvironment:
    of = line(task)
    seen = observation(task, of.graph)
    chunks = task.problem.chunks_per_device
    sizes = of.sizes()
    accelerators = int(seen.count[seen.host == 0].sum()) * chunks
    numbers = sorted({*sizes[-1:], *(s for s in sizes if s == accelerators)})
    given = chunks > 1 or bool(task.problem.order)  # then the schedule says which device has which
    devices = _devices_of_stages(task.problem, seen, given=given)
    return PlacementEnvironment(
        observation=seen,
        rules=tuple(GroupRules(n, contiguous=True, all_used=given) for n in numbers),
        most=np.full(task.cluster.size, ANY_NUMBER if given else 1),
        values=_Makespans(task, of, seen, devices),
        solution=lambda group, device: _pipeline(of.graph, group, devices(group, device)),
        unit=seen.even_load * task.problem.batch,
    )


def _devices_of_stages(
    problem: PipelineJob, of: Observation, *, given: bool
) -> Callable[[Ints, Ints], Ints]:
    """Return a function to the devices of a placement's stages; the schedule's if `given`."""
    by_host = np.argsort(of.host[of.kind_of], kind="stable")

    def devices(group: Ints, device: Ints) -> Ints:
        stages = int(group.max()) + 1
        if not given:
            return device[:stages]
        placed: Ints = by_host[np.array(problem.devices_of(stages))]
        return placed

    return devices


def _pipeline(graph: Hypergraph, group: Ints, devices: Ints) -> PipelinePlacement:
    return PipelinePlacement(graph.expand(group), tuple(devices.tolist()))


def latency_environment(task: Task[Latency]) -> PlacementEnvironment:
    """Return the environment of a task for latency."""
    edges = task.workload.edges
    graph = hypergraph(task, merge_cycles(colour_units(task), edges), edges)
    seen = observation(task, graph, graph.edges)
    plans = latency_graph(task, whole_colours=True)
    host = task.costs.host[task.costs.kind_of]
    calls = min(task.problem.calls, graph.size)
    most = int((~host).sum()) * calls
    # nodes on CPUs before, between and after all calls
    numbers = {min(n, graph.size) for n in (most, 2 * most + 1 if host.any() else most) if n}
    flat = flatten(task, plans)

    def values(group: Ints, device: Ints) -> Floats:
        latest = [
            execute(flat, *call_slots(task, plans, _calls(task, plans, graph, g, d)))[0]
            for g, d in zip(group, device, strict=True)
        ]
        return _with_limits(task, seen, np.array(latest), np.take_along_axis(device, group, axis=1))

    return PlacementEnvironment(
        observation=seen,
        rules=tuple(
            GroupRules(n, contiguous=True, room=largest_room(seen)) for n in sorted(numbers)
        ),
        most=np.where(host, ANY_NUMBER, calls),
        values=values,
        solution=lambda group, device: _calls(task, plans, graph, group, device),
        unit=seen.even_load,
        one_after_another=True,
    )


def _calls(
    task: Task[Latency], plans: LatencyGraph, graph: Hypergraph, group: Ints, device: Ints
) -> CallPlacement:
    """Return the plan of groups of units, (U,), which are in topological order, on devices."""
    used = np.unique(group)
    number = np.zeros(len(device), np.int64)
    for d in np.unique(device[used]).tolist():
        own = used[device[used] == d]
        number[own] = np.arange(len(own))
    where, call = graph.expand(device[group]), graph.expand(number[group])
    host = task.costs.host[task.costs.kind_of]
    return CallPlacement(np.where(host[where], plans.pool, where), np.where(host[where], -1, call))


def _with_limits(task: Task[Latency], of: Observation, latest: Floats, where: Ints) -> Floats:
    """Return latencies relative to an even load, with penalties for memory and support."""
    costs = task.costs
    member = (where[:, None, :] == np.arange(len(costs.kind_of))[:, None]).astype(np.float64)
    lacking = np.einsum("bdu,du->b", member, 1 - of.supported[costs.kind_of])
    lacking += np.isinf(latest)
    held = memory_excess(member @ of.memory, costs.capacity_bytes[costs.kind_of])
    value = np.where(np.isfinite(latest), latest, 0.0) / of.even_load
    return with_penalty(value, held + lacking, len(costs.kind_of))
