"""Baselines for streams: equal stages, data parallelism, and PipeDream's optimizer.

Equal stages are what is done by hand, and data parallelism is their simplest case. PipeDream
chooses stages and replicas level by level of a hierarchy: on a level of n workers with bandwidth B,
for sets of layers between two states i ⊂ j:

    A[i][j][m] = min over states i ⊂ k ⊂ j and m' of max(A[i][k][m − m'], stage(k, j, m'))
    stage(k, j, m') = (T(k, j) + 4 (m' − 1) w(k, j) / (B m')) / m'

T is the time of the layers on the first level and A[k][j][n] of the level below on the next. Its
objective leaves transfers between stages and memory out; the plan is then judged with them.

References
----------
Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
section 3.1: states are the antichains of the layer graph, that is, its ideals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from ....formulations.job.stream import Staging, state_staging
from ....formulations.task import Task
from ....instances import InputError, PipelineJob, Solution, Stage, in_stages
from ....instances.common.arrays import Floats, Ints
from ....instances.common.errors import quote
from ...core.lattice import Lattice, chain, list_ideals
from ...core.search import Search
from .dp_kernel import divide_level

#: States beyond which only those of one topological order are used: the effort is cubic.
MOST_STATES = 700


#: Gap up to which a first plan is good enough, and the part of the time that better ones get.
POOR, FIRST_SHARE = 0.5, 0.1


def equal_stages(
    task: Task[PipelineJob], search: Search[Solution], enough: Callable[[], bool] = lambda: False
) -> None:
    """Give every stage the same number of layers, and all stages one d and t.

    What is counted are the layers that repeat, such as a transformer's blocks; what comes before
    the first of them and after the last joins the stages at the ends, or makes two stages of its
    own. Every number of stages, or that of the option ``stages``, every tensor degree and d is
    tried, with recomputation everywhere or nowhere, until it is `enough`.

    Raises
    ------
    InputError
        If the option is no number of stages.

    References
    ----------
    The baseline of Piper (NeurIPS 2021, section 5), as in the authors' program. That tells the
    blocks by their name; here they are the layers with weights and activations of one size, if
    these are more than half, else all layers.
    """
    staging = state_staging(task)
    cuts = list(_cuts(staging))
    if asked := task.options.get("stages"):
        cuts = [cut for cut in cuts if str(cut.max() + 1) == asked]
        if not cuts:
            most = max(int(cut.max()) + 1 for cut in _cuts(staging))
            raise InputError(f"method equal-stages: stages: {quote(asked)}; use 1 to {most}")
    for t in range(len(staging.degrees)):
        for again in (False, True):
            options = _options(staging, t, again)
            if options is None:
                continue
            for stage_of in cuts:
                if enough() or search.should_stop():
                    return
                _offer(task, staging, search, t, options, stage_of)
    _found(search, "equal stages")


def data_parallel(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Make one stage of everything, with as many replicas as there are devices for."""
    staging = state_staging(task)
    for t in range(len(staging.degrees)):
        for again in (False, True):
            options = _options(staging, t, again)
            if options is not None:
                _offer(task, staging, search, t, options, np.zeros(staging.size, np.int64))
    _found(search, "one stage with replicas")


def _found(search: Search[Solution], what: str) -> None:
    if search.best is None:
        search.note(f"no plan found with {what}; others may exist")


def _cuts(staging: Staging) -> Iterator[Ints]:
    """Yield the stage of each unit, for every number of stages, with the ends apart or not."""
    counted = _repeated(staging)[::-1]  # units run against the edges
    rank = np.cumsum(counted) - 1  # a layer that is not counted follows the one before it
    number = int(counted.sum())
    before, after = rank < 0, np.arange(staging.size) > np.flatnonzero(counted)[-1]
    for stages in range(1, number + 1):
        # the last ones have a layer more
        sizes = np.full(stages, number // stages)
        sizes[stages - number % stages :] += 1
        of_rank = np.repeat(np.arange(stages), sizes)
        stage_of = of_rank[rank.clip(0)]
        yield stage_of[::-1]
        if before.any() or after.any():
            apart = np.where(before, -1, np.where(after, stages, stage_of))
            yield (apart - apart[0])[::-1]


def _repeated(staging: Staging) -> Ints:
    """Return which units are of the largest group alike in sizes, if that is most of them."""
    alike = [
        tuple(
            (t, float(staging.weight[c]), float(staging.per_microbatch[c]))
            for t in range(len(staging.degrees))
            for c in staging.choices(unit, t)
        )
        for unit in range(staging.size)
    ]
    sizes, count = Counter(alike).most_common(1)[0]
    if 2 * count <= staging.size:
        return np.ones(staging.size, np.bool_)
    return np.array([own == sizes for own in alike])


def first_plan(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Offer data parallelism; if it is poor or breaks a rule, equal stages until one is not."""
    share = search.part(FIRST_SHARE)
    if search.best is None:
        search.method = "data-parallel"
        data_parallel(task, search)
    if search.gap > POOR:
        search.method = "equal-stages"

        def enough() -> bool:
            return search.gap <= POOR or (search.best is not None and share.should_stop())

        equal_stages(task, search, enough)


def _options(staging: Staging, t: int, again: bool) -> Ints | None:
    """Return each unit's fastest configuration of degree number t that recomputes, or does not."""
    recomputes = staging.layers.recomputes[staging.configuration]
    options = np.zeros(staging.size, np.int64)
    for unit in range(staging.size):
        own = list(staging.choices(unit, t))
        if not own:
            return None
        wanted = [c for c in own if recomputes[c] == again] or own
        options[unit] = min(wanted, key=lambda c: (staging.time[c], staging.per_microbatch[c]))
    return options


def _offer(
    task: Task[PipelineJob],
    staging: Staging,
    search: Search[Solution],
    t: int,
    options: Ints,
    stage_of: Ints,
) -> None:
    """Offer plans with these stages: from the most replicas on, while fewer are no worse."""
    stages = int(stage_of.max()) + 1
    parts = [np.flatnonzero(stage_of == s) for s in range(stages)]
    for k, count in enumerate(staging.count.tolist()):
        room = min(count // int(staging.degrees[t]), staging.most_replicas) // stages
        least = np.inf
        for p in np.flatnonzero(staging.divisors <= room)[::-1].tolist():
            if not staging.allowed[:, p].all():
                continue
            plan = in_stages(
                [
                    staging.stage(part, options[part], int(staging.divisors[p]), t, k)
                    for part in parts
                ],
                task.cluster,
            )
            value = search.judge(plan)
            if value < search.objective:
                search.offer(plan)
            if not value < least:  # fewer replicas do not take less memory either
                break
            least = value


def pipedream(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Plan as PipeDream does, for `server_devices` per server if the problem says.

    Where devices differ, on those of one kind. It knows no tensor degrees, and fills servers.
    """
    staging = state_staging(task)
    if staging.degrees[0] != 1 or any(not staging.choices(v, 0) for v in range(staging.size)):
        search.note("pipedream: it knows no tensor degrees, and some layer is not allowed degree 1")
        return
    with search.phase("build"):
        # an ideal holds what lies behind; states are counted from the pipeline's end
        units = np.arange(staging.size)
        lattice = list_ideals(units, staging.edges[:, ::-1], MOST_STATES, search)
        if not lattice.complete:
            if search.should_stop():
                return
            lattice = chain(units)
    for kind in range(len(staging.kinds)):
        if search.should_stop():
            return
        with search.phase("solve"):
            stages = _plan(staging, lattice, kind)
        search.offer(in_stages(stages, task.cluster))
    if search.best is None:
        search.note("pipedream: its plan, made without memory and rules, breaks them")


def _plan(staging: Staging, lattice: Lattice, kind: int) -> list[Stage]:
    options = [
        min(staging.choices(unit, 0), key=lambda c: (staging.time[c], staging.per_microbatch[c]))
        for unit in range(staging.size)
    ]
    slowdown = float(staging.slowdown[kind])
    time = _between(lattice, staging.time[options] * slowdown)
    weight = _between(lattice, staging.weight[options])
    inside = ~(lattice.members[:, None, :] & ~lattice.members[None, :, :]).any(axis=2)
    devices = int(staging.count[kind])
    if staging.problem.server_devices is None:
        levels = [(devices, staging.bandwidth)]
    else:
        per_server = min(staging.problem.server_devices, devices)
        levels = [
            (per_server, staging.server_bandwidth), (devices // per_server, staging.bandwidth)
        ]  # fmt: skip
    tables = []
    for workers, bandwidth in levels:
        best, cut, last = divide_level(time, weight, inside, workers, 4 / bandwidth)
        tables.append((cut, last, workers))
        time = best[:, :, workers]
    found = _unfold(tables, len(tables) - 1, 0, lattice.size - 1, 1)
    stages = []
    for low, high, replicas in found:
        units = lattice.between(low, high)
        chosen = [options[unit] for unit in units.tolist()]
        stages.append(staging.stage(units.tolist(), chosen, replicas, 0, kind))
    return stages[::-1]


def _between(lattice: Lattice, value: Floats) -> Floats:
    """Return Σ value over the units between each two states."""
    sums = lattice.sums(value)
    return sums[None, :] - sums[:, None]


def _unfold(
    tables: list[tuple[Floats, Floats, int]], level: int, low: int, high: int, replicas: int
) -> list[tuple[int, int, int]]:
    """Return the stages between two states as (state, state, replicas), pipeline's end first."""
    if level < 0:
        return [(low, high, replicas)]
    cut, last, workers = tables[level]
    stages: list[tuple[int, int, int]] = []
    at, left = high, workers
    while at != low:
        before, used = int(cut[low, at, left]), int(last[low, at, left])
        stages = _unfold(tables, level - 1, before, at, replicas * used) + stages
        at, left = before, left - used
    return stages
