"""The default strategy for throughput: choose methods by problem and size, and note the choice."""

from __future__ import annotations

import math

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import hypergraph
from ...instances import Solution, Throughput
from ..core.search import Search
from ..core.swaps import swap_devices
from .baselines import greedy, single_device
from .dp import ideal_dp
from .local_search import improve_linked
from .set_partitioning import set_partitioning

#: Units times devices up to which the compact program is solved to optimality almost at once.
SMALL_PROGRAM = 150

#: Nodes beyond which only multilevel planning ends in time.
LARGE = 4_000

#: Rounds of set partitioning before the compact program if that is small.
FEW_ROUNDS = 6

#: Part of the time left that set partitioning gets if it minimises other loads than those asked
#: for, or if the compact program is small.
SHARE = 0.25


def auto(task: Task[Throughput], search: Search[Solution]) -> None:
    """Choose methods by problem and size, and run them one after the other.

    The first plans, greedy and one device, need no compilation. Graphs of more than `LARGE` nodes
    then go to multilevel planning; contiguous splits to the DP over ideals, which is exact while
    the lattice is small enough; non-contiguous splits to set partitioning. The compact program
    continues where these end. Only the DP can price relayed data, so it is the only method then.
    """
    search.method = "greedy"
    greedy(task, search)
    known = search.best
    single_device(task, search)
    if search.best is not known:
        search.method = "single"
    if search.should_stop():
        return
    if task.workload.n > LARGE:
        from .multilevel.multilevel import multilevel

        search.method = "multilevel"
        search.note(f"auto: multilevel planning, for {task.workload.n} nodes")
        multilevel(task, search)
        swap_devices(task, search)
        return
    if task.problem.relayed:
        search.method = "dp"
        search.note("auto: the DP over ideals, for data that is relayed")
        ideal_dp(task, search)
        swap_devices(task, search)
        return
    if task.problem.split == "noncontiguous":
        search.method = "column-generation"
        search.note("auto: set partitioning, for a non-contiguous split")
        small = hypergraph(task).size * task.cluster.size <= SMALL_PROGRAM
        part = SHARE if small or _by_other_loads(task) else 1.0
        rounds = FEW_ROUNDS if small else math.inf
        set_partitioning(task, search, patient=False, part=part, rounds=rounds)
    else:
        search.method = "dp"
        search.note(f"auto: the DP over ideals, for a split that is {task.problem.split}")
        ideal_dp(task, search)
    improve_linked(task, search)
    if search.should_stop():
        return
    from .milp import compact  # Pyomo, which only this needs, takes a second to import

    search.method = "milp"
    search.note("auto: the compact integer program, from the best plan so far")
    compact(task, search)


def _by_other_loads(task: Task[Throughput]) -> bool:
    """Whether set partitioning neglects a part of the objective that the compact program has.

    Such parts are GPipe's two maxima, transfers beside compute, and memories too small for all.
    """
    problem, costs = task.problem, task.costs
    fast = (costs.count > 0) & ~costs.host
    room = (costs.capacity_bytes[fast] * costs.count[fast]).sum()
    memory_bound = bool(fast.any()) and costs.memory_bytes.sum() > room
    return problem.pipeline == "gpipe" or problem.overlap or memory_bound
