"""PipeDream's optimizer: stages and replicas, level by level of a hierarchy. A baseline.

On a level of n workers with bandwidth B, for sets of layers between two states i ⊂ j:

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

import numpy as np

from ...formulations.task import Task
from ...formulations.training.staging import Staging, state_staging
from ...instances import Solution, Stage, TrainingJob, in_stages
from ...instances.common.arrays import Floats
from ..core.lattice import Lattice, chain, list_ideals
from ..core.lattice_kernel import ideal_sums
from ..core.search import Search
from .pipedream_kernel import divide_level

#: States beyond which only those of one topological order are used: the effort is cubic.
MOST_STATES = 700


def pipedream(task: Task[TrainingJob], search: Search[Solution]) -> None:
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
        units = np.setdiff1d(lattice.units(high), lattice.units(low), assume_unique=True)
        chosen = [options[unit] for unit in units.tolist()]
        stages.append(staging.stage(units.tolist(), chosen, replicas, 0, kind))
    return stages[::-1]


def _between(lattice: Lattice, value: Floats) -> Floats:
    """Return Σ value over the units between each two states."""
    sums: Floats = ideal_sums(lattice.start, lattice.unit, lattice.to, value)
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
