"""Stages of a plan as modules for torch's own pipeline schedules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn

from .checkpoint import state_held
from .gradients import GradientSums, clip_norm, holders_of
from .prepare import Prepared
from .split import PieceModule
from .stage import named_tensors, place, register

#: Arguments of operators that are false or 0 in evaluation.
_OF_TRAINING = ("train", "training", "use_input_stats", "dropout_p")


class StageModule(nn.Module):  # type: ignore[misc]  # torch does not say its type
    """Stage of a pipeline, for `torch.distributed.pipelining.PipelineStage`.

    ``forward(*inputs)`` takes the outputs of the stage before, in the first stage the model's
    tensors in the order of its inputs. It returns a tuple; the last stage of a model with one
    output returns this. Parameters and buffers are the model's own, under the model's names, a tied
    one under all of them: the ``state_dict`` of all stages together are the model's. Tensors that
    no stage uses are buffers of the first.

    Parameters
    ----------
    piece
        Piece that it runs.
    number
        Position in the pipeline, from 0.
    last
        Whether its outputs are the model's.
    training
        Whether there is a backward pass.

    Attributes
    ----------
    number
        Position in the pipeline, from 0.
    plan_device
        Number of the plan's device.
    takes, gives
        Tensors on the meta device with shapes and types of inputs and outputs, which require a
        gradient where one is sent back: `input_args` and `output_args` of torch's `PipelineStage`.

    Examples
    --------
    >>> import stagecut, torch
    >>> with torch.device("meta"):  # so large that two devices gain something
    ...     model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(4)))
    ...     inputs = torch.zeros(2048, 8192)
    >>> planned = stagecut.plan(model, inputs, devices=2, estimate="h100")
    >>> first, last = planned.stages(model)
    >>> list(first.state_dict()), last.number, tuple(last.takes[0].shape)
    (['0.weight', '0.bias', '1.weight', '1.bias'], 1, (2048, 8192))
    """

    def __init__(self, piece: PieceModule, number: int, last: bool, training: bool) -> None:
        super().__init__()
        module, own = piece.module, self.__dict__
        if last and len(piece.outputs) == 1:
            end = module.graph.output_node()
            end.args = tuple(end.args[0])
        _follow_training(module)
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[table] = vars(module)[table]
        # not by `setattr`, which refuses the names of the model's parts
        own.update(
            number=number,
            plan_device=piece.device,
            takes=_empty(piece, piece.inputs, training),
            gives=_empty(piece, piece.outputs, training),
            _last=last,
            _code=type(module).forward,
        )

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Run the piece; tensors and gradients that are sent are contiguous, as torch requires."""
        for x in inputs:
            if x.requires_grad:
                x.register_hook(lambda gradient: gradient.contiguous())
        outputs = self._code(_Parts(self), *inputs)
        return outputs if self._last else tuple(x.contiguous() for x in outputs)


class _Parts:
    """Parts of the model in a stage as attributes, apart from the stage's own."""

    def __init__(self, stage: nn.Module) -> None:
        self.training = stage.training
        for table in (stage._parameters, stage._buffers, stage._modules):
            for name, part in table.items():
                setattr(self, name, part)


def stage_modules(prepared: Prepared, device: torch.device | None = None) -> list[StageModule]:
    """Return the stages of a plan in the order in which they run.

    Parameters
    ----------
    prepared
        A plan and a model, as `split_model` returns them; its pieces are used up.
    device
        Device to move them to, with the constants that they make; default: that of the model.

    Returns
    -------
    list of StageModule
        A stage per piece.

    Examples
    --------
    >>> import stagecut, torch
    >>> with torch.device("meta"):  # so large that two devices gain something
    ...     model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(4)))
    ...     inputs = torch.zeros(2048, 8192)
    >>> planned = stagecut.plan(model, inputs, devices=2, estimate="h100")
    >>> planned.save("plan.json")  # for another process, which makes the model, too
    >>> from pathlib import Path
    >>> prepared = stagecut.split_model(Path("plan.json"), model, (inputs,))
    >>> len(stage_modules(prepared))
    2
    """
    held: list[tuple[str, torch.Tensor]] = []
    for piece in prepared.pieces:
        held += _named_as_in(prepared.model, piece.module)
        if device is not None:
            place(piece.module, device)
    last = len(prepared.pieces) - 1
    stages = [
        StageModule(piece, s, s == last, prepared.training)
        for s, piece in enumerate(prepared.pieces)
    ]
    for name, value in state_held(prepared.model, held).untouched.items():
        register(stages[0], name, value.detach())  # no optimizer has anything to do with it
    return stages


def tied_gradients(stages: Sequence[StageModule]) -> Callable[[], None]:
    """Return the all-reduce of gradients of tied weights with copies on several stages.

    Every rank makes it at the same time, and calls it before each step of its optimizer.

    Parameters
    ----------
    stages
        All stages of the pipeline; stage s runs on rank s modulo the number of ranks.

    Returns
    -------
    Callable
        Function without arguments, which waits for the other ranks if there are such weights.

    Examples
    --------
    >>> import torch
    >>> from stagecut.runtime.execution.stage_modules import tied_gradients
    >>> torch.distributed.is_initialized()  # torchrun starts what can call it
    False
    """
    sums = GradientSums(_holders(stages))
    return partial(sums.add_up, _learned_here(stages))


def clip_gradients(stages: Sequence[StageModule], max_norm: float) -> torch.Tensor:
    """Scale the gradients so that those of the whole model have at most this norm.

    Every rank calls it, after `tied_gradients` and before each step of its optimizer.

    Parameters
    ----------
    stages
        All stages of the pipeline; stage s runs on rank s modulo the number of ranks.
    max_norm
        Euclidean norm, over all gradients of all stages; a tied weight counts once.

    Returns
    -------
    Tensor
        The norm before, the same on all ranks.

    Examples
    --------
    >>> import torch
    >>> from stagecut.runtime.execution.stage_modules import clip_gradients
    >>> torch.distributed.is_initialized()  # torchrun starts what can call it
    False
    """
    return clip_norm(_learned_here(stages), _holders(stages), max_norm)


def _holders(stages: Sequence[StageModule]) -> dict[str, frozenset[int]]:
    world = dist.get_world_size()
    names = [[name for name, _ in stage.named_parameters()] for stage in stages]
    return holders_of(names, [[stage.number % world] for stage in stages])


def _learned_here(stages: Sequence[StageModule]) -> dict[str, nn.Parameter]:
    world, rank = dist.get_world_size(), dist.get_rank()
    own = [stage for stage in stages if stage.number % world == rank]
    return {n: x for stage in own for n, x in stage.named_parameters() if x.requires_grad}


def _named_as_in(model: nn.Module, stage: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Register a stage's tensors under all their names in the model's `state_dict`, and no others.

    Returns them with the names that they had before.
    """
    held = list(named_tensors(stage))
    own = {id(x) for _, x in held}
    whole = model.state_dict(keep_vars=True)
    for name, _ in stage.named_buffers(remove_duplicate=False):
        if name not in whole:  # a constant of the graph, or a buffer that the model does not keep
            owner, _, leaf = name.rpartition(".")
            stage.get_submodule(owner)._non_persistent_buffers_set.add(leaf)
    present = set(stage.state_dict(keep_vars=True))
    for name, value in whole.items():
        if id(value) in own and name not in present:
            register(stage, name, value)
    _order_as_in(model, stage)
    return held


def _order_as_in(model: nn.Module, stage: nn.Module) -> None:
    """Order the stage's parameters as in the model, so that tied weights keep their names."""
    for mine, theirs in (
        (stage._parameters, model._parameters),
        (stage._modules, model._modules),
    ):
        for name in [n for n in theirs if n in mine] + [n for n in mine if n not in theirs]:
            mine[name] = mine.pop(name)
    for name, child in stage._modules.items():
        other = model._modules.get(name)
        if child is not None and other is not None and child is not other:
            _order_as_in(other, child)


def _empty(piece: PieceModule, names: tuple[str, ...], training: bool) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.empty(value.shape, dtype=value.dtype, device="meta").requires_grad_(
            value.grad and training
        )
        for value in (piece.values[name] for name in names)
    )


def _follow_training(module: fx.GraphModule, counters: frozenset[fx.Node] = frozenset()) -> None:
    """Let dropout and norms that were traced in training follow the module's `training`.

    Norms without running statistics use those of the batch in both modes. `counters` are the inputs
    of the graph that count batches.
    """
    graph = module.graph
    for n in list(graph.nodes):
        for k, part in enumerate(n.args):  # operators under autocast are in graphs of their own
            inner = _attribute(module, part)
            if isinstance(inner, fx.GraphModule):
                read = zip(inner.graph.find_nodes(op="placeholder"), n.args[k + 1 :], strict=True)
                counting = frozenset(p for p, x in read if _counts_batches(x, counters))
                _follow_training(inner, counting)
        if not isinstance(n.target, torch._ops.OpOverload):
            continue
        names = [argument.name for argument in n.target._schema.arguments]
        given: dict[str, Any] = dict(zip(names, n.args, strict=False)) | n.kwargs
        if "running_mean" in names and given["running_mean"] is None:
            continue
        followed = [name for name in _OF_TRAINING if given.get(name)]
        if n.target is torch.ops.aten.add_.Tensor and _counts_batches(n.args[0], counters):
            followed.append("other")
        for name in followed:
            if isinstance(given[name], fx.Node):  # two pieces that compute it have one graph of it
                continue
            with graph.inserting_before(n):
                mode = graph.create_node("get_attr", "training")
                kept = operator.and_ if isinstance(given[name], bool) else operator.mul
                value = graph.call_function(kept, (given[name], mode))
            if name in n.kwargs:
                n.update_kwarg(name, value)
            else:
                n.update_arg(names.index(name), value)
    module.recompile()


def _attribute(module: nn.Module, part: Any) -> Any:
    is_one = isinstance(part, fx.Node) and part.op == "get_attr"
    return attrgetter(str(part.target))(module) if is_one else None


def _counts_batches(read: Any, counters: frozenset[fx.Node]) -> bool:
    if not isinstance(read, fx.Node):
        return False
    return read in counters or str(read.target).endswith("num_batches_tracked")
