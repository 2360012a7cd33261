"""The one home of torch's private names: any schedule on any map of stages to ranks.

torch's runtime for schedules is driven with stages of our own (it asks a stage for computations and
for messages, and nothing else), so that only tensors with a gradient travel back, and everything
else about stages stays ours. Private, and moving between versions: `_PipelineScheduleRuntime` with
`_prepare_schedule_with_comms`, `_step_microbatches`, `_initialize_stages`, and `_Action`. Tested
with torch 2.6, 2.13 and 2.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from ...instances import StagecutError
from ..schedules.actions import Action, Kind, Schedule
from .stage import Stage, Tensors


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
        stages: Sequence[Stage],
        count: int,
        schedule: Schedule,
        group: dist.ProcessGroup,
        device: torch.device,
        training: bool,
    ) -> None:
        self._microbatches = schedule.microbatches
        messages = Messages(group, device)
        self._stages = [_TorchStage(stage, count, messages, training) for stage in stages]
        rows = [schedule.of(r) for r in range(messages.size)]
        if not training:
            rows = [[*row, *_backward_of(row)] for row in rows]
        try:
            self._runtime: Any = _PipelineScheduleRuntime(
                self._stages, n_microbatches=schedule.microbatches, scale_grads=False
            )
            # Ours need no warm-up, and nothing is left to find out about shapes.
            self._runtime._initialize_stages = lambda *_args, **_kwargs: None
            self._runtime._prepare_schedule_with_comms(
                {r: [_Action.from_str(str(a)) for a in row] for r, row in enumerate(rows)}
            )
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


def _backward_of(row: Sequence[Action]) -> list[Action]:
    """Return the backward passes that torch expects after forward ones; they do nothing."""
    stages = sorted({a.stage for a in row}, reverse=True)
    order = [(j, s) for j in sorted({a.microbatch for a in row}) for s in stages]
    return [Action(s, Kind.B, j) for j, s in order]


class Messages:
    """Sends and receives between the ranks of a pipeline.

    gloo moves memory of the host only: there, tensors of a GPU are copied on the way.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.device = device
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._through_host = device.type != "cpu" and dist.get_backend(group) == "gloo"

    def buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return memory to receive into."""
        place = torch.device("cpu") if self._through_host else self.device
        return torch.empty(shape, dtype=dtype, device=place)

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what was received, on this rank's device."""
        return tensor.to(self.device)

    def send(self, tensor: torch.Tensor, rank: int) -> dist.P2POp:
        """Return the operation that sends; it keeps the tensor."""
        tensor = tensor.cpu() if self._through_host else tensor
        return dist.P2POp(dist.isend, tensor.contiguous(), self._peer(rank), self.group)

    def receive(self, tensor: torch.Tensor, rank: int) -> dist.P2POp:
        """Return the operation that receives into `tensor`."""
        return dist.P2POp(dist.irecv, tensor, self._peer(rank), self.group)

    def _peer(self, rank: int) -> int:
        return int(dist.get_global_rank(self.group, rank))


class _TorchStage:
    """A stage as torch's runtime asks for it; microbatches are *chunks* there."""

    def __init__(self, stage: Stage, count: int, messages: Messages, training: bool) -> None:
        self.stage = stage
        self.messages = messages
        self.submod = stage.piece.module
        self.stage_index = stage.piece.index
        self.num_stages = count
        self.group_rank, self.group_size = messages.rank, messages.size
        self.stage_index_to_group_rank: dict[int, int] = {}  # set by the runtime
        self.is_first = self.stage_index == 0
        self.is_last = self.stage_index == self.num_stages - 1
        self.has_backward = training
        values = stage.piece.values
        self.takes = [values[name] for name in stage.piece.inputs]
        self.gives_grad = [values[n] for n in stage.piece.outputs if values[n].grad and training]
        self.received: dict[int, list[torch.Tensor]] = {}
        self.outputs: dict[int, Tensors] = {}
        self.arrived: dict[int, list[torch.Tensor]] = {}
        self.gradients: dict[int, Tensors] = {}

    def clear(self) -> None:
        """Forget the last batch."""
        for kept in (self.received, self.outputs, self.arrived, self.gradients):
            kept.clear()

    def get_fwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        """Messages that bring the inputs in."""
        self.received[chunk] = [self.messages.buffer(v.shape, v.dtype) for v in self.takes]
        source = self.stage_index_to_group_rank[self.stage_index - 1]
        return [self.messages.receive(t, source) for t in self.received[chunk]]

    def set_local_fwd_input(self, outputs: Tensors, chunk: int) -> None:
        """Take the inputs from a stage of this rank."""
        self.received[chunk] = list(outputs)

    def forward_one_chunk(
        self, chunk: int, args: Tensors, _kwargs: object = None, **_options: object
    ) -> Tensors:
        """Run a forward pass."""
        given = args if self.is_first else self.received.pop(chunk)
        self.outputs[chunk] = self.stage.forward(chunk, [self.messages.here(t) for t in given])
        return self.outputs[chunk]

    def get_fwd_send_ops(self, chunk: int) -> list[dist.P2POp]:
        """Messages that take the outputs out."""
        target = self.stage_index_to_group_rank[self.stage_index + 1]
        return [self.messages.send(t, target) for t in self.outputs.pop(chunk)]

    def get_bwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        """Messages that bring gradients of the outputs in."""
        self.arrived[chunk] = [self.messages.buffer(v.shape, v.dtype) for v in self.gives_grad]
        if not self.gives_grad:
            return []
        source = self.stage_index_to_group_rank[self.stage_index + 1]
        return [self.messages.receive(t, source) for t in self.arrived[chunk]]

    def set_local_bwd_input(self, gradients: Tensors, chunk: int) -> None:
        """Take the gradients of the outputs from a stage of this rank."""
        self.arrived[chunk] = list(gradients)

    def backward_one_chunk(
        self, chunk: int, full_backward: bool = True, **_options: object
    ) -> None:
        """Run a backward pass, or its first half."""
        given = [self.messages.here(t) for t in self.arrived.pop(chunk, [])]
        self.outputs.pop(chunk, None)
        if not self.has_backward:
            self.gradients[chunk] = ()
        elif full_backward:
            self.gradients[chunk] = self.stage.backward(chunk, given)
        else:
            self.gradients[chunk] = self.stage.backward_inputs(chunk, given)

    def backward_weight_one_chunk(self, chunk: int, **_options: object) -> None:
        """Run the second half of a backward pass."""
        if self.has_backward:
            self.stage.backward_weights(chunk)

    def get_local_bwd_output(self, chunk: int) -> Tensors:
        """Hand the gradients of the inputs to a stage of this rank."""
        return self.gradients.pop(chunk)

    def get_bwd_send_ops(self, chunk: int) -> list[dist.P2POp]:
        """Messages that take the gradients of the inputs out."""
        given = self.gradients.pop(chunk)
        if not given:
            return []
        target = self.stage_index_to_group_rank[self.stage_index - 1]
        return [self.messages.send(t, target) for t in given]

    def scale_grads(self, _factor: int) -> None:
        """Nothing: the loss is scaled, since stages of a rank may share parameters."""

    def perform_reduce_grad(self, _factor: int) -> None:
        """Nothing: gradients are added up after the batch."""
