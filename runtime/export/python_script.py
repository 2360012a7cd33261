"""Export of plans as Python scripts that run them with torch alone.

All scripts have the same template, and a class for each stage of the plan, with its operators in
the order of the traced graph. Operators under autocast or `set_grad_enabled`, which the trace has
in graphs of their own (`instances/pytorch/tracing/trace.py`), are in ``with`` blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator

from ...instances import InputError
from ...instances.common.errors import quote
from ...instances.common.escape import docstring
from ..execution.split import PieceModule
from ..schedules import Schedule, write_csv
from ..schedules.actions import Action, Kind, schedule_of

TEMPLATE = '''\
"""{title}: {count} stages on {ranks} processes, with torch alone.

    torchrun --nproc-per-node {ranks} THIS_FILE --steps 10

{where}

Each process is a rank. A stage takes what the one before hands on and gives all that later stages
need. "Yours" marks what you will want to replace: data, loss, optimizer.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import islice, repeat

import torch
import torch.distributed as dist
from torch import device, inf, nan, nn  # noqa: F401
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
from torch.utils._pytree import tree_leaves

{importing}

aten = torch.ops.aten
TRAINING = {training}
MICROBATCHES = {microbatches}  # of a pipeline
# The ranks of each replica of the pipeline, in the order of SCHEDULE's rows.
PIPELINES = {pipelines}
# Parameters with a copy on several ranks, and the rows of SCHEDULE of these.
TIED = {tied}
# A row per rank. 2F0 is the forward pass of microbatch 0 on stage 2, B the backward pass, I and W
# its two halves: gradients of inputs, gradients of weights.
SCHEDULE = """\\
{schedule}"""

RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
GPUS = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
DEVICE = torch.device("cuda", LOCAL_RANK) if GPUS else torch.device("cpu")


def take(stage, model, *names):
    """Give a stage tensors (or modules) of the model, under their names there."""
    for name in names:
        found = model
        for part in name.split("."):
            found = getattr(found, part)
        put(stage, name, found)


def put(stage, name, value):
    """Register a value of a stage under a name such as layers.0.weight."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(stage, part):
            stage.add_module(part, nn.Module())
        stage = getattr(stage, part)
    if isinstance(value, nn.Module):
        stage.add_module(last, value)
    elif isinstance(value, nn.Parameter):
        stage.register_parameter(last, value)
    else:
        stage.register_buffer(last, value)


def returns_whole(*inputs):
    """Let gradients of inputs be contiguous, as torch's sends require."""
    for x in inputs:
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient.contiguous())


# TAKES and GIVES: shapes and types of a stage's inputs and outputs, and whether a gradient returns.


{stages}


def loss_of(outputs, target):
    """Loss of a microbatch.{loss_words}"""
{loss}


def microbatches(inputs):
    """Yield the tensors that the first stage takes. Yours: here those of the factory, again and
    again, unless it gives an iterator."""
    for one in inputs if isinstance(inputs, Iterator) else repeat(inputs):
        yield [x.to(DEVICE) for x in tree_leaves(one) if isinstance(x, torch.Tensor)]


def made_up():
    """Inputs of the shapes that the model was traced for."""
    for shape, dtype, _ in Stage0.TAKES:
        yield torch.randn(shape) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


def tensors(passes):
    """Empty tensors of the shapes and types of TAKES or GIVES."""
    return tuple(
        torch.empty(shape, dtype=dtype, device="meta", requires_grad=gradient and TRAINING)
        for shape, dtype, gradient in passes
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    if not hasattr(_PipelineScheduleRuntime, "_prepare_schedule_with_comms"):
        sys.exit(f"torch {{torch.__version__}} is too old; this was tested with 2.13 and 2.15")
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    if dist.get_world_size() != {ranks}:
        sys.exit(f"{{dist.get_world_size()}} processes; the plan is for {ranks}")
    torch.manual_seed(0)  # every rank makes the same model, and keeps its stages
    made = {call}
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if model.training != TRAINING:
        model.train(TRAINING)
    data = microbatches(tuple(made_up()) if inputs is None else inputs)

    replica, ranks = next((r, ranks) for r, ranks in enumerate(PIPELINES) if RANK in ranks)
    several, pipeline, alike = len(PIPELINES) > 1, dist.group.WORLD, None
    if several:
        pipeline = [dist.new_group(ranks) for ranks in PIPELINES][replica]
        alike = [dist.new_group(list(same)) for same in zip(*PIPELINES)][ranks.index(RANK)]
    order = {{
        dist.get_group_rank(pipeline, rank): [_Action.from_str(c) for c in row.split(",") if c]
        for rank, row in zip(ranks, SCHEDULE.splitlines(), strict=True)
    }}
    own = sorted({{action.stage_index for action in order[dist.get_rank(pipeline)]}})
    stages = []
    for s in own:
        stage = globals()[f"Stage{{s}}"](model).to(DEVICE)
        takes, gives = tensors(stage.TAKES), tensors(stage.GIVES)
        options = {{"input_args": takes, "output_args": gives, "group": pipeline}}
        stages.append(PipelineStage(stage, s, {count}, DEVICE, **options))
    copies = []  # tied parameters here, and the group of ranks that add up their gradients
    for name, rows in TIED.items():
        for members in PIPELINES:
            group = dist.new_group([members[row] for row in rows])
            if RANK in [members[row] for row in rows]:
                copies.append((model.get_parameter(name), group))
    loss_fn = loss_of if TRAINING else None
    schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss_fn, scale_grads=False)
    schedule.pipeline_order = order
    schedule._prepare_schedule_with_comms(order)

    first, last = 0 in own, {final} in own
    parameters = {{id(p): p for s in stages for p in s.submod.parameters()}}.values()
    optimizer = torch.optim.SGD(parameters, lr=0.01) if TRAINING and parameters else None  # yours
    for step in range(steps):
        every = len(PIPELINES)  # each replica takes microbatches of its own
        given = list(islice(data, replica, MICROBATCHES * every, every)) if first else []
        batch = [torch.cat(parts) for parts in zip(*given, strict=True)]  # torch takes it apart
        if not TRAINING:
            with torch.no_grad():
                outputs = schedule.eval(*batch)
            if last and replica == 0:
                mean = (outputs[0] if isinstance(outputs, tuple) else outputs).float().mean()
                print(f"step {{step + 1}}: mean of the first output {{mean:.8g}}", flush=True)
            continue
        losses = []
        nothing = torch.zeros(MICROBATCHES, device=DEVICE)  # yours: targets, if loss_of takes any
        schedule.step(*batch, target=nothing if last else None, losses=losses if last else None)
        if optimizer is not None:
            for p, group in copies:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=group)
            for p in parameters if several else ():
                if p.grad is not None:
                    dist.all_reduce(p.grad.div_(len(PIPELINES)), group=alike)
            optimizer.step()
            optimizer.zero_grad()
        if last:
            loss = torch.stack(losses).sum() / len(PIPELINES)
            if several:
                dist.all_reduce(loss, group=alike)
            if replica == 0:
                print(f"step {{step + 1}}: loss {{loss:.8g}}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


#: Operator → context in a script, and the number of its arguments in that.
_SAID = {
    "wrap_with_autocast": ("torch.autocast({!r}, {!r}, {!r}, {!r})", 4),
    "wrap_with_set_grad_enabled": ("torch.set_grad_enabled({!r})", 1),
}


#: Largest constant in a script, in numbers.
MOST_NUMBERS = 256


#: Names that fx imports by itself, and the script, too.
_KNOWN = {"inf", "nan", "NoneType", "torch", "device", "fx_pytree", "pytree"}


@dataclass(frozen=True)
class MappedRanks:
    """Ranks of a mapped plan: of each replica of the pipeline, in the order of its stages.

    `devices` has the name of each rank's device in the topology.
    """

    pipelines: tuple[tuple[int, ...], ...]
    devices: tuple[str, ...]


def python_script(
    model: nn.Module,
    pieces: Sequence[PieceModule],
    schedule: Schedule,
    *,
    factory: str,
    call: str,
    training: bool = True,
    title: str = "A plan",
    mapped: MappedRanks | None = None,
) -> str:
    """Return the script of a model and the plan's pieces in order.

    The schedule has a row per rank, of a mapping a row per stage, whose ranks are `mapped`.
    `factory`, as in ``module:factory`` or ``file.py:factory``, makes the model by the expression
    `call`, such as ``make(batch=8)``. Raises `InputError` if the model has large constants or code
    that is not torch's, or an input is a single number.
    """
    pieces = [replace(piece, module=inlined(piece.module)) for piece in pieces]
    rows = range(len(schedule.actions))
    pipelines = (tuple(rows),) if mapped is None else mapped.pipelines
    first = pieces[0]
    if any(not first.values[name].shape for name in first.inputs):
        raise InputError("python: an input of the model is a single number; torch cuts batches")
    row_of = {a.stage: r for r in rows for a in schedule.of(r)}
    places = {s: f"rank {row}" for s, row in row_of.items()}
    if mapped is not None:
        places = {s: _places(own, mapped) for s, own in enumerate(zip(*pipelines, strict=True))}
    order = schedule if training else with_backward(schedule)
    loss_words, loss = _loss(pieces[-1], training)
    return TEMPLATE.format(
        title=docstring(title),
        ranks=len(pipelines) * len(rows),
        pipelines=list(map(list, pipelines)),
        tied=_tied(pieces, row_of) if training else {},
        count=len(pieces),
        final=len(pieces) - 1,
        where="\n".join(_line(piece, places[piece.index]) for piece in pieces),
        importing=_importing(factory),
        call=call,
        training=training,
        microbatches=schedule.microbatches,
        schedule=write_csv(order),
        stages="\n\n\n".join(stage_class(p, model, p is pieces[-1]) for p in pieces),
        loss_words=loss_words,
        loss=loss,
    )


def with_backward(schedule: Schedule) -> Schedule:
    """Return an inference schedule with backward passes at its end, which torch requires.

    Torch's `eval` skips them.
    """
    rows = []
    for r in range(len(schedule.actions)):
        own = schedule.of(r)
        stages = sorted({action.stage for action in own}, reverse=True)
        behind = [Action(s, Kind.B, m) for m in range(schedule.microbatches) for s in stages]
        rows.append([*own, *behind])
    return schedule_of(rows, name=schedule.name, microbatches=schedule.microbatches)


def _tied(pieces: Sequence[PieceModule], row_of: Mapping[int, int]) -> dict[str, list[int]]:
    """Return the rows of each learned parameter that several rows of a schedule have."""
    found: dict[str, set[int]] = {}
    for piece in pieces:
        for name, parameter in piece.parameters.items():
            if parameter.requires_grad:
                found.setdefault(name, set()).add(row_of[piece.index])
    return {name: sorted(rows) for name, rows in found.items() if len(rows) > 1}


def _places(ranks: Sequence[int], mapped: MappedRanks) -> str:
    """Return the ranks of a stage's replicas, with their devices."""
    named = ", ".join(f"{rank} ({docstring(mapped.devices[rank])})" for rank in ranks)
    return f"rank{'s' * (len(ranks) > 1)} {named}"


def _line(piece: PieceModule, place: str) -> str:
    """Return the line of a stage in the script's docstring."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in piece.parameters))
    held = f"{modules[0]} … {modules[-1]}" if len(modules) > 2 else ", ".join(modules)
    return f"    stage {piece.index} on {place}: {docstring(held) or 'no weights'}"


def _importing(factory: str) -> str:
    """Return the lines that import the factory."""
    place, _, name = factory.rpartition(":")
    module = place.rpartition("/")[2].removesuffix(".py")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise InputError(
            f"--model: a script imports {quote(factory)} by its name, which is none in Python; "
            "rename file or factory"
        )
    if not place.endswith(".py"):
        return f'sys.path.insert(0, "")\nfrom {place} import {name}'
    folder = place.rpartition("/")[0] or "."
    return f"sys.path.insert(0, {folder!r})\nfrom {module} import {name}"


def _loss(piece: PieceModule, training: bool) -> tuple[str, str]:
    """Return a comment on the loss, and the body of `loss_of`."""
    values = [piece.values[name] for name in piece.outputs]
    derivable = [k for k, value in enumerate(values) if value.grad]
    single = [k for k in derivable if not values[k].shape or set(values[k].shape) == {1}]
    if single:
        return " The model's own.", f"    return outputs[{single[0]}].sum() / MICROBATCHES"
    means = " + ".join(f"outputs[{k}].float().mean()" for k in derivable)
    words = " Yours: this stands for one, and teaches nothing." if training else ""
    return words, f"    return ({means or 'outputs[0].sum()'}) / MICROBATCHES"


def stage_class(piece: PieceModule, model: nn.Module, last: bool) -> str:
    """Return the source of the class ``StageK``.

    Raises `InputError` if it holds a large constant that the model does not, or code that is not
    torch's.
    """
    code = piece.module.graph.python_code("self")
    for name, value in code.globals.items():
        if name not in _KNOWN:
            raise InputError(
                f"python: stage {piece.index} calls {getattr(value, '__name__', name)}, which is "
                "not torch's; run the plan with stagecut run"
            )
    own = taken(piece.module.graph)
    lines = [f"class Stage{piece.index}(nn.Module):"]
    lines.append(f"    TAKES = {_described(piece, piece.inputs, False)}")
    lines.append(f"    GIVES = {_described(piece, piece.outputs, last)}")
    lines += ["", "    def __init__(self, model):", "        super().__init__()"]
    lines.append("        take(")
    lines.append("            self,")
    lines.append("            model,")
    constants = [name for name in own if not _is_the_models(piece, model, name)]
    lines += [f"            {name!r}," for name in own if name not in constants]
    lines.append("        )")
    lines += [f"        put(self, {name!r}, {_literal(piece, name)})" for name in constants]
    return "\n".join([*lines, "", *_forward(piece, code.src, last)])


def taken(graph: fx.Graph) -> tuple[str, ...]:
    """Return the names of the tensors and modules that a graph reads."""
    found = [str(n.target) for n in graph.nodes if n.op in ("get_attr", "call_module")]
    return tuple(dict.fromkeys(found))


def _forward(piece: PieceModule, source: str, last: bool) -> list[str]:
    """Return the lines of `forward`, as fx writes them, made to be read."""
    lines = []
    nodes = piece.module.graph.nodes
    around = {n.name: str(n.meta["around"]) for n in nodes if "around" in n.meta}
    for line in source.strip().splitlines():
        line = re.sub(r";  (\w+ = )+None$", "", line.rstrip())
        line = line.replace("torch.ops.aten.", "aten.")
        line = re.sub(r"device\(type='\w+'(, index=\d+)?\)", "DEVICE", line)
        if line.strip().startswith("return "):
            values = [_handed_on(piece, name, last) for name in piece.outputs]
            line = f"    return ({', '.join(values)},)"
        name = line.strip().partition(" = ")[0]
        if name in around:
            lines += [f"        with {around[name]}:", f"        {line}"]
        else:
            lines.append(f"    {line}")
    back = [name for name in piece.inputs if piece.values[name].grad]
    if back:
        lines.insert(1, f"        returns_whole({', '.join(back)})")
    return lines


def _handed_on(piece: PieceModule, name: str, last: bool) -> str:
    single = last and not piece.values[name].shape
    return f"{name}.reshape(1)" if single else f"{name}.contiguous()"


def _described(piece: PieceModule, names: tuple[str, ...], last: bool) -> str:
    parts = []
    for name in names:
        value = piece.values[name]
        shape = (1,) if last and not value.shape else tuple(value.shape)
        parts.append(f"({shape}, {value.dtype}, {value.grad})")
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def _find(root: nn.Module, name: str) -> object:
    found: object = root
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_the_models(piece: PieceModule, model: nn.Module, name: str) -> bool:
    mine, theirs = _find(piece.module, name), _find(model, name)
    if isinstance(mine, nn.Module):
        return isinstance(theirs, nn.Module)
    return isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)


def _literal(piece: PieceModule, name: str) -> str:
    value = _find(piece.module, name)
    if not isinstance(value, torch.Tensor):
        raise InputError(f"python: {name} is no tensor of the model; run it with stagecut run")
    if value.numel() > MOST_NUMBERS:
        raise InputError(
            f"python: the constant {name} has {value.numel()} numbers, too many for a script; "
            "make it a buffer of the model"
        )
    return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"


def inlined(module: fx.GraphModule) -> fx.GraphModule:
    """Return nested operators in one graph, with their contexts in `meta["around"]`."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for n in module.graph.nodes:
        found = _SAID.get(n.target.name()) if isinstance(n.target, HigherOrderOperator) else None
        if found is None:
            new[n] = graph.node_copy(n, new.__getitem__)
            continue
        words, count = found
        inner: fx.GraphModule = module.get_submodule(str(n.args[count].target))
        for part, given in zip(
            inner.graph.find_nodes(op="placeholder"), n.args[count + 1 :], strict=True
        ):
            new[part] = new[given]
        operator = next(part for part in inner.graph.nodes if part.op == "call_function")
        new[n] = graph.node_copy(operator, new.__getitem__)
        new[n].name = n.name
        new[n].meta["around"] = words.format(*n.args[:count])
    graph.eliminate_dead_code(lambda n: n.op != "get_attr")
    return fx.GraphModule(module, graph)
