"""The integer programs of all problems under one roof: stated for a task, with what x says of it.

For those who look at formulations; solvers state theirs themselves, for the best plan known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ..instances import InputError, Problem, is_stream
from ..instances.common.units import TIME_UNITS
from .program import Value
from .task import Task

if TYPE_CHECKING:
    import pyomo.environ as pyo

    from .schedule.milp import ScheduleInstance
    from .throughput.hypergraph import Hypergraph
    from .throughput.set_partitioning import Column

#: Part of each thing at each place: (thing, place) → 0 … 1.
Shares = dict[tuple[str, str], float]


@dataclass(frozen=True, eq=False)
class Stated:
    """An integer program of a task.

    Parameters
    ----------
    model
        The Pyomo model; its objective times `scale` is in the workload's time unit.
    module
        Of the formulation: its text has symbols and equations.
    shares
        Where each node is, or each device, given the values of the variables.
    """

    model: pyo.ConcreteModel
    scale: float
    module: str
    shares: Callable[[Value], Shares]

    @property
    def said(self) -> str:
        """Symbols and equations."""
        return (import_module(f"{__package__}.{self.module}").__doc__ or "").strip()


def _compact(task: Task[Any]) -> Stated:
    from .throughput.compact import compact

    stated = compact(task)

    def shares(value: Value) -> Shares:
        found: Shares = defaultdict(float)
        for (unit, slot), var in stated.model.x.items():
            for v in stated.graph.members[unit]:
                found[_node(task, v), f"slot {slot}"] += value(var)
        return found

    return Stated(stated.model, stated.scale, "throughput.compact", shares)


def set_partitioning(task: Task[Any], limit: float = math.inf) -> Stated:
    """State the program over the sets of a load of at most `limit`."""
    from .throughput.set_partitioning import model

    graph, every = sets_of(task)
    columns = [column for column in every if column[2] <= limit * (1 + 1e-12)]
    names = [_node(task, nodes[0]) for nodes in graph.members]
    stated = model(task, graph, columns)

    def shares(value: Value) -> Shares:
        found: Shares = defaultdict(float)
        for s, (members, _, _) in enumerate(columns):
            part = value(stated.x[s])
            if part > 1e-9:
                text = "{" + ", ".join(names[u] for u in sorted(members)) + "}"
                for unit in members:
                    for v in graph.members[unit]:
                        found[_node(task, v), text] += part
        return found

    return Stated(stated, 1.0, "throughput.set_partitioning", shares)


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


def _actions(task: Task[Any]) -> Stated:
    from .job.iteration_milp import iteration_model

    stated = iteration_model(task)

    def shares(value: Value) -> Shares:
        found: Shares = defaultdict(float)
        for (unit, _, stage), var in stated.model.x.items():
            for v in stated.data.line.graph.members[unit]:
                found[_node(task, v), f"stage {stage}"] += value(var)
        return found

    return Stated(stated.model, stated.scale, "job.iteration_milp", shares)


def _calls(task: Task[Any], *, potentials: bool) -> Stated:
    from .latency.milp import CPUS, latency_model

    stated = latency_model(task, _horizon(task), 0.0, potentials=potentials)
    data = stated.data

    def shares(value: Value) -> Shares:
        found: Shares = defaultdict(float)
        for v, unit in enumerate(data.unit):
            found[_node(task, v), "CPUs"] += value(stated.model.x[unit, CPUS])
            for s, (device, number) in enumerate(data.calls):
                place = task.cluster.devices[device].name
                place += f", call {number}" if task.problem.calls > 1 else ""
                found[_node(task, v), place] += value(stated.model.x[unit, s])
        return found

    return Stated(stated.model, stated.scale, "latency.milp", shares)


def _slots(task: Task[Any]) -> Stated:
    from .job.stream import state_staging
    from .job.stream_milp import stream_model

    staging = state_staging(task)
    stated = stream_model(staging, 1.0)
    data = stated.data

    def shares(value: Value) -> Shares:
        found: Shares = defaultdict(float)
        for v in range(task.workload.n):
            for i in range(data.slots):
                found[_node(task, v), f"stage {i}"] += sum(
                    value(stated.model.z[i, o, c]) for o, c in data.choices[staging.unit_of[v]]
                )
        return found

    return Stated(stated.model, data.scale, "job.stream_milp", shares)


def _joint(task: Task[Any]) -> Stated:
    from .mapping.joint import joint_data, joint_milp

    stated = joint_milp(joint_data(task.workload), task.problem, 1000.0)

    def shares(value: Value) -> Shares:
        return {(f"device {d}", f"stage {s}"): value(var) for (d, s), var in stated.model.x.items()}

    scale = 1 / (1000.0 * TIME_UNITS[task.workload.time_unit])
    return Stated(stated.model, scale, "mapping.joint", shares)


def _sharding(task: Task[Any], *, strong: bool) -> Stated:
    from ..instances.model.sharding.program import property_text
    from .sharding.costs import sharding_costs
    from .sharding.milp import sharding_model

    costs = sharding_costs(task)
    stated = sharding_model(costs, 1.0, strong=strong)

    def shares(value: Value) -> Shares:
        found: Shares = defaultdict(float)
        for (v, k), var in stated.model.x.items():
            operator = costs.program.operators[v]
            made = zip(operator.outputs, costs.choices[v].makes, strict=True)
            lies = ",".join(property_text(costs.conversions[t].states[a[k]]) for t, a in made)
            found[operator.name, lies or "makes nothing"] += value(var)
        return found

    return Stated(stated.model, 1.0, "sharding.milp", shares)


def passes(instance: ScheduleInstance, horizon: float) -> Stated:
    """State the order of a pipeline's passes: of each two of a device whose order is open."""
    from .schedule.milp import schedule_model

    stated = schedule_model(instance, horizon)

    def shares(value: Value) -> Shares:
        found: Shares = {}
        for (i, j), var in stated.model.y.items():
            pair = f"{instance.operations[i].name}, {instance.operations[j].name}"
            found[pair, "in this order"] = value(var)
            found[pair, "the other way"] = 1 - value(var)
        return found

    return Stated(stated.model, stated.scale, "schedule.milp", shares)


def _node(task: Task[Any], v: int) -> str:
    return str(task.workload.names[v])


def _horizon(task: Task[Any]) -> float:
    """Return twice what all nodes take one after the other: about the worst that matters."""
    least = np.asarray(task.costs.compute[task.costs.count > 0]).min(axis=0)
    return 2 * float(least[np.isfinite(least)].sum())


#: Problem, of training jobs that are streams ``stream`` → name → the program of a task.
FORMULATIONS: dict[str, dict[str, Callable[[Task[Any]], Stated]]] = {
    "throughput": {
        "compact": _compact,
        "set-partitioning": set_partitioning,
        "all-sets": set_partitioning,
    },
    "latency": {
        "big-m": lambda task: _calls(task, potentials=False),
        "potentials": lambda task: _calls(task, potentials=True),
    },
    "pipeline": {"actions": _actions},
    "stream": {"slots": _slots},
    "mapping": {"joint": _joint},
    "sharding": {
        "compact": lambda task: _sharding(task, strong=False),
        "flows": lambda task: _sharding(task, strong=True),
    },
}


def formulations_of(problem: Problem) -> dict[str, Callable[[Task[Any]], Stated]]:
    """Return the programs that a problem has, by name."""
    return FORMULATIONS["stream" if is_stream(problem) else problem.name]
