"""Schedules on torch's pipelining runtime, with any map of stages to ranks.

torch's runtime for schedules is driven with stages of our own (it asks a stage for computations and
for messages, and nothing else), so that only tensors with a gradient travel back, and everything
else about stages stays ours. Private, and moving between versions: `_PipelineScheduleRuntime` with
`_prepare_schedule_with_comms` (`_load_actions` in 2.6), `_step_microbatches`, `_initialize_stages`,
and `_Action`. Tested with torch 2.6, 2.13 and 2.15.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    _Action,
    _PipelineScheduleRuntime,
)

from ...instances import StagecutError
from ..schedules.actions import Action, Kind, Schedule
from .channel import RankChannel, Spec
from .stage import StageRunner, Tensors


class TorchSchedule:
    """A schedule as torch runs it on this rank.

    Parameters
    ----------
    stages
        Those of this rank.
    count
        Stages of all ranks.
    schedule
        What each rank does; a row per rank.
    group
        The ranks of the pipeline.
    device
        Of this rank.
    training
        Whether backward passes run; else those of the schedule are passed over.

    Raises
    ------
    StagecutError
        If this version of torch is not one that we know.
    """

    def __init__(
        self,
        stages: Sequence[StageRunner],
        count: int,
        schedule: Schedule,
        group: dist.ProcessGroup,
        device: torch.device,
        training: bool,
    ) -> None:
        self._microbatches = schedule.microbatches
        channel = RankChannel(group, device)
        self._stages = [_TorchStage(stage, count, channel, training) for stage in stages]
        rows = {r: schedule.of(r) for r in range(channel.size)}
        try:
            self._runtime = order_runtime(self._stages, rows, schedule.microbatches, training)
            # Our stages need no warm-up, and nothing is left to find out about shapes.
            self._runtime._initialize_stages = lambda *_args, **_kwargs: None
        except (AttributeError, TypeError, AssertionError) as error:
            raise StagecutError(
                f"torch {torch.__version__}: its pipelining is not as we know it ({error}); "
                "use torch 2.6 to 2.15"
            ) from error

    def run(self, inputs: Sequence[Tensors]) -> None:
        """Run a batch: `inputs` are the model's, a tuple per microbatch; the stages keep results.

        Ranks without the first stage need none.
        """
        given = list(inputs) or [()] * self._microbatches
        self._runtime._step_microbatches(given, [{}] * self._microbatches)
        for stage in self._stages:
            stage.clear()


def order_runtime(
    stages: Sequence[Any],
    rows: Mapping[int, Sequence[Action]],
    microbatches: int,
    training: bool = True,
    **options: Any,
) -> Any:
    """Return torch's runtime with a schedule, for any supported version of torch.

    `options` are its own, `loss_fn` for instance.
    """
    rank_of = {a.stage: rank for rank, row in rows.items() for a in row}
    known = inspect.signature(PipelineScheduleMulti.__init__).parameters
    options = {"scale_grads": False, "stage_index_to_group_rank": rank_of, **options}
    given = {key: value for key, value in options.items() if key in known}
    runtime: Any = _PipelineScheduleRuntime(list(stages), n_microbatches=microbatches, **given)
    oldest = not hasattr(runtime, "_prepare_schedule_with_comms")
    if not training and not oldest:  # newer ones want a backward pass for every forward pass
        rows = {rank: [*row, *_backward_of(row)] for rank, row in rows.items()}
    actions = {rank: [_Action.from_str(str(a)) for a in row] for rank, row in rows.items()}
    if oldest:
        runtime._load_actions(actions)
    else:
        runtime._prepare_schedule_with_comms(actions)
    return runtime


def _backward_of(row: Sequence[Action]) -> list[Action]:
    """Return the backward passes that torch expects after forward ones; they do nothing."""
    stages = sorted({a.stage for a in row}, reverse=True)
    order = [(j, s) for j in sorted({a.microbatch for a in row}) for s in stages]
    return [Action(s, Kind.B, j) for j, s in order]


class _TorchStage:
    """A stage as torch's runtime asks for it; microbatches are *chunks* there."""

    def __init__(
        self, stage: StageRunner, count: int, channel: RankChannel, training: bool
    ) -> None:
        self.stage = stage
        self.channel = channel
        self.submod = stage.piece.module
        self.stage_index = stage.piece.index
        self.num_stages = count
        self.group_rank, self.group_size = channel.rank, channel.size
        self.stage_index_to_group_rank: dict[int, int] = {}  # set by the runtime
        self.is_first = self.stage_index == 0
        self.is_last = self.stage_index == self.num_stages - 1
        self.has_backward = training  # torch 2.6 puts another value here
        self.training = training
        values = stage.piece.values
        self.takes = [Spec(values[n].shape, values[n].dtype) for n in stage.piece.inputs]
        graded = [values[n] for n in stage.piece.outputs if values[n].grad]
        self.gets_back = [Spec(value.shape, value.dtype) for value in graded]
        self.buffers: dict[tuple[Kind, int], torch.Tensor] = {}
        self.given: dict[tuple[Kind, int], Sequence[torch.Tensor]] = {}
        self.outputs: dict[int, Tensors] = {}
        self.gradients: dict[int, Tensors] = {}

    def clear(self) -> None:
        """Forget the last batch."""
        for kept in (self.buffers, self.given, self.outputs, self.gradients):
            kept.clear()

    def get_fwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        """Channel that bring the inputs in."""
        return self._receive(Kind.F, chunk, self.takes, self.stage_index - 1)

    def set_local_fwd_input(self, outputs: Tensors, chunk: int) -> None:
        """Take the inputs from a stage of this rank."""
        self.given[Kind.F, chunk] = outputs

    def forward_one_chunk(
        self, chunk: int, args: Tensors, _kwargs: object = None, **_options: object
    ) -> Tensors:
        """Run a forward pass."""
        given = args if self.is_first else self._received(Kind.F, chunk, self.takes)
        self.outputs[chunk] = self.stage.forward(chunk, given)
        return self.outputs[chunk]

    def get_fwd_send_ops(self, chunk: int) -> list[dist.P2POp]:
        """Channel that take the outputs out."""
        return self._send(self.outputs.pop(chunk), self.stage_index + 1)

    def get_bwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        """Channel that bring gradients of the outputs in."""
        if not self.training:
            return []
        return self._receive(Kind.B, chunk, self.gets_back, self.stage_index + 1)

    def set_local_bwd_input(self, gradients: Tensors, chunk: int) -> None:
        """Take the gradients of the outputs from a stage of this rank."""
        self.given[Kind.B, chunk] = gradients

    def backward_one_chunk(
        self, chunk: int, full_backward: bool = True, **_options: object
    ) -> None:
        """Run a backward pass, or its first half."""
        self.outputs.pop(chunk, None)
        if not self.training:
            self.gradients[chunk] = ()
            return
        given = () if self.is_last else self._received(Kind.B, chunk, self.gets_back)
        run = self.stage.backward if full_backward else self.stage.backward_inputs
        self.gradients[chunk] = run(chunk, given)

    def backward_weight_one_chunk(self, chunk: int, **_options: object) -> None:
        """Run the second half of a backward pass."""
        self.stage.backward_weights(chunk)

    def get_local_bwd_output(self, chunk: int) -> Tensors:
        """Hand the gradients of the inputs to a stage of this rank."""
        return self.gradients.pop(chunk)

    def get_bwd_send_ops(self, chunk: int) -> list[dist.P2POp]:
        """Channel that take the gradients of the inputs out."""
        gradients = self.gradients.pop(chunk)
        return self._send(gradients, self.stage_index - 1) if self.training else []

    def scale_grads(self, _factor: int) -> None:
        """Nothing: the loss is scaled, since stages of a rank may share parameters."""

    def perform_reduce_grad(self, _factor: int) -> None:
        """Nothing: gradients are added up after the batch."""

    def release_fwd_send_outputs(self, *_args: object, **_options: object) -> None:
        """Nothing to release: tensors are released with their message."""

    def _receive(
        self, kind: Kind, chunk: int, specs: Sequence[Spec], source: int
    ) -> list[dist.P2POp]:
        buffer = self.buffers[kind, chunk] = self.channel.buffer(specs)
        return self.channel.receive(buffer, self.stage_index_to_group_rank[source])

    def _received(self, kind: Kind, chunk: int, specs: Sequence[Spec]) -> Sequence[torch.Tensor]:
        if (kind, chunk) in self.given:
            return self.given.pop((kind, chunk))
        return self.channel.unpack(self.buffers.pop((kind, chunk)), specs)

    def _send(self, tensors: Tensors, target: int) -> list[dist.P2POp]:
        return self.channel.send(tensors, self.stage_index_to_group_rank[target])
