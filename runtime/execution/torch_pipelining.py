"""Schedules of any order on torch's pipelining runtime, for stages of torch's own.

Private, and moving between versions: `_PipelineScheduleRuntime` with
`_prepare_schedule_with_comms` (`_load_actions` in 2.6), and `_Action`. Tested with torch 2.6, 2.13
and 2.15.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _Action,
    _PipelineScheduleRuntime,
)

from ..schedules.actions import Action


def order_runtime(
    stages: Sequence[Any],
    rows: Mapping[int, Sequence[Action]],
    microbatches: int,
    **options: Any,
) -> Any:
    """Return torch's runtime with a schedule, for any supported version of torch.

    `options` are its own, `loss_fn` for instance.
    """
    rank_of = {a.stage: rank for rank, row in rows.items() for a in row}
    known = inspect.signature(PipelineScheduleMulti.__init__).parameters
    options = {"stage_index_to_group_rank": rank_of, **options}
    given = {key: value for key, value in options.items() if key in known}
    runtime: Any = _PipelineScheduleRuntime(list(stages), n_microbatches=microbatches, **given)
    actions = {rank: [_Action.from_str(str(a)) for a in row] for rank, row in rows.items()}
    if hasattr(runtime, "_prepare_schedule_with_comms"):
        runtime._prepare_schedule_with_comms(actions)
    else:
        runtime._load_actions(actions)
    return runtime


#: What a forward pass takes, by the names of torch's kinds of actions.
_FORWARD = ("FORWARD", "SEND_F", "RECV_F", "UNSHARD", "RESHARD")


@contextmanager
def forward_passes_alone(runtime: Any) -> Iterator[None]:
    """Leave out a runtime's backward passes: torch's `eval` does some of V-shaped schedules."""
    whole = getattr(runtime, "pipeline_order_with_comms", None)
    if whole is None:  # a schedule with a loop of its own
        yield
        return
    runtime.pipeline_order_with_comms = {
        rank: [
            part
            for action in row
            for part in (getattr(action, "sub_actions", None) or (action,))
            if part.computation_type.name in _FORWARD
        ]
        for rank, row in whole.items()
    }
    try:
        yield
    finally:
        runtime.pipeline_order_with_comms = whole
