"""The bound on the busiest link by the integer program over islands."""

from __future__ import annotations

from ...formulations.mapping.islands import island_milp
from ...formulations.mapping.links import LinkTraffic
from ...instances import Solution
from ...instances.common.arrays import Ints
from ..core.compiled_model import compile_model
from ..core.milp_driver import Program, solve_program
from .search import MappingSearch


def bound_by_islands(
    mapping: MappingSearch, traffic: LinkTraffic, names: Ints, seconds: float
) -> None:
    """Raise the bound by what must pass between islands; the program is a relaxation.

    Parameters
    ----------
    names
        Of the islands.
    seconds
        Limit.
    """

    per_s = mapping.program_units_per_s

    def state() -> Program[Solution]:
        return Program(
            compiled=compile_model(island_milp(mapping.problem, traffic, names, per_s)),
            read=None,
            scale=1 / (per_s * mapping.unit),
            origin="traffic between islands, stages given",
            infeasible="",
        )

    solve_program(state, mapping.search, seconds=seconds, gap=0.0)
