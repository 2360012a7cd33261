"""The declarative reference of mapping, solved by HiGHS: for a handful of devices, rings only."""

from __future__ import annotations

from ..formulations.mapping_links import link_traffic
from ..formulations.mapping_milp import mapping_milp, read_back
from ..formulations.task import Task
from ..instances import InputError, Solution
from ..instances.arrays import Floats
from .compiled_model import compile_model
from .highs import run_highs
from .mapping_hunt import Hunt
from .search import Search

#: What HiGHS's tolerances can make a bound too high by, relatively; less than the gap up to which
#: a plan is called optimal.
BOUND_SLACK = 5e-7


def milp(task: Task, search: Search[Solution]) -> None:
    """Partition the workload into stages and map them by the integer program.

    Raises
    ------
    InputError
        If collectives other than rings are allowed: the program knows only these.
    """
    hunt = Hunt(task, search)
    of_links = hunt.problem.objective == "busiest-link"
    if not (of_links or hunt.rings_only):
        raise InputError("milp: it knows rings alone; set collective to ring")
    hunt.layouts()
    with search.phase("build"):
        traffic = link_traffic(hunt.stages, hunt.problem) if of_links else None
        model = mapping_milp(hunt.costs, traffic)
        compiled = compile_model(model)
    if compiled.linear is None or search.should_stop():
        return

    def on_incumbent(x: Floats) -> None:
        hunt.offer(*read_back(model, lambda var: compiled.value(var, x)))

    def on_bound(bound: float) -> None:
        hunt.raise_bound(bound / 1e3 * (1 - BOUND_SLACK), "HiGHS")

    with search.phase("solve"):
        outcome = run_highs(
            compiled.linear,
            search,
            on_incumbent=on_incumbent,
            on_bound=on_bound,
            gap=0.0,
            options={"mip_abs_gap": 0.0},  # some stages take less than a microsecond
        )
    if outcome.x is not None:
        on_incumbent(outcome.x)
    on_bound(outcome.bound)
