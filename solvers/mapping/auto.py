"""Methods `auto` and `layouts` for mappings, and the annealing that runs beside `auto`.

The workload is cut into stages first (`partition.py`), and these are mapped. A mapping is known at
once (`layouts.py`); from then on incumbent and bound close in on each other:

1. *Layouts* (`layouts.py`): constructions. On grids they are optimal, as a rule, and the bound of
   each stage alone proves it.
2. *Segments* (`state.py`): stages that blocks of near devices keep together give a bound.
3. *Thresholds* (`state.py`): the least threshold at which necessary conditions hold. On more than
   32 devices a little annealing comes before: with a better incumbent the bisection is shorter.
4. *Programs* (`bottleneck_stages.py`), on more than 16 devices: the least threshold at which the
   bottleneck stages have their messages and rings is proved and completed to a mapping.
5. *Exact* (`exact.py`), on up to 16 devices: a search over all sets of devices.
6. *Annealing* until the limit (`annealing/targets.py`): a target between bound and incumbent is
   tried from several starts in turn: from block counts that are likely to fit, from the incumbent,
   and from the last attempt. Where all-reduces other than rings are allowed, rounds alternate with
   descents on the stage times.

All annealing is one loop (`annealing/anneal_kernel.py`) for three costs: violations of a target,
stage times, loads of links. In the end the sum of the stage times is lowered while the longest
stays (`break_ties`).

The bound is for the mapping of these stages: another partition may have a better one. The objective
`busiest-link` has a strategy of its own (`busiest_link.py`). While `auto` runs in one process,
`annealing` of the same stages can run beside it in others, once these are chosen.
"""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import DeviceMapping, ReplicaPlacement, Solution
from ..core.search import OPTIMAL_GAP, Search
from .annealing.costs import break_ties
from .annealing.targets import StartStrategy, anneal_targets, descents, start_strategies
from .parameters import EARLY_ROUNDS, MAX_EXACT_DEVICES
from .state import MappingState


def auto(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Minimise the problem's objective; break ties of stage times by their sum."""
    if task.problem.objective == "busiest-link":
        from .busiest_link import busiest_link  # with Pyomo, which takes a second to import

        busiest_link(task, search)
    else:
        stage_times(task, search)
        break_ties(task, search)


def layouts(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Offer the best construction, with a bound on the problem's objective."""
    if task.problem.objective == "busiest-link":
        from .busiest_link import busiest_link

        busiest_link(task, search, anneal=False)
        return
    mapping = MappingState(task, search)
    mapping.layouts()
    if search.best is not None:
        mapping.bound_segments()
        mapping.bound_thresholds()


def stage_times(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Minimise the longest stage time by the steps above, without breaking ties."""
    mapping = MappingState(task, search)
    with mapping.step("layouts"):
        mapping.layouts()
        mapping.bound_segments()
    if not isinstance(search.best, ReplicaPlacement) or search.is_over():
        return  # without a mapping, no cut is known that fits the memories
    devices = mapping.costs.size
    starts = start_strategies(mapping)
    if devices > 2 * MAX_EXACT_DEVICES:
        with mapping.step("annealing"):
            anneal_targets(mapping, starts, rounds=EARLY_ROUNDS)
    mapping.bound_thresholds()
    if devices > MAX_EXACT_DEVICES:
        from .bottleneck_stages import bottleneck_programs

        with mapping.step("programs"):
            bottleneck_programs(mapping)
    if devices <= MAX_EXACT_DEVICES and search.gap > OPTIMAL_GAP:
        with mapping.step("exact"):
            _exact(mapping)
    _go_on(mapping, starts)


def _go_on(mapping: MappingState, starts: list[StartStrategy]) -> None:
    """Anneal at targets until a limit, which know rings and devices of one speed, or descend."""
    if mapping.rings_only and not mapping.costs.unlike:
        with mapping.step("annealing"):
            anneal_targets(mapping, starts)
    else:
        descents(mapping, starts)


def _exact(mapping: MappingState) -> None:
    """Search all sets of devices for every stage."""
    from .exact import exact  # with numba

    search = mapping.search
    with search.phase("exact"):
        bound, found, finished = exact(
            mapping.costs, mapping.lower_bounds, mapping.bound_s, mapping.objective_s, search
        )
        for slots, sends_to in found:
            mapping.offer(slots, sends_to)
        if finished and mapping.rings_only:
            bound = mapping.objective_s
        mapping.raise_bound(bound, "all sets of devices")


def annealing(task: Task[DeviceMapping], search: Search[Solution]) -> None:
    """Anneal from another seed, at targets below the incumbent of all processes."""
    if task.problem.objective == "busiest-link":
        from .busiest_link import busiest_link

        busiest_link(task, search)
        return
    mapping = MappingState(task, search)
    mapping.layouts()
    mapping.bound_segments()  # annealing starts from block counts where there are segments
    if search.best is None or search.should_stop():
        return
    _go_on(mapping, start_strategies(mapping))
