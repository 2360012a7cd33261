"""Strategy `auto` for sharding: rules of frameworks, elimination, message passing."""

from __future__ import annotations

from ...formulations.sharding.costs import ShardingCosts, is_divided, sharding_costs
from ...formulations.task import Task
from ...instances import Sharding, Solution
from ...instances.common.arrays import Ints
from ..core.search import Search
from .baselines import first_plans
from .elimination import eliminate_all
from .messages import better_by_messages
from .mixtures import is_too_small, minimise_sums
from .priced_memory import least_cost_that_fits, priced_memory

#: Pairs of choices of operators that share a tensor, up to which elimination is tried at once.
FEW_PAIRS = 30_000


def auto(task: Task[Sharding], search: Search[Solution]) -> None:
    """Plan by elimination, over all choices of small programs, and over few choices of large ones.

    The rules of frameworks give the first plans, so that the result is never worse. Elimination
    finds the optimum of small programs. For large ones, message passing excludes so many choices
    that elimination finds the optimum over the rest; with a limit of memory, at several prices of a
    byte. The integer program improves what is not proved.
    """
    costs = sharding_costs(task)
    if is_too_small(costs, search):
        return
    for axis, size in enumerate(costs.problem.mesh.shape):
        if not is_divided(costs, axis):
            search.note(f"nothing divides by the {size} devices of axis {axis}: all do the same")
    search.method = "rules"
    with search.phase("first plans"):
        first_plans(costs, search)
    if search.should_stop():
        return
    minimise_sums(costs, search, _by_sums)
    if not search.is_over():
        from .milp import milp  # with Pyomo, which takes a second to import

        search.method = "milp"
        milp(task, search)


def _by_sums(costs: ShardingCosts, search: Search[Solution]) -> Ints | None:
    """Minimise costs that are a sum over operators and tensors, and bound them."""
    if costs.problem.memory_bytes is not None:
        search.method = "messages"
        price = priced_memory(costs, search)
        if not search.is_over():
            search.method = "elimination"
            with search.phase("elimination of what fits"):
                return least_cost_that_fits(costs, search, price)
        return None
    if pairs(costs) <= FEW_PAIRS:
        search.method = "elimination"
        return eliminate_all(costs, search)
    search.method = "messages"
    return better_by_messages(costs, search)


def pairs(costs: ShardingCosts) -> int:
    """Return how many pairs of choices operators have that share a tensor."""
    count = [len(choices.cost) for choices in costs.choices]
    return sum(count[term.maker] * count[use.operator] for term in costs.terms for use in term.uses)
