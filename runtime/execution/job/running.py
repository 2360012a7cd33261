"""Training job on one rank: stages, schedule, and gradients of a whole batch.

With one pipeline rank the microbatches run in a loop of our own, in which FSDP2 reduces gradients
after the last microbatch (ZeRO 0 and 1) or after each (2 and 3). Otherwise
`torch.distributed.pipelining` runs them, which reduces after the last one in any case.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from ....instances import InputError
from ....instances.common.units import show_count
from ....instances.costs.layout import V_SCHEDULES, JobSchedule, Layout
from ....instances.job.plan import JobPlan
from ...measure.group import of_all_ranks, rank_device
from ...schedules import make_schedule
from ...simulate.stages import chain
from ..attention import copied_heads
from ..checkpoint import ModelState, Trained
from ..gradients import scale_to_norm, sums_over
from ..guard.identity import layout_hash, random_hash, weights_hash
from ..torch_pipelining import NeighbourStage, evaluate_forward, order_runtime
from .context import divided_attention, positions_of
from .experts import local_part
from .parallelize import (
    JobStage,
    ParallelizePlan,
    check_patterns,
    check_runs,
    job_mesh,
    lines_of,
    make_stage,
    materialize,
    part_ties,
    recompute,
    shard,
    stage_modules,
    tensor_parallel,
    ties_of,
)

#: Function that runs this rank's part of tokens and targets, and returns losses by microbatch.
Passes = Callable[[Tensor, Tensor], list[Tensor]]
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
#: Schedules with one model stage per rank.
_SINGLE = ("gpipe", "1f1b", "zb-h1", "zb-h2")
#: Schedules that torch runs by loops without actions for FSDP2.
_LOOPS = ("gpipe", "1f1b")


#: Target of tokens that count for no loss, PyTorch's.
IGNORED = -100


def cross_entropy(logits: Tensor, targets: Tensor, counted: float) -> Tensor:
    """Return the cross-entropy of tokens, but those `IGNORED`, in 32 bits, divided by `counted`."""
    total = F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(0, 1), ignore_index=IGNORED, reduction="sum"
    )
    return (total.full_tensor() if isinstance(total, DTensor) else total) / counted


class RunningJob:
    """Training job on this rank; all ranks make it together, by `parallelize` or `run_job`.

    The modules of `model` are not copied. `schedule` replaces the layout's: `TORCH_SCHEDULES` has
    names that layouts lack. Raises InputError if layout, plan, model and number of processes do not
    fit together, or jobs do not run a field of the layout.
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
        self._compared = False  # the first batch with those of other ranks
        #: Tokens that `step` has taken, those before the checkpoint that was restored included.
        self.tokens_taken = 0
        self.schedule = schedule or layout.schedule.value
        # torch's 1F1B takes no fewer microbatches than stages: then the order is ours
        few = self.schedule == "1f1b" and layout.microbatches < layout.pipeline
        self._is_torchs = self.schedule in TORCH_SCHEDULES and not few
        self.mesh = job_mesh(layout, device.type)
        if not any(p.is_meta for p in model.parameters()):  # which `initialize` fills alike
            remedy = "draw them from one seed, or give initialize"
            check_alike(weights_hash(model), "model's weights", remedy)
        if layout.tensor > 1 and any(isinstance(part, nn.Dropout) for part in model.modules()):
            remedy = "seed all ranks alike: tensor-parallel ranks drop the same elements"
            check_alike(random_hash(), "random numbers", remedy)
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
            stage.set_positions(self._positions.to(device))
            if not model.training:  # modules that are frozen in another mode stay so
                stage.train()
            if layout.tensor > 1:
                self._summed |= tensor_parallel(
                    stage, plan, layout, self.mesh.mesh["tensor"], parted_logits=self._parted
                )
            recompute(stage, plan, layout, number)
            # schedules with actions for FSDP2 gather and free a stage's weights themselves
            once = layout.pipeline > 1 and not (self._is_torchs and self.schedule in _LOOPS)
            self._experts |= shard(stage, plan, layout, self.mesh, once=once)
        self._tied = [(names, self._tie_group(names, held)) for names in self.ties]
        self._given = plan.loss
        #: Tokens with a loss in a microbatch of this rank's, on average over the whole batch.
        self._counted = 0.0
        #: Work outside of passes that now runs: ``loss``, ``sums``, ``norm``; else empty.
        self.phase = ""
        self.pipeline_stages: list[NeighbourStage] = []
        self.passes: Passes = self._accumulate
        self._evaluate: Passes | None = None
        if layout.pipeline > 1:
            self.passes, self._evaluate = self._pipeline()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parts of the parameters of its stages, under the model's names."""
        for stage in self.stages.values():
            yield from stage.named_parameters()

    @property
    def identity(self) -> str:
        """Hash of layout and schedule, with which a resumed job has the same random numbers."""
        return layout_hash(self.layout, self.schedule)

    def trained(self, optimizers: Sequence[torch.optim.Optimizer]) -> Trained:
        """Return the state for a checkpoint, where a tied weight has its first name."""
        first_of = {name: first for first, *others in self.ties for name in others}
        held: dict[str, Any] = {}
        for stage in self.stages.values():
            held |= stage.state_dict(keep_vars=True)
        buffers = {
            name: x
            for name, x in held.items()
            if isinstance(x, Tensor) and not isinstance(x, nn.Parameter)
        }
        whole = ModelState({name: first_of.get(name, name) for name in held})
        return Trained(dict(self.named_parameters()), buffers, optimizers, whole=whole)

    def parameter_groups(self, stage: int) -> list[dict[str, Any]]:
        """Return a stage's parameters for an optimizer, in groups by their device mesh."""
        groups: dict[Any, list[nn.Parameter]] = {}
        for parameter in self.stages[stage].parameters():
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            groups.setdefault(mesh, []).append(parameter)
        return [{"params": each} for each in groups.values()]

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """Run a batch, and leave the gradients of its mean loss in the parameters.

        Parameters
        ----------
        tokens, targets
            Whole batch, shape (sequences, tokens), the same on every rank, which takes its part.

        Returns
        -------
        float
            Mean loss of the batch, on every rank.
        """
        x, y = self._part_of(tokens, targets)
        for _, parameter in self.named_parameters():
            parameter.grad = None
        with self.running():
            losses = self.passes(x, y)
        self.tokens_taken += tokens.numel()
        with self._within("sums"):
            self.add_up_gradients()
            return self._mean(losses)

    def evaluate(self, tokens: Tensor, targets: Tensor) -> float:
        """Return the mean loss of a batch, as `step` does, and leave gradients as they are."""
        x, y = self._part_of(tokens, targets)
        modules = [module for stage in self.stages.values() for module in stage.modules()]
        modes = [module.training for module in modules]
        for stage in self.stages.values():
            stage.eval()
        try:
            with self.running(), torch.no_grad():
                if self._evaluate is not None:
                    losses = self._evaluate(x, y)
                else:
                    count = self.layout.microbatches
                    pairs = zip(x.chunk(count), y.chunk(count), strict=True)
                    losses = [self._loss(self.module(x), y) for x, y in pairs]
            with self._within("sums"):
                return self._mean(losses)
        finally:
            for module, training in zip(modules, modes, strict=True):
                module.training = training

    @property
    def module(self) -> JobStage:
        """The one model stage of a rank that has one."""
        if len(self.stages) > 1:
            raise InputError(f"chunks: {len(self.stages)} model stages on a rank; use `stages`")
        return next(iter(self.stages.values()))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context for passes: losses of divided logits, attention to whole sequences.

        Afterwards gathered weights are freed: an evaluation has no backward pass that would do so,
        and optimizers have the sharded ones.
        """
        with ExitStack() as stack:
            if self._parted:
                stack.enter_context(loss_parallel())
            stack.enter_context(copied_heads())
            if self.mesh.context is not None:
                needed = any(stage.block_names for stage in self.stages.values())
                attention = divided_attention(self.layout, self.mesh.context, needed=needed)
                stack.enter_context(attention)
            stack.enter_context(warnings.catch_warnings())
            # logits are often a view, which matters to those who change them in place
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            yield
        for stage in self.stages.values():
            for module in stage.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def _part_of(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return this rank's part of a whole batch, on its device."""
        if len(tokens) != self.layout.global_batch:
            raise InputError(
                f"tokens: {show_count(len(tokens), 'sequence')}; the layout's batch is "
                f"{self.layout.global_batch}"
            )
        if tokens.shape[1] != self.layout.sequence:
            raise InputError(
                f"tokens: sequences of {tokens.shape[1]}; the layout's have {self.layout.sequence}"
            )
        if not self._compared:
            self._compared = True
            seen = b"".join(given.cpu().numpy().tobytes() for given in (tokens, targets))
            remedy = "give each rank the same batch, of which it takes its part"
            check_alike(hashlib.sha256(seen).hexdigest(), "tokens", remedy)
        passes = self.layout.microbatches * self.layout.replicas
        self._counted = int((targets != IGNORED).sum()) / passes
        replica, _ = self.mesh.part
        x, y = (
            given.chunk(self.layout.data)[replica][:, self._positions].to(self.device)
            for given in (tokens, targets)
        )
        return x, y

    def _mean(self, losses: Sequence[Tensor]) -> float:
        """Return the mean loss of a batch from `losses`, empty on ranks without the last stage."""
        mean = torch.stack(losses).mean() if losses else torch.zeros((), device=self.device)
        dist.all_reduce(mean)
        return float(mean) / (self.layout.replicas * self.layout.tensor)

    @contextmanager
    def _within(self, phase: str) -> Iterator[None]:
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def clip_gradients(self, max_norm: float) -> float:
        """Scale all gradients so that their norm over all ranks is at most `max_norm`.

        Returns
        -------
        float
            Euclidean norm before; copies on several ranks count once, and so does a tied weight.
        """
        again = {name for first, *others in self.ties for name in others}
        counted = {
            id(parameter)
            for stage in self.stages.values()
            for name, parameter in stage.named_parameters(remove_duplicate=False)
            if name not in again
        }
        square = torch.zeros((), device=self.device)
        for _, parameter in self.named_parameters():
            gradient = parameter.grad
            if gradient is None or id(parameter) not in counted:
                continue
            copies = self.layout.devices // self.layout.pipeline
            if isinstance(gradient, DTensor):
                axes = zip(gradient.device_mesh.shape, gradient.placements, strict=True)
                copies //= math.prod(size for size, lies in axes if not lies.is_replicate())
            square += local_part(gradient).abs().float().square().sum() / copies  # of both parts
        own = [local_part(p.grad) for _, p in self.named_parameters() if p.grad is not None]
        with self._within("norm"):
            return float(scale_to_norm(own, square, max_norm))

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        with self._within("loss"):
            if self._given is not None:
                return self._given(logits, targets)
            return cross_entropy(logits, targets, self._counted)

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """Run the microbatches one after the other."""
        stage = self.module
        count = self.layout.microbatches
        losses = []
        pairs = zip(tokens.chunk(count), targets.chunk(count), strict=True)
        for j, (x, y) in enumerate(pairs):
            last = j == count - 1
            if isinstance(stage, FSDPModule):
                stage.set_requires_gradient_sync(last or self.layout.zero >= 2)
                stage.set_is_last_backward(last)
                stage.set_reshard_after_backward(last or self.layout.zero == 3)
            loss = self._loss(stage(x), y)
            (loss / count).backward()
            losses.append(loss.detach())
        return losses

    def _pipeline(self) -> tuple[Passes, Passes]:
        """Return the functions that train and evaluate a batch in the pipeline."""
        layout, group = self.layout, self.mesh.mesh.get_group("pipeline")
        self.pipeline_stages = stages = [
            NeighbourStage(stage, s, layout.stages, self.device, group=group)
            for s, stage in self.stages.items()
        ]
        if self._is_torchs:
            kind = getattr(schedules, TORCH_SCHEDULES[self.schedule], None)
            if kind is None:
                raise InputError(f"schedule: torch {torch.__version__} has no {self.schedule}")
            given = stages[0] if self.schedule in _SINGLE else stages
            try:
                runtime = kind(given, layout.microbatches, loss_fn=self._loss)
            except ValueError as error:  # of numbers of microbatches that it does not take
                raise InputError(f"schedule {self.schedule}: {error}") from None
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

        def run(do: Callable[..., Any], tokens: Tensor, targets: Tensor) -> list[Tensor]:
            losses: list[Tensor] = []
            inputs = (tokens,) if first else ()
            do(*inputs, target=targets if last else None, losses=losses, **options)
            return [loss.detach() for loss in losses]

        return functools.partial(run, runtime.step), functools.partial(
            run, functools.partial(evaluate_forward, runtime)
        )

    def add_up_gradients(self) -> None:
        """Sum gradients over ranks where data parallelism does not.

        These are tensor-parallel ranks that saw a part of the tokens or heads, and model stages
        that share a weight.
        """
        own = {
            name: parameter
            for stage in self.stages.values()
            for name, parameter in stage.named_parameters(remove_duplicate=False)
            if parameter.requires_grad
        }
        for parameter in own.values():
            gradient = parameter.grad  # DTensor may leave partial sums, or other placements
            if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
                parameter.grad = gradient.redistribute(placements=parameter.placements)
        for name in self._experts & own.keys():
            _local_gradient(own[name]).mul_(self.layout.tensor / self.layout.expert)
        summed = self._summed - self._experts
        if parts := [_local_gradient(own[name]) for name in sorted(summed & own.keys())]:
            for part, total in zip(
                parts, sums_over(parts, self.mesh.mesh.get_group("tensor")), strict=True
            ):
                part.copy_(total)
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
        """Return this rank's group of the pipeline ranks that share a weight.

        `held` has the pipeline rank of each module.
        """
        ranks = sorted({rank for n in names for m, rank in held.items() if n.startswith(f"{m}.")})
        if len(ranks) < 2:
            return None
        lines = lines_of(self.mesh.mesh, "pipeline")
        group, _ = dist.new_subgroups_by_enumeration([[line[r] for r in ranks] for line in lines])
        return group


def parallelize(
    model: nn.Module,
    modules: ParallelizePlan,
    plan: JobPlan | Layout,
    *,
    device: torch.device | None = None,
    schedule: str | None = None,
) -> RunningJob:
    """Return this rank's part of a model with FSDP2, tensor parallelism and checkpointing applied.

    Parameters
    ----------
    model, modules
        Whole model, with the same weights on every rank or on the meta device, and its modules in
        order; `transformer` makes both from a description.
    plan
        Plan or layout, of as many devices as the process group has ranks.
    device
        Device of this rank; default: its GPU if the process group is NCCL's, else the CPU.
    schedule
        Schedule in place of the layout's; see `RunningJob`.

    Returns
    -------
    RunningJob
        ``job.step(tokens, targets)`` runs a batch forward and backward; `evaluate`,
        `clip_gradients`, `parameter_groups` and the modules in `stages` are for your own loop.
        A loop that calls ``job.module`` itself does so within ``job.running()``, and calls
        ``job.add_up_gradients()`` after the last backward pass.

    Raises
    ------
    InputError
        If layout, model and number of processes do not fit together.

    Examples
    --------
    >>> import stagecut, torch
    >>> model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(8, 4)})
    >>> model["layers"] = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
    >>> model["norm"], model["head"] = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8)
    >>> layout = stagecut.Layout(microbatch=2, global_batch=4, sequence=2, recipe="fp32")
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> job = parallelize(model, ParallelizePlan(), layout)
    >>> with job.running():
    ...     job.module(torch.arange(4).view(2, 2)).shape
    torch.Size([2, 2, 8])
    >>> dist.destroy_process_group()
    """
    layout = plan if isinstance(plan, Layout) else plan.layout
    return RunningJob(model, modules, layout, device=device or rank_device(), schedule=schedule)


def check_alike(own: str, what: str, remedy: str) -> None:
    """Raise InputError if the hashes of ranks differ, which would train different models."""
    hashes = of_all_ranks(own)
    if other := [rank for rank, each in enumerate(hashes) if each != hashes[0]]:
        raise InputError(f"{what}: rank {other[0]} has others than rank 0; {remedy}")


def stage_ranks(schedule: str, layout: Layout) -> tuple[int, ...]:
    """Return the pipeline rank of each model stage.

    Raises InputError if the schedule is not known, or takes another number of stages per rank.
    """
    known = (*TORCH_SCHEDULES, "zb-h1", "zb-h2")
    if schedule not in known:
        raise InputError(f"schedule: {schedule!r} is not one of {', '.join(known)}")
    in_v = schedule in V_SCHEDULES
    chunks = 1 if schedule in _SINGLE or layout.pipeline == 1 else 2 if in_v else 0
    if chunks and layout.chunks != chunks:
        raise InputError(f"chunks: {layout.chunks}; the schedule {schedule} takes {chunks}")
    around = JobSchedule(schedule) if in_v else JobSchedule.INTERLEAVED
    return replace(layout, schedule=around).stage_ranks


def _local_gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a gradient, zero if the parameter was not used."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return local_part(parameter.grad)


def loss_alone(model: nn.Module, plan: ParallelizePlan, tokens: Tensor, targets: Tensor) -> float:
    """Return the mean loss of a batch by one process, for comparison with a job's first step.

    A plan that leaves out a module, or a model that counts heads or positions itself, trains under
    a layout without an error, but trains another model.

    Parameters
    ----------
    model, plan
        The whole model on its device, and its modules in order.
    tokens, targets
        Whole batch.

    Returns
    -------
    float
        Loss that `RunningJob.step` returns, up to rounding.

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
    stage.set_positions(torch.arange(tokens.shape[1], device=tokens.device))
    with torch.no_grad():
        counted = int((targets != IGNORED).sum())
        loss = plan.loss or functools.partial(cross_entropy, counted=counted)
        return float(loss(stage(tokens), targets))
