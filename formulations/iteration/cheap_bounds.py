"""Bounds on an iteration that cost next to nothing.

*M times max-load*: the busiest device does its work M times. *Divisible work*: a chain of stages is
a division of the work, and none is faster than the best one (`divisible`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ...instances import Split, Throughput, TrainingJob
from ...instances.common.compiling import NotCompiled, compiled_only_if
from ...instances.model.kept_bytes import kept_bytes
from ..task import Task, pose
from ..throughput.cheap_bounds import compute_bounds, units_of_split
from ..throughput.hypergraph import Hypergraph, hypergraph
from .divisible import ORIGIN as DIVISIBLE
from .divisible import divisible_bound
from .line import numbers_of_stages

#: Passes of a schedule beyond which that is left to the searches: executing them takes a while.
MOST_PASSES = 1_500


def iteration_cheap_bounds(task: Task[TrainingJob]) -> Iterator[tuple[float, str]]:
    """Yield bounds with their origins, the quickest first."""
    problem = task.problem
    inner = max_load_task(task)
    graph = hypergraph(inner, units_of_split(inner))
    for bound, origin in compute_bounds(inner, graph):
        yield problem.batch * bound, origin
    if problem.split == Split.CONTIGUOUS:
        with suppress(NotCompiled), compiled_only_if(lambda: False):
            yield from _divisible(task, graph)


def _divisible(task: Task[TrainingJob], graph: Hypergraph) -> Iterator[tuple[float, str]]:
    """Yield the bound by divisible work, if no schedule has many passes."""
    kinds = np.flatnonzero(task.costs.count)
    work = graph.compute[kinds].min(axis=0).sum(axis=1)
    sizes = numbers_of_stages(task.problem, task.cluster.size, graph.size)
    most = 2 * task.problem.batch * max(sizes, default=0)
    if sizes and most <= MOST_PASSES and np.isfinite(work).all():
        yield divisible_bound(task.problem, sizes, work), DIVISIBLE


def max_load_task(task: Task[TrainingJob]) -> Task[Throughput]:
    """Return the task whose objective, times M, is below every plan's makespan.

    Every plan of the iteration is one of it. Stages of a chain that share a device, and the stage
    of a device, hold the activations of a microbatch all at once. The pieces of other splits, and
    several stages without a backward pass, need not: then only what is there all the time counts
    as memory.
    """
    problem, workload = task.problem, task.workload
    shared = problem.chunks_per_device > 1
    split = Split.NONCONTIGUOUS if shared else problem.split
    if problem.split != Split.CONTIGUOUS or (shared and not workload.backward.any()):
        _, resident, _ = kept_bytes(workload)
        workload = replace(workload, memory_bytes=resident)
    return pose(workload, task.cluster, Throughput(split=split, overlap=problem.overlap))
