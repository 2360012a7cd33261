"""The methods `auto` and `dp` for pipelines: each starts the solvers for stream or iteration."""

from __future__ import annotations

from ...formulations.task import Task
from ...instances import PipelineJob, Solution, is_stream
from ..core.search import Search
from .iteration.exact import chain_search
from .iteration.frameworks import offer_defaults
from .iteration.pieces import pieces_search
from .stream.baselines import first_plan
from .stream.dp import stream_dp


def auto(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Plan a stream by its DP; an iteration by chains of stages, and if asked by pieces.

    The DP of a stream is exact, whatever the devices. Before it, a quick plan by data parallelism
    or equal stages needs no compiled kernels. The search over chains is exact for contiguous
    splits; with other splits, placements of small max-load and moves of units follow.
    """
    if is_stream(task.problem):
        first_plan(task, search)
        search.method = "dp"
        search.note("auto: the DP over ideals")
        stream_dp(task, search)
        return
    offer_defaults(task, search)
    if task.problem.split == "contiguous":
        search.method = "dp"
        search.note("auto: chains of stages over ideals")
        chain_search(task, search)
        return
    search.method = "pieces"
    search.note("auto: chains of stages, then placements of small max-load, then moves of units")
    chain_search(task, search)
    if not search.should_stop():
        pieces_search(task, search)


def dp(task: Task[PipelineJob], search: Search[Solution]) -> None:
    """Find the best plan by dynamic programming over ideals, and prove it."""
    (stream_dp if is_stream(task.problem) else chain_search)(task, search)
