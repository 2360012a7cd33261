"""Schedules of any order on torch's pipelining runtime, for torch's own stages.

Private, and moving between versions: `_PipelineScheduleRuntime` with
`_prepare_schedule_with_comms` (`_load_actions` in 2.6), `_Action`, and the first messages of a
`PipelineStage`. Tested with torch 2.6, 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _Action,
    _PipelineScheduleRuntime,
)

from ..schedules.actions import Action

#: Names of torch's actions in an evaluation.
_FORWARD = ("FORWARD", "SEND_F", "RECV_F", "UNSHARD", "RESHARD")


class NeighbourStage(PipelineStage):  # type: ignore[misc]  # torch does not say its type
    """Stage that sends no first message to its own rank.

    torch lets every stage send a first message to its neighbours, which at the turn of a V are on
    the same rank, and gloo has no message of a rank to itself.
    """

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        own = dist.get_rank()
        return [one for one in super()._get_init_p2p_neighbors_ops() if one.peer != own]


def order_runtime(
    stages: Sequence[Any],
    rows: Mapping[int, Sequence[Action]],
    microbatches: int,
    **options: Any,
) -> Any:
    """Return torch's runtime with a schedule, for any supported version of torch.

    `options` are those of the runtime, `loss_fn` for instance.
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


def evaluate_forward(runtime: Any, *inputs: Any, **options: Any) -> Any:
    """Evaluate a batch by the forward passes of a schedule and their messages.

    torch's own evaluation walks through backward passes, and fails at one whose stage hands its
    gradient to the stage before it on the same rank, as in V schedules.
    """
    order = getattr(runtime, "pipeline_order_with_comms", None)
    if order is not None:
        forward = {rank: _forward_actions(row) for rank, row in order.items()}
        runtime.pipeline_order_with_comms = forward
    try:
        return runtime.eval(*inputs, **options)
    finally:
        if order is not None:
            runtime.pipeline_order_with_comms = order
        for own in ("_stage", "_stages"):  # torch 2.11 trains on in buffers that have no gradients
            if not getattr(runtime, f"{own}_backward_initialized", True):
                setattr(runtime, f"{own}_forward_initialized", False)


def _forward_actions(row: Sequence[Any]) -> list[Any]:
    """Return a rank's actions without backward passes, their messages, and gathers for these."""
    kept: dict[int, Any] = {}
    unused: dict[int, int] = {}  # by stage, its gather of weights that no forward pass has used yet
    actions = (action for one in row for action in (getattr(one, "sub_actions", None) or (one,)))
    for number, action in enumerate(actions):
        kind, stage = action.computation_type.name, action.stage_index
        if kind == "UNSHARD":
            unused[stage] = number
        elif kind == "FORWARD":
            unused.pop(stage, None)
        elif kind == "RESHARD" and stage in unused:
            del kept[unused.pop(stage)]
            continue
        if kind in _FORWARD:
            kept[number] = action
    return list(kept.values())
