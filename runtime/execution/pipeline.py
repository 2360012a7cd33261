"""Pipeline stages of this rank, and batches through all stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import fx, nn

from ...instances import InputError
from ..simulate.plan_stages import named_schedule
from .chain import executed_schedule
from .gradients import GradientSums, holders_of
from .prepare import Prepared
from .recorder import Recorder
from .stage import StageRunner, Tensors
from .torch_pipelining import TorchSchedule


class RunningPipeline:
    """A plan at work on this rank, one of `replicas` × devices in use.

    Every rank makes it at the same time, and then runs the same batches.

    Parameters
    ----------
    prepared
        The plan and the model, the same on all ranks.
    schedule
        See `chain.SYNCHRONOUS`, or ``given`` if the plan has actions of its own; of an inference
        plan only its name.
    microbatches
        Per batch and replica.
    device
        Where this rank computes.
    replicas
        Copies of the whole pipeline, each with microbatches of its own: rank r is device
        r modulo their number in replica ⌊r / devices⌋.
    recompute
        Keep only the inputs of each piece, and compute the rest again in the backward pass.
    record
        Note when each action began and ended, in `recorder`.

    Raises
    ------
    InputError
        If the number of ranks is not that of the plan's devices, or the schedule does not fit.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        schedule: str = "1f1b",
        microbatches: int = 8,
        device: torch.device | None = None,
        replicas: int = 1,
        recompute: bool = False,
        record: bool = False,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.training = prepared.training
        self.microbatches = microbatches
        planned = named_schedule(prepared.plan, schedule)
        self.schedule = executed_schedule(planned, prepared.stages, microbatches)
        size = len(prepared.devices)
        if dist.get_world_size() != replicas * size:
            raise InputError(
                f"the plan uses {size} devices{f', {replicas} times' * (replicas > 1)}, and "
                f"{dist.get_world_size()} processes run; start {replicas * size}"
            )
        self.replica, self.rank = divmod(dist.get_rank(), size)
        groups = [dist.new_group([r * size + i for i in range(size)]) for r in range(replicas)]
        self.group = groups[self.replica]
        self.recorder = Recorder(self.device) if record else None
        rank_of = {d: r for r, d in enumerate(prepared.devices)}
        self._last = rank_of[prepared.pieces[-1].device]
        own = [piece for piece in prepared.pieces if rank_of[piece.device] == self.rank]
        self.stages = [
            StageRunner(
                piece,
                last=piece is prepared.pieces[-1],
                training=prepared.training,
                microbatches=microbatches * replicas,
                recompute=recompute,
                recorder=self.recorder,
            )
            for piece in own
        ]
        for piece in own:
            place(piece.module, self.device)
        everywhere = [
            [r * size + rank_of[piece.device] for r in range(replicas)] for piece in prepared.pieces
        ]
        names = [list(piece.parameters) for piece in prepared.pieces]
        self._sums = GradientSums(holders_of(names, everywhere))
        self._torch = TorchSchedule(
            self.stages,
            len(prepared.pieces),
            self.schedule,
            self.group,
            self.device,
            prepared.training,
        )

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return this rank's learned tensors under the model's names, shared ones once."""
        seen: dict[str, nn.Parameter] = {}
        for stage in self.stages:
            seen |= stage.piece.parameters
        return iter(seen.items())

    def step(self, batch: Sequence[Tensors]) -> None:
        """Run a batch, and in training leave the gradients of its mean loss in the parameters.

        Parameters
        ----------
        batch
            What the first piece takes, for each microbatch of this replica (`Prepared.inputs`).
            Only the rank that has the first piece looks at it.
        """
        if len(batch) != self.microbatches:
            raise InputError(
                f"batch: {len(batch)} microbatches; the schedule has {self.microbatches}"
            )
        for stage in self.stages:
            stage.clear()
        first = self.stages[0].piece.index == 0
        self._torch.run([tuple(x.to(self.device) for x in xs) for xs in batch] if first else [])
        if self.training:
            self._sums.add_up({n: x for n, x in self.named_parameters() if x.requires_grad})
        if self.recorder is not None:
            self.recorder.step += 1

    def results(self) -> list[Tensors]:
        """Return the model's outputs for each microbatch of the last batch.

        Only on the rank that has the last piece; empty on all others.
        """
        last = self.stages[-1]
        return [last.results[j] for j in sorted(last.results)] if last.last else []

    def mean_loss(self) -> float:
        """Return the mean of the last batch's losses over all replicas; all ranks must ask."""
        last = self.stages[-1]
        losses = list(last.losses.values()) if last.last else []
        nothing = torch.zeros((), device=self.device)
        mean = torch.stack(losses).mean().float() if losses else nothing
        dist.all_reduce(mean)
        replicas = dist.get_world_size() // dist.get_world_size(self.group)
        return float(mean / replicas)


def place(module: fx.GraphModule, device: torch.device) -> None:
    """Move a piece to a device, with the tensors that its graph creates."""
    module.to(device)
    for n in module.graph.nodes:
        if isinstance(n.kwargs.get("device"), torch.device):
            n.kwargs = {**n.kwargs, "device": device}
        within = getattr(n.target, "module", None)  # of a layer that is computed again
        if isinstance(within, fx.GraphModule):
            place(within, device)
    module.recompile()
