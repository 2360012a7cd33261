"""Schedules by name: each device's order of passes, for stages and a number of microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ...instances import InputError
from ...instances.common.arrays import Ints
from ...instances.model.schedule import check_size
from ..simulate.network import HostMemory, Network, priced_in
from ..simulate.stages import BACKWARD, StageGraph
from .actions import (
    Action,
    Kind,
    Schedule,
    WeightVersions,
    parse_action,
    read_csv,
    schedule_of,
    write_csv,
)
from .patterns import (
    at_the_end,
    flushed,
    gpipe,
    held,
    inference,
    interleaved,
    is_interleaved,
    is_plain,
    list_schedule,
    pipedream,
    pipedream_2bw,
    plain_1f1b,
    plain_zero_bubble,
    single,
    v_shaped,
)
from .validate import ScheduleError, step_table, validate


def one_f_one_b(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """1F1B: the usual pattern if each device holds one stage, else its generalised cyclic order."""
    if all(len(own) <= 1 for own in held(stages)):
        return plain_1f1b(stages, microbatches)
    return flushed(stages, microbatches, network)


def interleaved_1f1b(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """Interleaved 1F1B: Megatron's order if the stages allow it, else 1F1B."""
    if not is_plain(stages) and is_interleaved(stages, microbatches):
        return interleaved(stages, microbatches)
    return replace(one_f_one_b(stages, microbatches, network), name="interleaved")


def zero_bubble_h1(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """ZB-H1: the peak memory of 1F1B, a third of its bubble."""
    if is_plain(stages):
        return plain_zero_bubble(stages, microbatches, 1)
    limit = _enough(stages, network)
    most = np.full(stages.count, int(limit.max()))
    return list_schedule(stages, microbatches, "zb-h1", limit=limit, weight_limit=most)


def zero_bubble_h2(stages: StageGraph, microbatches: int, network: Network) -> Schedule:
    """ZB-H2: twice the memory of 1F1B, no bubble."""
    if is_plain(stages):
        return plain_zero_bubble(stages, microbatches, 2)
    limit = _enough(stages, network)
    most = np.full(stages.count, 2 * int(limit.max()) - 1)
    return list_schedule(stages, microbatches, "zb-h2", limit=2 * limit - 1, weight_limit=most)


def _enough(stages: StageGraph, network: Network) -> Ints:
    """Return the microbatches in flight that keep the bottleneck busy, shape (P,), as in 1F1B."""
    if all(len(own) <= 1 for own in held(stages)):
        return stages.in_flight
    depth = flushed(stages, 1, network).depth or 1
    return np.maximum(stages.in_flight, depth)


#: Function that makes the schedule of stages, for a number of microbatches.
Generator = Callable[[StageGraph, int, Network], Schedule]

#: Every schedule by the name that users give.
SCHEDULES: Mapping[str, Generator] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "interleaved": interleaved_1f1b,
        "pipedream": pipedream,
        "2bw": pipedream_2bw,
        "zb-h1": zero_bubble_h1,
        "zb-h2": zero_bubble_h2,
        "single": lambda stages, microbatches, _: single(stages, microbatches),
        "inference": inference,
    }
)

#: Further schedules of training jobs, whose stages lie in a V.
_OF_JOBS: Mapping[str, Generator] = MappingProxyType(
    {
        "zb-v": lambda stages, microbatches, _: v_shaped(stages, microbatches, "zb-v"),
        "dualpipe-v": lambda stages, microbatches, _: v_shaped(stages, microbatches, "dualpipe-v"),
    }
)


def make_schedule(
    name: str, stages: StageGraph, microbatches: int, network: Network | None = None
) -> Schedule:
    """Return the schedule called `name`, with the replicas' all-reduces.

    Parameters
    ----------
    name
        One of `SCHEDULES`, or ``zb-v`` or ``dualpipe-v`` for stages that lie in a V.
    stages
        Stages to schedule, for example from `chain`.
    microbatches
        Number of microbatches.
    network
        Model of transfers, which some orders take into account; default: `HostMemory()`.

    Returns
    -------
    Schedule
        A row of actions per device.

    Raises
    ------
    InputError
        If there is no such schedule, or it does not fit the workload.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.runtime.simulate import chain
    >>> schedule = stagecut.make_schedule("1f1b", chain([1.0, 1.0], [2.0, 2.0]), 4)
    >>> schedule.size
    16
    """
    generator = SCHEDULES.get(name) or _OF_JOBS.get(name)
    if generator is None:
        raise InputError(f"schedule: no {name!r}; use one of {', '.join(SCHEDULES)}")
    check_size(stages.count, microbatches)
    network = network or HostMemory()
    schedule = generator(priced_in(stages, network), microbatches, network)
    if schedule.versions != WeightVersions.ONE or not stages.present[:, BACKWARD].any():
        return schedule
    return at_the_end(schedule, stages)


__all__ = [
    "SCHEDULES",
    "Action",
    "Kind",
    "Schedule",
    "ScheduleError",
    "WeightVersions",
    "at_the_end",
    "list_schedule",
    "make_schedule",
    "parse_action",
    "read_csv",
    "schedule_of",
    "step_table",
    "validate",
    "write_csv",
]
