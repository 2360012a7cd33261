"""Equal stages: what is done by hand. A baseline, and data parallelism as its simplest case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from ...formulations.task import Task
from ...formulations.training.staging import Staging, state_staging
from ...instances import Solution, TrainingJob, in_stages
from ...instances.common.arrays import Ints
from ..core.search import Search, Share

#: Gap up to which a first plan is good enough, and the part of the time that better ones get.
POOR, FIRST_SHARE = 0.5, 0.1


def equal_stages(
    task: Task[TrainingJob], search: Search[Solution], enough: Callable[[], bool] = lambda: False
) -> None:
    """Give every stage the same number of layers, and all stages one d and t.

    What is counted are the layers that repeat, such as a transformer's blocks; what comes before
    the first of them and after the last joins the stages at the ends, or makes two stages of its
    own. Every number of stages, tensor degree and d is tried, with recomputation everywhere or
    nowhere, until it is `enough`.

    References
    ----------
    The baseline of Piper (NeurIPS 2021, section 5), as in the authors' program. That tells the
    blocks by their name; here they are the layers with weights and activations of one size, if
    these are more than half, else all layers.
    """
    staging = state_staging(task)
    cuts = list(_cuts(staging))
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


def data_parallel(task: Task[TrainingJob], search: Search[Solution]) -> None:
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


def first_plan(task: Task[TrainingJob], search: Search[Solution]) -> None:
    """Offer data parallelism; if it is poor or breaks a rule, equal stages until one is not."""
    share = Share(search, FIRST_SHARE)
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
    task: Task[TrainingJob],
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
            value = search.value(plan)
            if value < search.objective:
                search.offer(plan)
            if not value < least:  # fewer replicas do not take less memory either
                break
            least = value
