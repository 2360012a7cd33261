"""Methods `milp` and `milp-compact` for sharding: integer programs, with memory as a constraint."""

from __future__ import annotations

from pyomo.common.gc_manager import PauseGC

from ...formulations.sharding.costs import ShardingCosts, sharding_costs
from ...formulations.sharding.memory import no_sharding_fits
from ...formulations.sharding.milp import MOST_COLUMNS, sharding_model
from ...formulations.task import Task
from ...instances import Sharding, Solution
from ..core.milp_driver import IntegerProgram, integer_program, solve_program
from ..core.search import Search
from .baselines import first_plans
from .mixtures import is_too_small


def milp(task: Task[Sharding], search: Search[Solution]) -> None:
    """Solve the strong form."""
    _solve(task, search, strong=True)


def compact(task: Task[Sharding], search: Search[Solution]) -> None:
    """Solve the compact form, the reference for the strong one."""
    _solve(task, search, strong=False)


def columns(costs: ShardingCosts) -> int:
    """Return the approximate number of columns of the strong form."""
    flows = 0
    for t, users in enumerate(costs.uses):
        made = len(set(costs.makes[t][1].tolist()))
        flows += sum(made * len(set(use.needs.tolist())) for use in users)
    return flows + sum(len(choices.cost) for choices in costs.choices)


def _solve(task: Task[Sharding], search: Search[Solution], *, strong: bool) -> None:
    costs = sharding_costs(task)
    if is_too_small(costs, search):
        return
    if search.best is None:
        with search.phase("start"):
            first_plans(costs, search)
    size = columns(costs)
    if size > MOST_COLUMNS:
        search.note(f"milp: about {size} columns are too many; at most {MOST_COLUMNS} are stated")
        return
    solve_program(lambda: _program(costs, search, strong=strong), search, solver=task.solver)


def _program(
    costs: ShardingCosts, search: Search[Solution], *, strong: bool
) -> IntegerProgram[Solution]:
    """State the program for the best solution known."""
    reference = search.objective if search.best is not None else search.bound
    scale = reference / 1000 if 0 < reference < float("inf") else 1.0
    with PauseGC():
        stated = sharding_model(costs, scale, strong=strong)
    return integer_program(
        stated,
        search.best,
        origin="MILP by flows" if strong else "compact MILP",
        infeasible=no_sharding_fits(costs),
    )
