"""Modules of one rank of a training job, by the parallelism of its layout.

In the order of application: device mesh; model stages of this rank; tensor and sequence parallelism
(`torch.distributed.tensor.parallel`); recomputation (`torch.utils.checkpoint`); FSDP2
(`torch.distributed.fsdp.fully_shard`), which replicates where the layout shards nothing. Nothing
depends on the device: gloo on CPUs, NCCL on GPUs.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import permutations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ....instances import InputError
from ....instances.common.units import show_count
from ....instances.costs.hardware import NumberFormat
from ....instances.costs.layout import (
    ContextKind,
    Layout,
    Recipe,
    Recompute,
    check_axes,
    check_batch,
    check_degrees,
)
from ....instances.job.launchers import LAUNCHERS, refusal
from ..stage import register
from .experts import divide_experts

#: What jobs run: more than is planned for them.
_RUN = replace(
    LAUNCHERS["stagecut"],
    context=frozenset(ContextKind),
    zero_in_pipeline=LAUNCHERS["stagecut"].zero,
    recompute=frozenset(Recompute),
    orders=frozenset(permutations(Layout.order)),
)
#: Dimension of a hidden state that runs over the tokens of a sequence.
SEQUENCE_DIM = 1

#: Operators whose outputs selective recomputation keeps, of products every second one.
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
_ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
)


@dataclass(frozen=True)
class ParallelizePlan:
    """Names of a model's modules in their order, and how tensor parallelism divides them.

    Every module takes what the one before it returns: one tensor, of batch × sequence × width but
    for the model's tokens. Names are those of ``model.named_modules()``; patterns are as in
    `fnmatch`, ``layers.*.mlp.up`` for instance.

    Parameters
    ----------
    before
        Modules before the blocks: the embedding.
    blocks
        Name of the list of blocks.
    after
        Modules after the blocks: the last norm and the head, which returns logits.
    shared
        Modules without parameters that every model stage has for `call`: rotary embeddings.
    colwise
        Patterns of linear layers divided by their outputs, and of the head if it is.
    rowwise
        Patterns of linear layers divided by their inputs, and of embeddings divided by words.
    experts
        Patterns of modules of experts: ``forward(tokens, counts)`` takes tokens in the order of
        their experts, and the number of tokens of each; parameters have the experts as first
        dimension.
    recomputed
        Patterns of the modules that each member of `Recompute` stands for.
    call
        Function that runs a block, ``call(stage, block, hidden)``. ``stage`` has the model's
        modules under their names, and in ``stage.positions`` the positions of this rank's tokens in
        their sequences. Default: ``block(hidden)``.
    loss
        Function that returns the mean loss of a microbatch from logits, which it must not change in
        place, and targets; a batch's is the mean of these. Default: the mean cross-entropy of the
        batch's tokens but those of target -100, computed where the vocabulary is divided
        (`torch.distributed.tensor.parallel.loss_parallel`).
    initialize
        Function that fills a parameter, ``initialize(name, parameter)``. With it the model, but for
        its buffers, may be on the meta device, and a rank makes only its own stages' parameters.

    Notes
    -----
    An attribute ``positions`` of a module is set to those of its tokens before the first step.
    A module whose linear layers are divided by outputs sees its own part of heads or features:
    attention must find the number of heads from the shape (``view(batch, tokens, -1, head_dim)``).

    Examples
    --------
    >>> plan = ParallelizePlan(colwise=("layers.*.up",), rowwise=("layers.*.down",))
    >>> plan.before, plan.blocks, plan.after
    (('embedding',), 'layers', ('norm', 'head'))
    """

    before: tuple[str, ...] = ("embedding",)
    blocks: str = "layers"
    after: tuple[str, ...] = ("norm", "head")
    shared: tuple[str, ...] = ()
    colwise: tuple[str, ...] = ()
    rowwise: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    recomputed: Mapping[Recompute, tuple[str, ...]] = field(default_factory=dict)
    call: Callable[[nn.Module, nn.Module, Tensor], Tensor] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    initialize: Callable[[str, Tensor], None] | None = None


class JobStage(nn.Module):  # type: ignore[misc]  # torch does not say its type
    """Model stage: some of a model's modules under their own names, run one after the other.

    `modules` are in the order in which they run, those named in `blocks` by `call`, as in
    `ParallelizePlan`; all stages have `shared`. `positions` are those of this rank's tokens in
    their sequences.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        shared: Mapping[str, nn.Module],
        blocks: frozenset[str],
        call: Callable[[nn.Module, nn.Module, Tensor], Tensor] | None,
    ) -> None:
        super().__init__()
        for name, module in {**modules, **shared}.items():
            register(self, name, module)
        self.module_names, self.block_names, self.run_block = tuple(modules), blocks, call
        if not hasattr(self, "positions"):  # which a module of the model may be called
            self.positions = torch.zeros(0)

    def set_positions(self, positions: Tensor) -> None:
        """Set the positions of tokens in this stage, and in its modules that have them."""
        for module in self.modules():
            if not isinstance(getattr(module, "positions", module), nn.Module):
                module.positions = positions

    def forward(self, x: Tensor) -> Tensor:
        """Run the modules of this stage."""
        for name in self.module_names:
            module = self.get_submodule(name)
            if self.run_block is not None and name in self.block_names:
                x = self.run_block(self, module, x)
            else:
                x = module(x)
        return x


@dataclass(frozen=True)
class JobMesh:
    """Mesh of a layout's ranks, and this rank's groups in it.

    `mesh` has the axes ``pipeline``, ``replicate``, ``shard`` and ``tensor``, in the layout's
    order. `context` are the ranks that share this one's sequences, neighbours among those of
    ``replicate`` and ``shard``, over which FSDP2 divides states; None without context parallelism.
    `experts` is a mesh of all ranks with the axes ``pipeline``, ``expert_replicate``,
    ``expert_shard`` and ``expert``; None if experts are not divided.
    """

    mesh: DeviceMesh
    context: DeviceMesh | None = None
    experts: DeviceMesh | None = None

    @property
    def data(self) -> DeviceMesh:
        """Mesh of ranks with the same weights, over which FSDP2 shards and replicates states."""
        several = self.mesh["replicate"].size() > 1
        return self.mesh["replicate", "shard"] if several else self.mesh["shard"]

    def rank(self, axis: str) -> int:
        """Return this rank's coordinate on an axis."""
        return int(self.mesh.get_local_rank(axis))

    def axes_of_groups(self) -> dict[str, str]:
        """Return the axis, by its name in plans, of each of this rank's groups, by its name."""
        axes = {"replicate": "data", "shard": "data"}
        found: dict[str, str] = {}
        for mesh in (self.mesh,) if self.experts is None else (self.mesh, self.experts):
            for axis in mesh.mesh_dim_names or ():
                called = axes.get(axis.removeprefix("expert_"), axis)
                found.setdefault(str(mesh.get_group(axis).group_name), called)
        if self.context is not None:
            found[str(self.context.get_group().group_name)] = "context"
        return found

    @property
    def part(self) -> tuple[int, int]:
        """Number of this rank's part of the batch, and of its part of the sequences."""
        place = self.rank("replicate") * int(self.mesh["shard"].size()) + self.rank("shard")
        return divmod(place, 1 if self.context is None else int(self.context.size()))


def job_mesh(layout: Layout, device: str) -> JobMesh:
    """Return the mesh of all ranks; all of them call this.

    Raises InputError if another number of processes runs than the layout's, or context-parallel
    ranks would not be neighbours among those of the same weights.
    """
    if dist.get_world_size() != layout.devices:
        raise InputError(
            f"processes: {dist.get_world_size()}; the layout is for "
            f"{show_count(layout.devices, 'device')}: start {layout.devices}"
        )
    shards = layout.shards
    sizes = {
        "tensor": layout.tensor, "pipeline": layout.pipeline,
        "replicate": layout.replicas // shards, "shard": shards,
    }  # fmt: skip
    order = [axis for axis in layout.order if axis != "context" or layout.context > 1]
    if "context" in order:  # sequences are divided among the nearest of the ranks of a replica
        at = order.index("context")
        if order[at + 1 : at + 2] != ["data"]:
            raise InputError(f"order: {', '.join(layout.order)}; put data behind context")
        del order[at]
    nearest = [n for axis in order for n in (("shard", "replicate") if axis == "data" else (axis,))]
    axes = tuple(reversed(nearest))  # from distant ranks to neighbouring ones
    shape = tuple(sizes[axis] for axis in axes)
    made = JobMesh(dist.init_device_mesh(device, shape, mesh_dim_names=axes))
    if layout.context > 1:
        lines, count = lines_of(made.mesh, "replicate", "shard"), layout.context
        sharing = [line[k : k + count] for line in lines for k in range(0, len(line), count)]
        group, _ = dist.new_subgroups_by_enumeration(sharing)
        made = replace(made, context=DeviceMesh.from_group(group, device))
    if layout.expert > 1:
        spread = [axis for axis in axes if axis != "pipeline"]
        lines = torch.tensor(lines_of(made.mesh, *spread))
        copies = lines.shape[1] // layout.expert
        parts = math.gcd(copies, shards * layout.tensor // layout.expert) if layout.zero else 1
        names = ("pipeline", "expert_replicate", "expert_shard", "expert")
        ranks = lines.view(layout.pipeline, copies // max(parts, 1), -1, layout.expert)
        made = replace(made, experts=DeviceMesh(device, ranks, mesh_dim_names=names))
    return made


def lines_of(mesh: DeviceMesh, *axes: str) -> list[list[int]]:
    """Return the ranks that differ in some axes alone, for all coordinates on the others."""
    names = mesh.mesh_dim_names
    assert names is not None
    places = [names.index(axis) for axis in axes]
    others = [k for k in range(len(names)) if k not in places]
    lines: list[list[int]] = (
        mesh.mesh.permute(*others, *places).flatten(0, len(others) - 1).flatten(1).tolist()
    )
    return lines


def check_runs(layout: Layout) -> None:
    """Raise InputError if jobs do not run a layout, with what they run."""
    for check in (check_degrees, check_axes, check_batch):
        check(layout)
    if found := refusal(_RUN, layout):
        raise InputError(f"{found[0]}; jobs run with {found[1]} here")


def check_patterns(model: nn.Module, plan: ParallelizePlan, layout: Layout) -> None:
    """Raise InputError if a pattern matches no module, or jobs cannot divide one as it says."""
    names = [name for name, _ in model.named_modules()]
    linear = (*plan.colwise, *plan.rowwise)
    if layout.tensor > 1 and not any(_matches(name, linear) for name in names):
        raise InputError("tensor: no module of the model matches colwise or rowwise of the plan")
    for field_name in ("colwise", "rowwise"):
        for pattern in getattr(plan, field_name):
            if not any(_matches(name, (pattern,)) for name in names):
                raise InputError(f"{field_name}: no module of the model matches {pattern}")
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise InputError(f"{name}: jobs add up no sparse gradients; make it with sparse=False")
    for tied in ties_of(model) if layout.tensor > 1 else ():
        divided = {_matches(module := name.rpartition(".")[0], linear): module for name in tied}
        if len(divided) > 1:
            raise InputError(
                f"{divided[False]}: it has the weight of {divided[True]}, which the plan divides; "
                "name both in colwise or rowwise"
            )
    for first, *others in ties_of(model) if layout.replicas > 1 else ():
        for other in others:  # FSDP2 divides the weights of each block, and all others, together
            if _block(first, plan) != _block(other, plan):
                raise InputError(
                    f"{other}: another block has its weight, as {first}; jobs share weights of "
                    "blocks without data and context parallelism alone"
                )
    if layout.expert > 1 and not any(_matches(name, plan.experts) for name in names):
        raise InputError("expert: no module of the model matches experts of the plan")
    for what in layout.recompute - {Recompute.FULL, Recompute.OPERATORS}:
        if not any(_matches(name, plan.recomputed.get(what, ())) for name in names):
            raise InputError(
                f"recompute: {what.value} is no module of the model by the plan; name it in its "
                "recomputed"
            )


def _block(name: str, plan: ParallelizePlan) -> str:
    """Return the name of the block that a parameter is in; empty if it is in none."""
    inside = name.removeprefix(f"{plan.blocks}.")
    return "" if inside == name else inside.partition(".")[0]


def precision(recipe: Recipe) -> MixedPrecisionPolicy:
    """Return the precision in which FSDP2 gathers weights and reduces gradients.

    Weights and moments stay in 32 bits on the rank that updates them.
    """
    if recipe.compute == NumberFormat.FP32:
        return MixedPrecisionPolicy()
    reduced = torch.float32 if recipe.reduce_bytes == 4 else torch.bfloat16
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)


def stage_modules(model: nn.Module, plan: ParallelizePlan, layout: Layout) -> list[tuple[str, ...]]:
    """Return the names of the modules of each model stage, in the order in which they run.

    Raises InputError if the model has other blocks than the layout counts, or parameters in no
    module of the plan.
    """
    names = [f"{plan.blocks}.{name}" for name, _ in module_of(model, plan.blocks).named_children()]
    counts = layout.layers_of_stages(len(names))
    if len(counts) != layout.stages or sum(counts) != len(names):
        raise InputError(
            f"stage_layers: {len(counts)} counts of {sum(counts)} layers; the layout has "
            f"{layout.stages} model stages, and the model {len(names)} layers"
        )
    run = (*plan.before, plan.blocks, *plan.after)
    for name, _ in model.named_parameters():
        if not any(name.startswith(f"{module}.") for module in run):
            raise InputError(
                f"{name}: the plan runs no module with this parameter; name one in before or after"
            )
    found = []
    for stage, count in enumerate(counts):
        begin = sum(counts[:stage])
        before = plan.before if stage == 0 else ()
        after = plan.after if stage == layout.stages - 1 else ()
        found.append((*before, *names[begin : begin + count], *after))
    return found


def make_stage(model: nn.Module, plan: ParallelizePlan, names: Sequence[str]) -> JobStage:
    """Return a model stage of the modules of these names, which are not copied."""
    modules = {name: module_of(model, name) for name in names}
    shared = {name: module_of(model, name) for name in plan.shared}
    blocks = frozenset(name for name in names if name.rpartition(".")[0] == plan.blocks)
    return JobStage(modules, shared, blocks, plan.call)


def materialize(
    stage: JobStage,
    plan: ParallelizePlan,
    ties: Sequence[Sequence[str]],
    device: torch.device,
) -> None:
    """Move a stage to its device; parameters on the meta device are made there, and filled.

    `ties` are of the whole model: a weight is filled by its first name on every stage. Raises
    InputError if the plan does not fill parameters, or a buffer is on the meta device.
    """
    if not any(p.is_meta for p in stage.parameters()):
        stage.to(device)
        return
    if plan.initialize is None:
        raise InputError("initialize: the model is on the meta device; say what fills it")
    if empty := next((name for name, x in stage.named_buffers() if x.is_meta), None):
        raise InputError(
            f"{empty}: a buffer on the meta device has no numbers, and nothing fills it; make "
            'buffers on the CPU, with torch.device("cpu")'
        )
    own_ties = ties_of(stage)
    stage._apply(lambda x: torch.empty_like(x, device=device) if x.is_meta else x.to(device))
    tie(stage, own_ties)
    first_of = {name: first for first, *others in ties for name in others}
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            plan.initialize(first_of.get(name, name), parameter)


def ties_of(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return the names of each weight that a model has under several names."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return tuple(tuple(each) for each in names.values() if len(each) > 1)


def tie(stage: nn.Module, ties: Sequence[Sequence[str]]) -> None:
    """Register the parameter of each tie's first name under the other names, too."""
    for first, *others in ties:
        for other in others:
            module, _, leaf = other.rpartition(".")
            stage.get_submodule(module).register_parameter(leaf, stage.get_parameter(first))


def part_ties(stages: Sequence[JobStage]) -> None:
    """Give each stage of a rank its own copies of parameters that an earlier stage has."""
    seen: set[int] = set()
    for stage in stages:
        own = {id(p) for p in stage.parameters()}
        copies: dict[int, nn.Parameter] = {}
        for module in stage.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None and id(parameter) in seen:
                    copy = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                    module.register_parameter(name, copies.setdefault(id(parameter), copy))
        seen |= own


class _Gather(ParallelStyle):  # type: ignore[misc]  # torch does not say its type
    """Gathering of sequences once for a module with several layers divided by outputs.

    Its gradient is summed, and under sequence parallelism divided, once for all these layers.
    """

    def __init__(self, sequence_parallel: bool) -> None:
        super().__init__()
        self.placement = Shard(SEQUENCE_DIM) if sequence_parallel else Replicate()

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            first = next((n for n, x in kwargs.items() if isinstance(x, Tensor)), "")
            x = args[0] if args else kwargs[first]
            whole = DTensor.from_local(x, device_mesh, (self.placement,), run_check=False)
            whole = whole.redistribute(placements=(Replicate(),))
            return ((whole, *args[1:]), kwargs) if args else (args, {**kwargs, first: whole})

        module.register_forward_pre_hook(gather, with_kwargs=True)
        return module


def tensor_parallel(
    stage: JobStage, plan: ParallelizePlan, layout: Layout, mesh: DeviceMesh, *, parted_logits: bool
) -> frozenset[str]:
    """Divide a stage's linear layers over the tensor-parallel ranks.

    With `parted_logits` the head returns each rank's part of the vocabulary, as a `DTensor`, for
    `torch.distributed.tensor.parallel.loss_parallel`. Returns the names of parameters that are
    whole on every rank but see a part of the tokens or heads: their gradients have to be summed
    over the ranks. Raises InputError if a dimension does not divide.
    """
    hidden = Shard(SEQUENCE_DIM) if layout.sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {}
    parents: set[str] = set()
    divided = {
        n: m for n, m in stage.named_modules() if _matches(n, (*plan.colwise, *plan.rowwise))
    }
    for name, module in divided.items():
        parent = name.rpartition(".")[0]
        within = any(name.startswith(f"{block}.") for block in stage.block_names)
        rows, columns = module.get_parameter("weight").shape
        by_output = _matches(name, plan.colwise)
        size = rows if by_output or isinstance(module, nn.Embedding) else columns
        if size % layout.tensor:
            raise InputError(f"tensor: {layout.tensor} does not divide {name}'s {size}")
        if isinstance(module, nn.Embedding):
            alone = name in plan.before[-1:]
            styles[name] = RowwiseParallel(
                input_layouts=Replicate(), output_layouts=hidden if alone else Replicate()
            )
        elif by_output and within:
            gathered = parent not in stage.block_names
            parents |= {parent} if gathered else set()
            styles[name] = ColwiseParallel(input_layouts=Replicate() if gathered else hidden)
        elif by_output:
            styles[name] = ColwiseParallel(
                input_layouts=hidden,
                output_layouts=Shard(-1) if parted_logits else Replicate(),
                use_local_output=not parted_logits,
            )
        else:
            styles[name] = RowwiseParallel(output_layouts=hidden)
    head = plan.after[-1] if plan.after else ""
    if layout.sequence_parallel and head in stage.module_names and head not in divided:
        raise InputError(
            f"sequence_parallel: {head} would see a part of the sequence; name it in colwise"
        )
    last = plan.before[-1] if plan.before else ""
    if layout.sequence_parallel and last in stage.module_names and last not in styles:
        styles[last] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=hidden, use_local_output=True
        )
    ties = ties_of(stage)
    parallelize_module(stage, mesh, styles)
    for parent in parents:
        parallelize_module(stage.get_submodule(parent), mesh, _Gather(layout.sequence_parallel))
    tie(stage, ties)
    parted = [
        name for name in stage.module_names if layout.sequence_parallel and name not in plan.before
    ]
    inside = tuple(f"{name}." for name in (*parted, *parents))
    return frozenset(
        name
        for name, p in stage.named_parameters(remove_duplicate=False)
        if not isinstance(p, DTensor) and name.startswith(inside)
    )


def recompute(stage: JobStage, plan: ParallelizePlan, layout: Layout, number: int) -> None:
    """Checkpoint the modules of model stage `number` whose activations the layout recomputes."""
    names = [name for name in stage.module_names if name in stage.block_names]
    for name in names[: layout.recomputed_layers(number, len(names))]:
        block = stage.get_submodule(name)
        for what in layout.recompute:
            if what == Recompute.FULL:
                _checkpointed(block)
            elif what == Recompute.OPERATORS:
                _checkpointed(block, _selective)
            else:
                for n, module in block.named_modules(prefix=name):
                    if _matches(n, plan.recomputed[what]):
                        _checkpointed(module)


def _checkpointed(module: nn.Module, contexts: Callable[[], Any] | None = None) -> None:
    """Replace a module's forward pass by a checkpointed one."""
    options: dict[str, Any] = {"use_reentrant": False}
    if contexts is not None:
        options["context_fn"] = contexts
    module.forward = functools.partial(checkpoint, module.forward, **options)


def _selective() -> Any:
    """Return contexts that keep outputs of attention and of every second matrix product."""
    counts: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if operator in _ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if operator in _PRODUCTS:
            counts[context.is_recompute] += 1
            if counts[context.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    kept, again = create_selective_checkpoint_contexts(policy)
    return kept, _RepeatableContext(again, counts)


class _RepeatableContext:
    """Context of recomputation that can be entered for both halves of a split backward pass.

    torch's own removes a kept output when it is read.
    """

    def __init__(self, context: Any, counts: Counter[bool]) -> None:
        self.context, self.counts, self.kept = context, counts, context.storage

    def __enter__(self) -> None:
        self.counts[True] = 0
        self.context.storage = {key: copy(each) for key, each in self.kept.items()}
        self.context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)
        self.context.storage = self.kept


def shard(
    stage: JobStage, plan: ParallelizePlan, layout: Layout, mesh: JobMesh, *, once: bool
) -> frozenset[str]:
    """Divide a stage's experts and states over ranks, a group of FSDP2 for each block.

    With ``zero`` 0 every rank holds all states, and FSDP2 replicates. With `once` gathered weights
    stay until the schedule frees them. Returns the names of parameters of divided experts. Their
    gradients have tokens of all ranks among which experts are divided, while FSDP2 takes the mean
    over the ranks with the same experts alone: they still have to be divided by the replicas among
    the former.
    """
    again = layout.zero == 3 and layout.reshard_after_forward and not once
    options: dict[str, Any] = {
        "mp_policy": precision(layout.recipe),
        "reshard_after_forward": again,
    }
    found: set[str] = set()
    if mesh.experts is not None:
        modules = {n: m for n, m in stage.named_modules() if _matches(n, plan.experts)}
        for name, module in modules.items():
            divide_experts(name, module, mesh.experts["expert"])
            within = mesh.experts["expert_replicate", "expert_shard"]
            fully_shard(module, mesh=within, **options)
            found |= {f"{name}.{key}" for key, _ in module.named_parameters()}
    alone = mesh.data.size() == 1  # FSDP2 then only casts to the precision of computation
    for name in stage.module_names:
        if name in stage.block_names and not alone:
            fully_shard(stage.get_submodule(name), mesh=mesh.data, **options)
    if not alone or precision(layout.recipe).param_dtype is not None:
        # modules outside of blocks are needed again at once
        fully_shard(stage, mesh=mesh.data, **{**options, "reshard_after_forward": False})
    return frozenset(found)


def module_of(model: nn.Module, name: str) -> nn.Module:
    """Return a module by its name; raises InputError if the model has none."""
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise InputError(f"{type(model).__name__}: it has no module {name}") from error


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
