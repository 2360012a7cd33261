"""All-reduces of replicas' gradients: when a schedule has them, and how long they take.

With one version of the weights, all replicas of a stage reduce their gradients at the end of the
batch. PipeDream has no batches: replicas reduce after every round, in which each has done one
microbatch. 2BW reduces the gradients of a batch while the next one runs, in equal slices, one after
every round: so no device stops for long, and stages next to each other do not wait for it.

References
----------
Narayanan et al., "PipeDream", SOSP 2019, section 3.3 (replicated stages); "Memory-Efficient
Pipeline-Parallel DNN Training", ICML 2021 (2BW). Slices are ours.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...instances.common.arrays import Floats
from ..simulate.network import Network, all_reduce_times
from ..simulate.stages import BACKWARD, StageGraph
from .actions import Kind, Schedule, WeightVersions


def all_reduce_actions(
    stages: StageGraph, versions: WeightVersions | str, network: Network
) -> Floats:
    """Return, shape (P,), how long one all-reduce action of each stage takes.

    InputError if nothing says how fast replicas talk to each other.
    """
    times = all_reduce_times(stages, network)
    if versions != WeightVersions.TWO:
        return times
    number = np.array([len(ring) for ring in stages.replicas])
    batch = stages.batch or int(number.max())
    sliced: Floats = times * np.minimum(1.0, number / batch)
    return sliced


def at_the_end(schedule: Schedule, stages: StageGraph) -> Schedule:
    """Return the schedule of one batch with an all-reduce per replicated stage at its end."""
    tables = list(schedule.actions)
    for stage in np.argsort(stages.rank[1::2], kind="stable").tolist():
        ring = stages.replicas[stage]
        if len(ring) > 1 and stages.present[stage, BACKWARD]:
            row = np.array([[stage, Kind.REDUCE_GRAD, 0]], dtype=np.int32)
            for d in ring:
                tables[d] = np.concatenate((tables[d], row))
    return replace(schedule, actions=tuple(tables))
