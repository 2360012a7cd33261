"""Steps of a training job: the schedule of its layout, gradients of the whole batch, the optimizer.

With one pipeline rank the microbatches run in a loop of our own, since FSDP2 then reduces gradients
as the layout says: after the last microbatch (ZeRO 0 and 1) or after each (2 and 3). Otherwise
`torch.distributed.pipelining` runs them, which reduces after the last one in any case.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from ....instances import InputError
from ....instances.costs.layout import Layout
from ...measure.group import process_group
from ...schedules import make_schedule
from ...simulate.stages import chain
from ..guard.failures import guarded
from ..steps import alone_if_it_can_be
from ..torch_pipelining import order_runtime
from .context import divided_attention, positions_of
from .parallelize import (
    ParallelizePlan,
    check_patterns,
    check_runs,
    job_mesh,
    lines_of,
    make_stage,
    materialize,
    own_group,
    part_ties,
    recompute,
    shard,
    stage_modules,
    tensor_parallel,
    ties_of,
)

#: Schedules by the classes of `torch.distributed.pipelining`; ``zb-h1`` and ``zb-h2`` are ours.
TORCH_SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
#: Those with one model stage per rank, and those whose second one runs the ranks backwards.
_SINGLE = ("gpipe", "1f1b", "zb-h1", "zb-h2")
#: Those that torch runs by loops without actions for FSDP2.
_LOOPS = ("gpipe", "1f1b")
_V_SHAPED = ("zb-v", "dualpipe-v")

#: Makes an optimizer of parameters, or of groups of them.
MakeOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the tokens, in 32 bits."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))


class RunningJob:
    """A training job at work on this rank; all ranks make it together.

    Parameters
    ----------
    model
        The whole model, the same numbers on every rank; its modules are taken, not copied.
    plan
        Its modules in order, and how tensor parallelism divides them.
    layout
        How the job is divided.
    device
        ``cpu`` (gloo) or ``cuda`` (NCCL).
    schedule
        In place of the layout's: `TORCH_SCHEDULES` has names that layouts do not.

    Raises
    ------
    InputError
        If layout, plan, model and number of processes do not fit together, or the layout has
        something that this execution does not run.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(8, 4)})
    >>> model["layers"] = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
    >>> model["norm"], model["head"] = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8)
    >>> layout = stagecut.Layout(microbatch=2, global_batch=4, sequence=2, recipe="fp32")
    >>> tokens = torch.arange(8).view(4, 2)
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> job = RunningJob(model, ParallelizePlan(), layout, device=torch.device("cpu"))
    >>> loss = job.step(tokens, tokens)
    >>> norm = job.clip_gradients(1.0)
    >>> sorted(job.stages)
    [0]
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        model: nn.Module,
        plan: ParallelizePlan,
        layout: Layout,
        *,
        device: torch.device,
        schedule: str | None = None,
    ) -> None:
        check_runs(layout)
        check_patterns(model, plan, layout)
        self.layout, self.device = layout, device
        self.schedule = schedule or layout.schedule.value
        self.mesh = job_mesh(layout, device.type)
        placed = stage_ranks(self.schedule, layout)
        own = [s for s, rank in enumerate(placed) if rank == self.mesh.rank("pipeline")]
        self.ties = ties_of(model)
        modules = stage_modules(model, plan, layout)
        held = {name: placed[s] for s, names in enumerate(modules) for name in names}
        self.stages = {s: make_stage(model, plan, modules[s]) for s in own}
        part_ties(list(self.stages.values()))
        self._parted = plan.loss is None and layout.tensor > 1
        self._summed: frozenset[str] = frozenset()
        self._experts: frozenset[str] = frozenset()
        self._positions = positions_of(layout, self.mesh.part[1])
        for number, stage in self.stages.items():
            materialize(stage, plan, self.ties, device)
            stage.place(self._positions.to(device))
            stage.train()
            if layout.tensor > 1:
                self._summed |= tensor_parallel(
                    stage, plan, layout, self.mesh.mesh["tensor"], parted_logits=self._parted
                )
            recompute(stage, plan, layout, number)
            # schedules with actions of FSDP2's own gather a stage's weights once for a batch
            once = layout.pipeline > 1 and self.schedule not in _LOOPS
            self._experts |= shard(stage, plan, layout, self.mesh, once=once)
        self._tied = [(names, self._tie_group(names, held)) for names in self.ties]
        self._given = plan.loss or cross_entropy
        self._steps = self._pipeline() if layout.pipeline > 1 else None

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return this rank's parts of the parameters of its stages, under the model's names."""
        for stage in self.stages.values():
            yield from stage.named_parameters()

    def parameter_groups(self, stage: int) -> list[dict[str, Any]]:
        """Return a stage's parameters for an optimizer, those that are divided alike in a group."""
        groups: dict[Any, list[nn.Parameter]] = {}
        for parameter in self.stages[stage].parameters():
            assert isinstance(parameter, DTensor)
            groups.setdefault(parameter.device_mesh, []).append(parameter)
        return [{"params": each} for each in groups.values()]

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """Run a batch, and leave the gradients of its mean loss in the parameters.

        Parameters
        ----------
        tokens, targets
            Of the whole batch, sequences first: the same on every rank, of which each takes its
            replica's part.

        Returns
        -------
        float
            Mean loss of the batch, on every rank.
        """
        if len(tokens) != self.layout.global_batch:
            raise InputError(
                f"tokens: {len(tokens)} sequences; the layout's batch is {self.layout.global_batch}"
            )
        if tokens.shape[1] != self.layout.sequence:
            raise InputError(
                f"tokens: sequences of {tokens.shape[1]}; the layout's have {self.layout.sequence}"
            )
        replica, _ = self.mesh.part
        x, y = (
            given.chunk(self.layout.data)[replica][:, self._positions].to(self.device)
            for given in (tokens, targets)
        )
        for _, parameter in self.named_parameters():
            parameter.grad = None
        with ExitStack() as stack:
            if self._parted:
                stack.enter_context(loss_parallel())
            if self.mesh.context is not None:
                stack.enter_context(divided_attention(self.layout, self.mesh.context))
            stack.enter_context(warnings.catch_warnings())
            # logits are often a view, which matters to those who change them in place
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            losses = self._accumulate(x, y) if self._steps is None else self._steps(x, y)
        self._add_up()
        mean = torch.stack(losses).mean() if losses else torch.zeros((), device=self.device)
        for axis in ("pipeline", "replicate", "shard"):
            dist.all_reduce(mean, group=self.mesh.group(axis))
        return float(mean) / self.layout.replicas

    def clip_gradients(self, max_norm: float) -> float:
        """Scale all gradients so that their norm over all ranks is at most `max_norm`.

        Returns
        -------
        float
            Euclidean norm before; what several ranks have counts once, and so does a tied weight.
        """
        again = {name for first, *others in self.ties for name in others}
        square = torch.zeros((), device=self.device)
        for name, parameter in self.named_parameters():
            gradient = parameter.grad
            if gradient is None or name in again:
                continue
            assert isinstance(gradient, DTensor)
            parts = [
                size
                for size, placement in zip(
                    gradient.device_mesh.shape, gradient.placements, strict=True
                )
                if not placement.is_replicate()
            ]
            copies = self.layout.devices // self.layout.pipeline // math.prod(parts)
            square += gradient.to_local().float().square().sum() / copies
        dist.all_reduce(square)
        norm = float(square.sqrt())
        factor = min(1.0, max_norm / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ has it
        for _, parameter in self.named_parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        return norm

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = self._given(logits, targets)
        # torch's split backward passes detach it in place, which a view does not allow
        return loss.full_tensor().clone() if isinstance(loss, DTensor) else loss

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """Run the microbatches one after the other."""
        (stage,) = self.stages.values()
        assert isinstance(stage, FSDPModule)
        count = self.layout.microbatches
        losses = []
        pairs = zip(tokens.chunk(count), targets.chunk(count), strict=True)
        for j, (x, y) in enumerate(pairs):
            last = j == count - 1
            stage.set_requires_gradient_sync(last or self.layout.zero >= 2)
            stage.set_is_last_backward(last)
            loss = self._loss(stage(x), y)
            (loss / count).backward()
            losses.append(loss.detach())
        return losses

    def _pipeline(self) -> Callable[[Tensor, Tensor], list[Tensor]]:
        """Return what runs a batch through the pipeline, and gives this rank's losses."""
        layout, group = self.layout, self.mesh.group("pipeline")
        stages = [
            PipelineStage(stage, s, layout.stages, self.device, group=group)
            for s, stage in self.stages.items()
        ]
        if self.schedule in TORCH_SCHEDULES:
            kind = getattr(schedules, TORCH_SCHEDULES[self.schedule], None)
            if kind is None:
                raise InputError(f"schedule: torch {torch.__version__} has no {self.schedule}")
            given = stages[0] if self.schedule in _SINGLE else stages
            runtime = kind(given, layout.microbatches, loss_fn=self._loss)
        else:
            chained = chain([1.0] * layout.stages, [2.0] * layout.stages)
            order = make_schedule(self.schedule, chained, layout.microbatches)
            rows = {rank: order.of(rank) for rank in range(layout.pipeline)}
            runtime = order_runtime(
                stages, rows, layout.microbatches, loss_fn=self._loss, scale_grads=True
            )
        first, last = 0 in self.stages, layout.stages - 1 in self.stages
        known = inspect.signature(runtime.step).parameters
        options = {"return_outputs": False} if "return_outputs" in known else {}

        def run(tokens: Tensor, targets: Tensor) -> list[Tensor]:
            losses: list[Tensor] = []
            inputs = (tokens,) if first else ()
            runtime.step(*inputs, target=targets if last else None, losses=losses, **options)
            return [loss.detach() for loss in losses]

        return run

    def _add_up(self) -> None:
        """Add gradients up over what data parallelism does not know of.

        That is tensor-parallel ranks that saw a part of the tokens or heads, and the model stages
        that have a weight in common.
        """
        own: dict[str, nn.Parameter] = {}
        for stage in self.stages.values():
            own |= dict(stage.named_parameters(remove_duplicate=False))
        for name in self._experts & own.keys():
            _local_gradient(own[name]).div_(self.layout.expert)
        if parts := [_local_gradient(own[name]) for name in sorted(self._summed & own.keys())]:
            flat = torch.cat([part.reshape(-1) for part in parts])
            dist.all_reduce(flat, group=self.mesh.group("tensor"))
            totals = flat.split([part.numel() for part in parts])
            for part, total in zip(parts, totals, strict=True):
                part.copy_(total.view_as(part))
        for names, group in self._tied:
            parameters = {id(own[name]): own[name] for name in names if name in own}
            copies = [_local_gradient(parameter) for parameter in parameters.values()]
            if not copies:
                continue
            total = copies[0] if len(copies) == 1 else torch.stack(copies).sum(0)
            if group is not None:
                dist.all_reduce(total, group=group)
            for copy in copies:
                copy.copy_(total)

    def _tie_group(self, names: Sequence[str], held: Mapping[str, int]) -> dist.ProcessGroup | None:
        """Return this rank's group of the pipeline ranks that have a weight in common.

        `held` has the pipeline rank of each module.
        """
        ranks = sorted({rank for n in names for m, rank in held.items() if n.startswith(f"{m}.")})
        if len(ranks) < 2:
            return None
        lines = lines_of(self.mesh.mesh, "pipeline")
        return own_group([[line[rank] for rank in ranks] for line in lines])


def stage_ranks(schedule: str, layout: Layout) -> tuple[int, ...]:
    """Return the pipeline rank of each model stage.

    Raises
    ------
    InputError
        If the schedule is not known, or takes another number of model stages per rank.
    """
    known = (*TORCH_SCHEDULES, "zb-h1", "zb-h2")
    if schedule not in known:
        raise InputError(f"schedule: {schedule!r} is not one of {', '.join(known)}")
    ranks = layout.pipeline
    chunks = 1 if schedule in _SINGLE or ranks == 1 else 2 if schedule in _V_SHAPED else 0
    if chunks and layout.chunks != chunks:
        raise InputError(f"chunks: {layout.chunks}; the schedule {schedule} takes {chunks}")
    if schedule in _V_SHAPED:
        return (*range(ranks), *range(ranks)[::-1])[: layout.stages]
    return tuple(stage % ranks for stage in range(layout.stages))


def _local_gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a gradient, which is zero where nothing used the parameter."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    assert isinstance(parameter.grad, DTensor)
    return parameter.grad.to_local()


def loss_alone(model: nn.Module, plan: ParallelizePlan, tokens: Tensor, targets: Tensor) -> float:
    """Return the mean loss of a batch as one process computes it, to hold a job's first step to.

    A plan that leaves out a module, or a model that counts heads or positions itself, trains
    under a layout, but trains something else.

    Parameters
    ----------
    model, plan
        The whole model on its device, and its modules in order.
    tokens, targets
        Of the batch.

    Returns
    -------
    float
        What `RunningJob.step` returns, but for rounding.

    Examples
    --------
    >>> model = nn.ModuleDict({"embedding": nn.Embedding(8, 4), "layers": nn.ModuleList()})
    >>> model["norm"], model["head"] = nn.LayerNorm(4), nn.Linear(4, 8)
    >>> tokens = torch.arange(8).view(4, 2)
    >>> 0 < loss_alone(model, ParallelizePlan(), tokens, tokens) < 10
    True
    """
    (names,) = stage_modules(model, plan, Layout())
    stage = make_stage(model, plan, names)
    materialize(stage, plan, ties_of(model), tokens.device)
    stage.place(torch.arange(tokens.shape[1], device=tokens.device))
    with torch.no_grad():
        return float((plan.loss or cross_entropy)(stage(tokens), targets))


@dataclass(frozen=True)
class JobRun:
    """What a training job did.

    Parameters
    ----------
    losses
        Mean loss of each step's batch.
    norms
        Norm of each step's gradients before they were clipped; empty if they were not.

    Examples
    --------
    >>> JobRun((2.5, 2.25)).losses[-1]
    2.25
    """

    losses: tuple[float, ...]
    norms: tuple[float, ...] = ()


def run_job(
    make_model: Callable[[], nn.Module],
    plan: ParallelizePlan,
    layout: Layout,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    optimizer: MakeOptimizer,
    schedule: str | None = None,
    clip: float = 0.0,
    device: str = "auto",
    checkpoint: Path | None = None,
    resume: bool = False,
) -> JobRun:
    """Train as one of a layout's processes; all of them call this with the same arguments.

    Parameters
    ----------
    make_model
        Returns the whole model, the same numbers on every rank.
    plan
        The model's modules in order, and how tensor parallelism divides them.
    layout
        How the job is divided over the processes.
    batches
        Tokens and targets of each step's whole batch, the same on every rank.
    optimizer
        Makes one of groups of parameters; called for each model stage of this rank.
    schedule
        In place of the layout's; see `RunningJob`.
    clip
        Largest norm of all gradients together; 0: they are not clipped.
    device
        ``cpu`` (gloo), ``cuda`` (NCCL), or ``auto``: ``cuda`` where there is one.
    checkpoint
        Folder in which the state is kept at the end, by `torch.distributed.checkpoint`.
    resume
        Begin with the state kept there, under this or another layout.

    Returns
    -------
    JobRun
        Losses and norms by step, the same on every rank.

    Raises
    ------
    InputError
        If model, plan, layout and number of processes do not fit together.

    Notes
    -----
    All ranks end if one fails, or keeps the others waiting for two minutes.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(8, 4)})
    >>> model["layers"] = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
    >>> model["norm"], model["head"] = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8)
    >>> layout = stagecut.Layout(microbatch=2, global_batch=4, sequence=2, recipe="fp32")
    >>> tokens = torch.arange(8).view(4, 2)
    >>> run = run_job(
    ...     lambda: model, ParallelizePlan(), layout, [(tokens, tokens)] * 3,
    ...     optimizer=torch.optim.SGD, clip=1.0, device="cpu",
    ... )
    >>> len(run.losses), len(run.norms)
    (3, 3)
    """
    with guarded() as guard:
        alone_if_it_can_be(layout.devices)
        if guard is not None:
            guard.join({"layout": repr(layout), "--schedule": repr(schedule)})
        with process_group(device, guard) as place:
            job = RunningJob(make_model(), plan, layout, device=place, schedule=schedule)
            return train_job(
                job, batches, optimizer=optimizer, clip=clip, checkpoint=checkpoint, resume=resume,
                on_gradients=lambda _: None if guard is None else guard.tick(),
            )  # fmt: skip


def train_job(
    job: RunningJob,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    optimizer: MakeOptimizer,
    clip: float = 0.0,
    checkpoint: Path | None = None,
    resume: bool = False,
    on_gradients: Callable[[RunningJob], None] | None = None,
) -> JobRun:
    """Train in a process group that is there already.

    Parameters
    ----------
    job
        Of this rank.
    batches, optimizer, clip, checkpoint, resume
        See `run_job`.
    on_gradients
        Called after each backward pass, before gradients are clipped.

    Returns
    -------
    JobRun
        Losses and norms by step, the same on every rank.

    Raises
    ------
    InputError
        If a batch is not the layout's, or there is no checkpoint to resume from.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(8, 4)})
    >>> model["layers"] = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
    >>> model["norm"], model["head"] = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8)
    >>> layout = stagecut.Layout(microbatch=2, global_batch=4, sequence=2, recipe="fp32")
    >>> tokens = torch.arange(8).view(4, 2)
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> job = RunningJob(model, ParallelizePlan(), layout, device=torch.device("cpu"))
    >>> len(train_job(job, [(tokens, tokens)], optimizer=torch.optim.SGD).losses)
    1
    >>> dist.destroy_process_group()
    """
    losses, norms = [], []
    optimizers = [optimizer(job.parameter_groups(s)) for s in job.stages]
    if resume:
        _restore(checkpoint, job, optimizers)
    for tokens, targets in batches:
        losses.append(job.step(tokens, targets))
        if on_gradients is not None:
            on_gradients(job)
        if clip:
            norms.append(job.clip_gradients(clip))
        for each in optimizers:
            each.step()
    if checkpoint is not None:
        dcp.save(_state(job, optimizers), checkpoint_id=checkpoint)
    return JobRun(tuple(losses), tuple(norms))


def _state(job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """Return model and optimizer by the model's names, for `torch.distributed.checkpoint`."""
    state: dict[str, Any] = {}
    for stage, optimizer in zip(job.stages.values(), optimizers, strict=True):
        model, kept = get_state_dict(stage, optimizer, options=_FLAT)
        state |= {f"model.{name}": value for name, value in model.items()}
        state |= {f"optimizer.{name}": value for name, value in kept.items()}
    return state


def _restore(
    checkpoint: Path | None, job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    if checkpoint is None or not checkpoint.is_dir():
        raise InputError(f"checkpoint: {checkpoint} is no folder of a checkpoint to resume from")
    state = _state(job, optimizers)
    dcp.load(state, checkpoint_id=checkpoint)
    for stage, optimizer in zip(job.stages.values(), optimizers, strict=True):
        model, kept = get_state_dict(stage, optimizer, options=_FLAT)
        set_state_dict(
            stage,
            optimizer,
            model_state_dict={name: state[f"model.{name}"] for name in model},
            optim_state_dict={name: state[f"optimizer.{name}"] for name in kept},
            options=_FLAT,
        )


#: Optimizer states by the names of parameters, as other layouts find them.
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
