"""The best order of a pipeline's passes, by HiGHS."""

from __future__ import annotations

import math

from ..formulations.schedule_milp import Shop, schedule_model
from ..instances.arrays import Floats
from .compiled_model import compile_model
from .highs import run_highs
from .search import Search

#: What HiGHS's tolerances can make a bound too high by, relatively.
BOUND_SLACK = 1e-6
ORIGIN = "schedule MILP (HiGHS)"

#: The operations of each device, in order.
Orders = tuple[tuple[int, ...], ...]


def schedule_milp(shop: Shop, search: Search[Orders]) -> None:
    """Find the order with the least makespan, from the best one that the search already holds.

    Without one, the horizon is that of doing everything one after the other.
    """
    search.raise_bound(max(map(shop.work, range(len(shop.own)))), "work of one device")
    if search.should_stop():
        return
    horizon = search.objective
    if not math.isfinite(horizon):
        horizon = sum(operation.duration for operation in shop.operations)
    with search.phase("build"):
        stated = schedule_model(shop, horizon)
        compiled = compile_model(stated.model)
    if compiled.linear is None:
        search.prove_infeasible(f"no order keeps the memory: {compiled.why_infeasible}")
        return
    start = None if search.best is None else compiled.start(stated.start(search.best))

    def offer(x: Floats) -> None:
        begin = [compiled.value(stated.model.s[i], x) for i in range(len(shop.operations))]
        search.offer(tuple(tuple(order) for order in stated.orders(begin)))

    def raise_bound(bound: float) -> None:
        safe = bound - BOUND_SLACK * max(1.0, abs(bound))
        search.raise_bound(min(safe, search.objective), ORIGIN)

    with search.phase("solve"):
        outcome = run_highs(
            compiled.linear, search, start=start, on_incumbent=offer, on_bound=raise_bound
        )
    if outcome.x is not None:
        offer(outcome.x)
    if outcome.status == "infeasible" and search.best is None:
        search.prove_infeasible("no order keeps the memory of every device")
    elif outcome.status == "optimal" and outcome.objective >= search.objective - 1e-6 * horizon:
        search.raise_bound(search.objective, ORIGIN)  # optimal within HiGHS's tolerance
    elif math.isfinite(outcome.bound):
        raise_bound(outcome.bound)
    if outcome.limit in ("nodes", "time"):
        search.stop_for(outcome.limit)
