"""An iteration of a chain of stages: the statement that its methods share.

Executing the pieces of a contiguous split one after the other gives a chain of ideals
∅ = I_0 ⊂ I_1 ⊂ … ⊂ I_P = V of units; stage s is S_s = I_{s+1} ∖ I_s. It has a forward time f_s and
a backward time b_s, of which ω c_s computes gradients of weights (c_s the backward's compute). It
takes R_s bytes all the time and A_s for each microbatch in flight. A schedule fixes the order of
the actions on every device (`orders`), and with it the makespan, the longest path

    T = max over paths π of Σ_s n_πsF f_s + n_πsB b_s + n_πsI (b_s − ω c_s) + n_πsW ω c_s        (1)

where n_π counts the actions on the path; and the memory, with a_d the vectors of microbatches in
flight on device d,

    Σ_{s on d} R_s + max over a_d of Σ_{s on d} a_ds A_s ≤ room_d                                (2)

The counts do not depend on the placement. So any set of paths gives a lower bound of every plan's
makespan, and the largest such bound over all paths is the makespan.

Data that only backward nodes of another device need is received in its backward pass. The model
ignores nets with such a pin (then `exact` is False), so that all its times are lower bounds.

Interchangeable units (twins) are put in a fixed order, without loss. Units are twins if they have
the same predecessors and successors, cost the same on every kind of device, take the same memory,
and each net contains either all of them or one of them, in which case the others have equal nets.
Exchanging the stages of two twins changes neither times nor memory of any stage. So some best plan
has them in the order of their numbers, and an edge from each to the next loses nothing. The experts
of a layer are twins: for 8 experts, 2^8 ideals become 9.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise, permutations, starmap

import numpy as np

from ...instances import PipelineJob, Throughput, Workload
from ...instances.common.arrays import Bools, Floats, Ints, frozen
from ...instances.model.placement_rules import NO_RULES
from ...instances.model.problem import names_stages
from ...instances.model.workload import kept_bytes
from ..rules.stages import StageRules, stage_rules
from ..task import Task, pose
from ..throughput.hypergraph import Hypergraph, colour_units, hypergraph, merge_cycles
from ..throughput.ideals import ancestors, topological_orders
from ..throughput.whole_bytes import room_of


@dataclass(frozen=True, eq=False)
class Line:
    """A task as a chain of ideals; K kinds that have devices, U units, E nets."""

    #: Units and nets, after colours and cycles are merged, with the edges of `twins`.
    graph: Hypergraph
    #: The problem as the user posed it.
    problem: PipelineJob
    #: Shape (K,): numbers of the kinds, and the number of devices of each.
    kinds: Ints
    count: Ints
    #: Shape (K, 2, U): forward and backward time.
    compute: Floats
    #: Shape (K, 2, E): time that a device pays for a net that it cuts, by pass; 0 where transfers
    #: overlap.
    weight: Floats
    #: Shape (K, E): time of a device's copy engine for a net that it cuts, where transfers overlap.
    overlapped: Floats
    #: Shape (U,): resident bytes, and bytes per microbatch in flight.
    resident: Floats
    activation: Floats
    #: Shape (K,): memory of a device; `inf` for no limit.
    room: Floats
    #: Whether there is a backward pass.
    trains: bool
    #: Some topological orders of the units.
    orders: tuple[Ints, ...]
    #: Whether the times are exact, rather than lower bounds.
    exact: bool
    #: The user's rules for the stages.
    rules: StageRules

    @property
    def most_stages(self) -> int:
        """Largest number of stages."""
        return _most_stages(self.problem, int(self.count.sum()), self.graph.size)

    def why_no_size(self) -> str:
        """Return the reason why no number of stages is allowed: rules, schedule or devices."""
        allowed = self._allowed_sizes()
        if allowed:
            return str(self.rules.why_not(allowed[-1]))
        if self.problem.order:
            device, most = self.problem.order.device, self.problem.placement_rules.max_stages
            if most is not None and most < len(device):
                return f"the schedule is of {len(device)} stages, and at most {most} are allowed"
            return (
                f"the schedule needs {max(device) + 1} devices, and units for {len(device)} "
                f"stages; there are {int(self.count.sum())} devices, and {self.graph.size} units "
                "that can be divided: give more devices, or a schedule of fewer stages"
            )
        return (
            f"{self.problem.schedule}: a device takes {self.problem.chunks_per_device} stages, and "
            f"there can be {self.most_stages} at most, for {self.graph.size} units that can be "
            "divided; take fewer chunks, or another schedule"
        )

    def sizes(self) -> list[int]:
        """Numbers of stages that the schedule and the user's rules allow."""
        return [size for size in self._allowed_sizes() if self.rules.why_not(size) is None]

    def _allowed_sizes(self) -> list[int]:
        return numbers_of_stages(self.problem, int(self.count.sum()), self.graph.size)


def numbers_of_stages(problem: PipelineJob, devices: int, units: int) -> list[int]:
    """Return the numbers of stages that a schedule allows, in increasing order, at most `units`."""
    most = _most_stages(problem, devices, units)
    if problem.order:
        device = problem.order.device
        return [len(device)] if max(device) < devices and len(device) <= most else []
    chunks = problem.chunks_per_device
    sizes = range(chunks, most + 1, chunks)
    return [s for s in sizes if chunks == 1 or problem.batch % (s // chunks) == 0]


def _most_stages(problem: PipelineJob, devices: int, units: int) -> int:
    most = min(devices * problem.chunks_per_device, units)
    return min(most, problem.placement_rules.max_stages or most)


def line(task: Task[PipelineJob]) -> Line:
    """Return the task as a chain of ideals."""
    workload, costs, problem = task.workload, task.costs, task.problem
    like = pose(
        workload,
        task.cluster,
        Throughput(split="contiguous", pipeline="gpipe", relayed=problem.relayed),
    )
    ordered = chain_edges(workload)
    graph = hypergraph(like, merge_cycles(colour_units(like), ordered), ordered)
    kinds = np.flatnonzero(costs.count)
    _, resident, activation = kept_bytes(workload)
    held = [
        frozen(np.bincount(graph.unit_of, values, graph.size), np.float64)
        for values in (resident, activation)
    ]
    weight = graph.weight[kinds]
    late = _late_nets(task, graph)
    exact = not (late.any() or problem.overlap or task.cluster.links)
    rules = stage_rules(
        workload,
        problem.placement_rules if names_stages(problem) else NO_RULES,
        graph.unit_of,
        graph.edges,
        devices_of=problem.devices_of,
    )
    if exact:  # else twins here may differ in a net that the model ignores
        alike = twins(graph, held[0], held[1], rules.named)
        ordering = [edge for same in alike for edge in pairwise(same)]
        edges = np.concatenate((graph.edges, np.array(ordering, np.int64).reshape(-1, 2)))
        graph = replace(graph, edges=frozen(edges, np.int64))
    weight = np.where(late, 0.0, weight)
    return Line(
        graph=graph,
        problem=problem,
        kinds=kinds,
        count=costs.count[kinds],
        compute=graph.compute[kinds],
        weight=np.zeros_like(weight) if problem.overlap else weight,
        overlapped=weight.sum(axis=1) if problem.overlap else np.zeros_like(weight[:, 0]),
        resident=held[0],
        activation=held[1],
        room=room_of(costs.capacity_bytes[kinds]),
        trains=bool(workload.backward.any()),
        orders=topological_orders(graph),
        exact=exact,
        rules=rules,
    )


def most_between(graph: Hypergraph) -> Ints:
    """Return for each net the most units that can lie between its first and its last stage.

    Let pins a and b be in stages s < t. Units in the stages between are neither predecessors of a
    nor successors of b, and each of these t − s − 1 stages has a unit.
    """
    before, after = (ancestors(graph.size, way) for way in (graph.edges, graph.edges[:, ::-1]))

    def between(a: int, b: int) -> int:
        return graph.size - (before[a] | after[b] | 1 << a | 1 << b).bit_count()

    return np.array([max(starmap(between, permutations(p, 2))) for p in graph.pins], np.int64)


def chain_edges(workload: Workload) -> Ints:
    """Return the pairs of nodes, shape (m, 2), of which the first must not be in a later stage.

    Forward passes go up the chain and backward passes down; a backward node may use what any
    forward node has made.
    """
    backward, edges = workload.backward, workload.edges
    within = edges[backward[edges[:, 0]] == backward[edges[:, 1]]]
    directed: Ints = np.where(backward[within[:, :1]], within[:, ::-1], within)
    return directed


def _late_nets(task: Task[PipelineJob], graph: Hypergraph) -> Bools:
    """Return the nets, shape (E,), with data that some unit needs only in its backward pass.

    Relayed data has no such nets, since it is received in the pass that sends it.
    """
    workload = task.workload
    late = np.zeros(len(graph.pins), np.bool_)
    if task.problem.relayed or not workload.backward.any():
        return late
    number = {pins: e for e, pins in enumerate(graph.pins)}
    unit, backward = graph.unit_of.tolist(), workload.backward.tolist()
    for u, successors in enumerate(workload.successors):
        if backward[u]:
            continue
        ahead = {unit[u], *(unit[v] for v in successors if not backward[v])}
        pins = tuple(sorted({unit[u], *(unit[v] for v in successors)}))
        if pins in number and not ahead.issuperset(pins):
            late[number[pins]] = True
    return late


def twins(
    graph: Hypergraph, resident: Floats, activation: Floats, named: Bools
) -> list[tuple[int, ...]]:
    """Return the classes of at least two twins, each increasing.

    `resident` and `activation`, shape (U,), are bytes of each unit; `named`, shape (U,), excludes
    units that a placement rule names.
    """
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for u in np.flatnonzero(~named).tolist():
        costs = graph.compute[:, :, u].tobytes(), float(resident[u]), float(activation[u])
        alike[graph.predecessors[u], graph.successors[u], *costs].append(u)
    found = []
    for group in alike.values():
        if len(group) > 1:
            exact: dict[tuple[object, ...], list[int]] = defaultdict(list)
            for u in group:
                exact[_signature(graph, u, frozenset(group))].append(u)
            found += [tuple(same) for same in exact.values() if len(same) == len(group)]
    return found


def _signature(graph: Hypergraph, unit: int, group: frozenset[int]) -> tuple[object, ...]:
    """Return a unit's nets with the members of its group removed; twins have equal ones."""
    parts, of = [], graph.incidence
    for e in of.unit_nets[of.unit_ptr[unit] : of.unit_ptr[unit + 1]].tolist():
        pins = frozenset(graph.pins[e])
        inside = pins & group
        alone = len(inside) == 1
        if not alone and inside != group:
            return (unit,)
        parts.append((tuple(sorted(pins - group)), alone, graph.weight[:, :, e].tobytes()))
    return tuple(sorted(parts))
