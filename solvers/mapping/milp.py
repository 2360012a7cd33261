"""Method `milp`: given stages mapped by the integer program, for few devices."""

from __future__ import annotations

import math

from ...formulations.mapping.busiest_link import LinkTraffic, link_traffic
from ...formulations.mapping.milp import mapping_milp
from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution
from ...instances.common.arrays import Floats
from ..core.compiled_model import compile_model
from ..core.milp_driver import IntegerProgram, solve_program
from ..core.search import Search
from .state import MappingState


def milp(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Partition the workload into stages and map them by the integer program.

    The program knows no collectives but rings.
    """
    mapping = MappingState(task, search)
    of_links = mapping.problem.objective == "busiest-link"
    mapping.layouts()
    if search.best is None:
        return  # no known cut fits the memories; a proof for this one says nothing of others
    traffic = link_traffic(mapping.stages, mapping.problem) if of_links else None
    map_by_program(mapping, traffic, solver=task.solver)


def map_by_program(
    mapping: MappingState,
    traffic: LinkTraffic | None,
    *,
    seconds: float = math.inf,
    solver: str = "highs",
) -> None:
    """Map the stages by the integer program, from the incumbent on; collectives are rings.

    With the traffic of the links, the busiest link is the objective.
    """
    search = mapping.search

    def state() -> IntegerProgram[Solution]:
        per_s = mapping.program_units_per_s
        stated = mapping_milp(mapping.costs, per_s, traffic)
        compiled = compile_model(stated.model)

        def read(x: Floats) -> Solution:
            slots, sends_to = stated.read(lambda var: compiled.value(var, x))
            return mapping.costs.read_back(mapping.stage, slots, sends_to)

        start = None
        if isinstance(search.best, ReplicaPlacement):
            at = mapping.problem.topology.usable_index[search.best.slots]
            start = compiled.start(stated.start(at, search.best.sends_to))
        return IntegerProgram(
            compiled=compiled,
            read=read,
            start=start,
            scale=1 / (per_s * mapping.unit),
            origin="mapping MILP, stages given",
            infeasible="no mapping of the given stages keeps the rules",
        )

    solve_program(state, search, solver=solver, seconds=seconds, gap=0.0)
