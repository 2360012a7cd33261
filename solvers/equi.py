"""Equal stages: what is done by hand. A baseline, and data parallelism as its simplest case."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..formulations.task import Task
from ..formulations.training import Staging, state_staging
from ..instances import Solution, Stage, in_stages
from ..instances.arrays import Ints
from .search import Search


def equi(task: Task, search: Search[Solution], enough: Callable[[], bool] = lambda: False) -> None:
    """Cut one topological order into equal shares of time, with one d and t for all stages.

    Every number of stages, every tensor degree, recomputation everywhere or nowhere, and the
    largest d for which there are devices are tried, until it is `enough`.

    References
    ----------
    The baseline of Piper (NeurIPS 2021, section 5); how stages are rounded is ours: a node is in
    the stage in which its share of the time ends.
    """
    staging = state_staging(task)
    for t in range(len(staging.degrees)):
        for again in (False, True):
            options = _options(staging, t, again)
            if options is None:
                continue
            for stages in range(1, min(staging.size, int(staging.count.max())) + 1):
                if enough() or search.should_stop():
                    return
                _offer(task, staging, search, t, options, stages)


def data_parallel(task: Task, search: Search[Solution]) -> None:
    """Make one stage of everything, with as many replicas as there are devices for."""
    staging = state_staging(task)
    for t in range(len(staging.degrees)):
        for again in (False, True):
            options = _options(staging, t, again)
            if options is not None:
                _offer(task, staging, search, t, options, 1)


def first_plan(task: Task, search: Search[Solution]) -> None:
    """Offer data parallelism; if it breaks a rule, equal stages until there is a plan."""
    if search.best is None:
        search.method = "data-parallel"
        data_parallel(task, search)
    if search.best is None:
        search.method = "equi"
        equi(task, search, enough=lambda: search.best is not None)


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
    task: Task, staging: Staging, search: Search[Solution], t: int, options: Ints, stages: int
) -> None:
    forward = np.arange(staging.size)[::-1]
    ends = np.cumsum(staging.time[options[forward]])
    share = ends / max(ends[-1], 1e-300) * stages
    stage_of = np.ceil(share - 1e-9).clip(1, stages).astype(np.int64)
    degree = int(staging.degrees[t])
    for k, kind in enumerate(staging.kinds.tolist()):
        room = min(int(staging.count[k]) // degree, staging.most_replicas) // stages
        replicas = [
            d
            for p, d in enumerate(staging.divisors.tolist())
            if d <= room and staging.allowed[:, p].all()
        ]
        parts = [forward[stage_of == s] for s in range(1, stages + 1)]
        if not replicas or any(len(part) == 0 for part in parts):
            continue
        made = []
        for part in parts:
            pairs = sorted(
                (int(staging.node_of[unit]), int(staging.configuration[options[unit]]))
                for unit in part.tolist()
            )
            nodes, chosen = tuple(v for v, _ in pairs), tuple(c for _, c in pairs)
            made.append(Stage(nodes, chosen, replicas[-1], degree, kind))
        search.offer(in_stages(made, task.cluster))
