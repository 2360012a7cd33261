"""Integer programs of all problems, each stated for a task, for users to read and change.

Every device keeps its identity, so that rows can be added: nothing is omitted because another
solution is as good. (Solvers, in contrast, state their programs for the incumbent.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ..instances import InputError, Problem, StagePlacement, in_stages, is_stream
from .program import Program, Start, Value
from .task import Task

if TYPE_CHECKING:
    import pyomo.environ as pyo

    from ..instances import Workload
    from .schedule.milp import ScheduleInstance
    from .throughput.compact import Compact
    from .throughput.hypergraph import Hypergraph
    from .throughput.set_partitioning import Column

#: Value of each expression of `StatedProgram.places`: (thing, place) → 0 … 1.
Shares = dict[tuple[str, str], float]

#: Least objective of a program in its own unit, a tenth of the greatest, if it is as expected: far
#: above the solvers' absolute tolerances.
LEAST_OBJECTIVE = 1000.0


@dataclass(frozen=True, eq=False)
class StatedProgram:
    """An integer program of a task, as a `Program`, and what its variables place where."""

    model: pyo.ConcreteModel  # its objective times `scale` is in the workload's time unit
    scale: float  # a power of ten, except for orders of passes
    module: str  # module of the formulation, whose docstring has symbols and equations
    read: Callable[[Value], Any]  # returns the solution, given the value of each variable
    # returns the values of the integer variables for a solution; None if it has none
    start: Callable[[Any], Start | None]
    # for each (thing, place) a linear expression that is 1 if the thing is there, else 0
    places: Mapping[tuple[str, str], pyo.Expression]

    @property
    def statement(self) -> str:
        """Symbols and equations of the program, as text."""
        return (import_module(f"{__package__}.{self.module}").__doc__ or "").strip()

    def shares(self, value: Value) -> Shares:
        """Return the value of each expression of `places`, given the value of each variable."""
        from pyomo.repn import generate_standard_repn

        found: Shares = {}
        for key, expression in self.places.items():
            linear = generate_standard_repn(expression)
            terms = zip(linear.linear_coefs, linear.linear_vars, strict=True)
            found[key] = linear.constant + sum(factor * value(var) for factor, var in terms)
        return found


def _stated(program: Program, module: str, places: Mapping[tuple[str, str], Any]) -> StatedProgram:
    return StatedProgram(program.model, program.scale, module, program.read, program.start, places)


def _unit(expected: float) -> float:
    """Return the power of ten that makes a program's objective at least `LEAST_OBJECTIVE`."""
    if not 0 < expected < math.inf:
        return 1.0
    return float(10.0 ** math.floor(math.log10(expected / LEAST_OBJECTIVE)))


def _compact(task: Task[Any], *, named: bool) -> StatedProgram:
    from .throughput.compact import compact

    # `reference` is the objective that becomes 1000
    program = compact(task, reference=1000.0 * _unit(_even_share(task)), named=named)
    if not named and hasattr(program.model, "in_order"):  # stated for free CPU cores
        program.model.del_component(program.model.in_order)
    nodes, names = node_names(task.workload), _slot_names(task, program)
    places = {
        (nodes[v], names[slot]): var
        for (unit, slot), var in program.model.x.items()
        for v in program.graph.members[unit]
    }
    return _stated(program, "throughput.compact", _by_node(nodes, places))


def _slot_names(task: Task[Any], program: Compact) -> list[str]:
    """Return the names of slots, which are devices or positions in the pipeline."""
    kinds, names = task.cluster.kinds, []
    for slot in program.slots:
        if slot.device is not None:
            names.append(task.cluster.devices[slot.device].name)
        else:
            kind = f", {kinds[slot.kind].name}" if slot.chosen else ""
            names.append(f"place {slot.position}{kind}")
    return names


def set_partitioning(task: Task[Any], limit: float = math.inf) -> StatedProgram:
    """State the program over the sets whose load is at most `limit`."""
    import pyomo.environ as pyo

    from .throughput.set_partitioning import SetPartitioning, model

    graph, every = sets_of(task)
    columns = [column for column in every if column[2] <= limit * (1 + 1e-12)]
    nodes = node_names(task.workload)
    names = [nodes[members[0]] for members in graph.members]
    program = SetPartitioning(task, graph, columns, model(task, graph, columns))
    holding: dict[tuple[str, str], list[pyo.Var]] = {}
    for s, (members, _, _) in enumerate(columns):
        text = "{" + ", ".join(names[u] for u in sorted(members)) + "}"
        for unit in members:
            for v in graph.members[unit]:
                holding.setdefault((nodes[v], text), []).append(program.model.x[s])
    places = {key: pyo.quicksum(variables) for key, variables in holding.items()}
    return _stated(program, "throughput.set_partitioning", _by_node(nodes, places))


def sets_of(task: Task[Any]) -> tuple[Hypergraph, list[Column]]:
    """Return the units, and all sets of them that a device can hold, with kind and load."""
    from .throughput.hypergraph import hypergraph
    from .throughput.set_partitioning import MOST_UNITS, all_columns

    graph = hypergraph(task)
    if graph.size > MOST_UNITS:
        raise InputError(
            f"set-partitioning: {graph.size} units have too many sets to list "
            f"(most: {MOST_UNITS} units); method column-generation makes them as it needs them"
        )
    return graph, list(all_columns(task, graph))


def _actions(task: Task[Any]) -> StatedProgram:
    from .job.iteration_milp import iteration_model

    unit = _unit(task.problem.batch * _even_share(task))
    program = iteration_model(task, reference=1000.0 * unit)
    nodes = node_names(task.workload)
    places: dict[tuple[str, str], Any] = {}
    for (unit, _, stage), var in program.model.x.items():
        for v in program.data.line.graph.members[unit]:
            key = nodes[v], f"stage {stage}"
            places[key] = places.get(key, 0) + var
    return _stated(program, "job.iteration_milp", _by_node(nodes, places))


def _calls(task: Task[Any], *, potentials: bool) -> StatedProgram:
    from .latency.milp import CPUS, latency_model

    program = latency_model(
        task,
        _one_by_one(task),
        0.0,
        potentials=potentials,
        named=True,
        reference=1000.0 * _unit(_even_share(task)),
    )
    data, x, nodes = program.data, program.model.x, node_names(task.workload)
    names = {CPUS: "CPUs"}
    for s, (device, number) in enumerate(data.calls):
        call = f", call {number}" if task.problem.calls > 1 else ""
        names[s] = task.cluster.devices[device].name + call
    places = {
        (nodes[v], name): x[unit, s]
        for v, unit in enumerate(data.unit)
        for s, name in names.items()
    }
    return _stated(program, "latency.milp", places)


def _slots(task: Task[Any]) -> StatedProgram:
    import pyomo.environ as pyo

    from .job.stream import state_staging
    from .job.stream_bounds import least_stage_time
    from .job.stream_milp import stream_model

    staging = state_staging(task)
    program = stream_model(staging, _unit(least_stage_time(staging)))
    data, z, nodes = program.data, program.model.z, node_names(task.workload)
    places = {
        (nodes[v], f"stage {i}"): pyo.quicksum(
            z[i, o, c] for o, c in data.choices[staging.unit_of[v]]
        )
        for v in range(task.workload.n)
        for i in range(data.slots)
    }

    def read(value: Value) -> StagePlacement:
        return in_stages(program.read(value), task.cluster)

    return StatedProgram(program.model, data.scale, "job.stream_milp", read, program.start, places)


def _joint(task: Task[Any]) -> StatedProgram:
    from .mapping.joint import joint_data, joint_milp

    data, problem = joint_data(task), task.problem
    expected = float(data.units.seconds.sum()) / problem.stages * problem.microbatches
    unit = _unit(expected / data.unit_s)
    program = joint_milp(data, problem, 1 / (unit * data.unit_s))
    number = problem.topology.usable.tolist()
    places = {(f"device {number[d]}", f"stage {s}"): x for (d, s), x in program.model.x.items()}
    return _stated(program, "mapping.joint", places)


def _sharding(task: Task[Any], *, strong: bool) -> StatedProgram:
    from ..instances.model.tensor_program import property_text
    from .sharding.costs import sharding_costs
    from .sharding.milp import sharding_model

    costs = sharding_costs(task)
    dearest = sum(float(choices.cost.max(initial=0.0)) for choices in costs.choices)
    program = sharding_model(costs, _unit(dearest), strong=strong)
    places: dict[tuple[str, str], Any] = {}
    for (v, k), var in program.model.x.items():
        operator = costs.program.operators[v]
        made = zip(operator.outputs, costs.choices[v].makes, strict=True)
        lies = ",".join(property_text(costs.conversions[t].states[a[k]]) for t, a in made)
        key = operator.name, lies or "makes nothing"
        places[key] = places.get(key, 0) + var
    return _stated(program, "sharding.milp", places)


def passes(instance: ScheduleInstance, horizon: float) -> StatedProgram:
    """State the order of a pipeline's passes, for each two on a device whose order is open."""
    from .schedule.milp import schedule_model

    program = schedule_model(instance, horizon)
    places: dict[tuple[str, str], Any] = {}
    for (i, j), var in program.model.y.items():
        pair = f"{instance.operations[i].name}, {instance.operations[j].name}"
        places[pair, "in this order"] = var
        places[pair, "the other way"] = 1 - var
    return _stated(program, "schedule.milp", places)


def node_names(workload: Workload) -> list[str]:
    """Return the nodes' names in `places`; if several nodes have a name, their ids follow it."""
    several = {name for name, count in Counter(workload.names).items() if count > 1}
    pairs = zip(workload.names, workload.ids, strict=True)
    return [f"{name} ({node})" if name in several else name for name, node in pairs]


def _by_node(nodes: list[str], places: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """Return places in the order of the nodes, not of the program's units."""
    rank = {name: v for v, name in enumerate(nodes)}
    return dict(sorted(places.items(), key=lambda item: rank[item[0][0]]))


def _even_share(task: Task[Any]) -> float:
    """Return the sum of the nodes' least times, divided by the number of devices."""
    least = np.asarray(task.costs.compute[task.costs.count > 0]).min(axis=0)
    return float(least[np.isfinite(least)].sum()) / len(task.costs.kind_of)


def _one_by_one(task: Task[Any]) -> float:
    """Return an upper bound on the latency of every plan without idle time.

    It has all nodes one after the other where they take longest, and every output moved to and from
    every possible call over the slowest link; so it stays valid when rows are added.
    """
    costs, linked = task.costs, task.linked_costs
    times = np.asarray(costs.compute[costs.count > 0])
    slowest = np.where(np.isfinite(times), times, 0.0).max(axis=0)
    moved = np.asarray(costs.transfer[costs.count > 0]).max(axis=0)
    if linked.messages is not None:
        moved = np.maximum(moved, np.asarray(linked.messages.time).max(axis=0, initial=0.0))
    calls = task.problem.calls * len(costs.kind_of)
    return float(slowest.sum() + 2 * calls * moved.sum())


#: Problem (``stream`` for pipelines that are streams) → name → statement of a task's program.
FORMULATIONS: dict[str, dict[str, Callable[[Task[Any]], StatedProgram]]] = {
    "throughput": {
        "compact": partial(_compact, named=False),
        "by-device": partial(_compact, named=True),
        "set-partitioning": set_partitioning,
        "all-sets": set_partitioning,
    },
    "latency": {
        "big-m": partial(_calls, potentials=False),
        "potentials": partial(_calls, potentials=True),
    },
    "pipeline": {"actions": _actions},
    "stream": {"slots": _slots},
    "mapping": {"joint": _joint},
    "sharding": {
        "compact": partial(_sharding, strong=False),
        "flows": partial(_sharding, strong=True),
    },
}


def formulations_of(problem: Problem) -> dict[str, Callable[[Task[Any]], StatedProgram]]:
    """Return the programs of a problem, by name."""
    return FORMULATIONS["stream" if is_stream(problem) else problem.name]
