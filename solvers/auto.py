"""`auto`: chooses the methods for a throughput problem, and says what it chose."""

from __future__ import annotations

from ..formulations.counting import COUNTING_SLACK, counting_bound
from ..formulations.hypergraph import hypergraph
from ..formulations.task import Task
from ..instances import Solution
from .dp import ideal_dp, linearised_dp
from .greedy import greedy
from .linked_search import improve_linked
from .search import Search
from .set_partitioning import set_partitioning
from .swaps import swap_devices

#: Units times devices up to which the compact program is solved to the end in no time.
SMALL_PROGRAM = 150


def auto(task: Task, search: Search[Solution]) -> None:
    """Plan by what fits the problem.

    A first plan comes from greedy, a first bound from counting. Contiguous splits go to the DP
    over ideals, which is exact while its lattice is small enough. Non-contiguous ones go to set
    partitioning, unless the compact program is small; that program also goes on where the others
    end. Where memories are so tight that neither greedy nor the linearised DP finds a plan, packing
    comes first. Relayed data only the DP can price, so there it is all.
    """
    if task.throughput.relayed:
        search.method = "dp"
        search.note("auto: the DP over ideals, for data that is relayed")
        ideal_dp(task, search)
        swap_devices(task, search)
        return
    search.method = "greedy"
    greedy(task, search)
    graph = hypergraph(task)
    bound = counting_bound(task, graph) * (1 - COUNTING_SLACK)
    search.raise_bound(bound, "counting heavy units")
    if search.should_stop():
        return
    if task.throughput.split == "noncontiguous":
        search.method = "dpl"
        linearised_dp(task, search)
        if search.best is None and not search.should_stop():
            from .packing import packing  # as below

            packing(task, graph, search)
        improve_linked(task, search)
        if search.should_stop():
            return
        if graph.size * task.cluster.size > SMALL_PROGRAM:
            search.method = "setpart"
            search.note("auto: set partitioning, for a non-contiguous split")
            set_partitioning(task, search, patient=False)
    else:
        search.method = "dp"
        search.note(f"auto: the DP over ideals, for a split that is {task.throughput.split}")
        ideal_dp(task, search)
    improve_linked(task, search)
    if search.should_stop():
        return
    from .milp import compact  # Pyomo takes a second to import; most of the above do without

    search.method = "milp"
    search.note("auto: the compact integer program, from the best plan so far")
    compact(task, search)
