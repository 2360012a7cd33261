"""Bounds on the longest stage that cost next to nothing, for every partition and every mapping.

With m microbatches a stage takes at least m times the seconds of its nodes, whether messages
overlap them or not. So for S stages, with p_v the seconds of node v,

    T ≥ m max_c Σ_{v∈c} p_v   over colours c, whose nodes share a stage, and single nodes,
    T ≥ m Σ_v p_v / S.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...instances import DeviceMapping
from ...instances.common.units import TIME_UNITS
from ...instances.model.stage_costs import accelerator_seconds
from ..task import Task
from ..throughput.certificate import PROOF_MARGIN


def mapping_cheap_bounds(task: Task[DeviceMapping]) -> Iterator[tuple[float, str]]:
    """Yield bounds on the longest stage with their origins; none for the busiest link. O(n)."""
    problem, workload = task.problem, task.workload
    if problem.objective != "stage-time":
        return
    seconds = accelerator_seconds(workload)
    heaviest = max(
        float(seconds.max(initial=0.0)),
        *(float(seconds[list(nodes)].sum()) for nodes in workload.colour_classes),
        0.0,
    )
    unit = problem.microbatches / TIME_UNITS[workload.time_unit] * (1 - PROOF_MARGIN)
    yield heaviest * unit, "heaviest unit"
    yield float(seconds.sum()) / problem.stages * unit, "total work over all stages"
