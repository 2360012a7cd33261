"""Tensor programs of training graphs and of single layers: tensors, signatures, seconds."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ..common.choices import Role
from ..common.errors import InputError
from ..generate.roofline import CPU_CORE, Machine, machine
from ..model.sharding import program_workload
from ..model.tensor_program import (
    COPIED,
    ITEM_BYTES,
    PARTIAL,
    Operator,
    Signature,
    Tensor,
    TensorProgram,
)
from ..model.workload import Workload
from ..operator_graph import TensorValue
from ..to_workload import suggested_cluster
from .operator_times import (
    ASSUMED_LINKS,
    WARM_UP,
    clock_name,
    host_clock,
    machine_name,
    runs_to_time,
)
from .record import flops_of
from .recorded_model import unwrapped_model
from .tensor_rules import CONSTANTS, VIEWS, name_of, signatures_of
from .tensor_trace import TrainingGraph, fake_state, named_graph, swapped_state, training_graph
from .tracing.traced import reason_of, tensors
from .tracing.unchanged import unchanged

#: Operators that return their input.
SAME = ("detach", "alias", "lift_fresh_copy", "lift_fresh")


@dataclass
class _Made:
    """Tensor program under construction."""

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)  # of a tensor, by its node
    parts: dict[str, list[int | None]] = field(default_factory=dict)  # of nodes that make several


def tensor_program(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    estimate: str | None = None,
    name: str = "",
) -> Workload:
    """Trace the training step of a model and return it as a workload with a tensor program.

    Parameters
    ----------
    model, args, kwargs
        The model and its inputs: ``model(*args, **kwargs)`` is its loss, or tensors whose sum is
        the loss. It is traced in its present mode.
    estimate
        Name of an accelerator (see `roofline.machine`) whose roofline gives the times; None to
        measure every operator on this machine's CPU, with the threads that torch has.
    name
        Name of the workload; default: the model's class.

    Returns
    -------
    Workload
        For `Sharding`. Operators without a splitting rule are computed on every device.

    Raises
    ------
    InputError
        If the model cannot be traced, or there is no such accelerator.

    Examples
    --------
    >>> import torch
    >>> workload = tensor_program(nn.Linear(4, 8), (torch.zeros(2, 4),), estimate="h100")
    >>> [operator.kind for operator in workload.program.operators][:4]
    ['parameter', 'parameter', 'input', 'aten.t']
    """
    if estimate is not None:
        return traced_program(model, args, kwargs, machine(estimate), name)[1]
    core = replace(CPU_CORE, name="process", peer=ASSUMED_LINKS["cpu"])
    traced, workload = traced_program(model, args, kwargs, core, name)
    assert workload.program is not None
    with unchanged(model, (args, dict(kwargs or {}))):
        seconds = operator_seconds(traced, model, args, dict(kwargs or {}))
    device = torch.device("cpu")
    return program_workload(
        as_measured(workload.program, seconds),
        workload.name,
        time_unit=workload.time_unit,
        cluster=workload.cluster,
        provenance={
            **{key: value for key, value in workload.provenance.items() if key != "accelerator"},
            "cost_model": "measured",
            "device": f"cpu: {machine_name('cpu')}",
            "clock": clock_name(device),
            "threads": str(torch.get_num_threads()),
            "link": "assumed",
        },
    )


def traced_program(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    target: Machine,
    name: str = "",
) -> tuple[TrainingGraph, Workload]:
    """Return the training graph of a model, and its workload: see `tensor_program`."""
    named = dict(kwargs or {})
    model = unwrapped_model(model, args, named)
    graph = training_graph(model, args, named)
    program = program_of_graph(graph, target)
    held = sum(t.size_bytes for t in program.tensors)
    workload = program_workload(
        program,
        name or type(model).__name__,
        time_unit="ms",
        cluster=suggested_cluster(target, held),
        provenance={
            "generator": "stagecut.instances.pytorch.tensors",
            "model": f"{type(model).__module__}.{type(model).__qualname__}",
            "pass": "training",
            "granularity": "ATen operators",
            "torch": torch.__version__,
            "cost_model": "roofline",
            "accelerator": f"{target.name}: {target.source}",
        },
    )
    return graph, workload


def program_of_graph(traced: TrainingGraph, target: Machine) -> TensorProgram:
    """Return the tensor program of a training graph, priced by a machine's roofline."""
    made = _Made()
    backward = False
    last_loss = traced.losses[-1]
    sources = [node for node in traced.graph.nodes if node.op == "placeholder" and node.users]
    for node in sources:
        if node.name in traced.names:
            _add_source(made, traced, node)
    for node in traced.graph.nodes:
        if node.op == "call_function":
            _add(made, node, target, backward)
        backward = backward or node is last_loss
    late = {  # of parameters that are added up it is one tensor
        traced.names[name]: made.number[node.name]
        for name, node in traced.parameters.items()
        if node is not None
    }
    trained = (one.role is Role.PARAMETER and one.name in late for one in made.operators)
    operators = (
        replace(one, gradient=late[str(one.name)]) if learns else one
        for one, learns in zip(made.operators, trained, strict=True)
    )
    return TensorProgram(tuple(made.tensors), tuple(operators))


def tensor_numbers(traced: TrainingGraph, program: TensorProgram) -> dict[fx.Node, int]:
    """Return the number of each graph node's tensor in the program."""
    known = {tensor.name: number for number, tensor in enumerate(program.tensors)}
    names = {node: _tensor_name(traced, node) for node in traced.graph.nodes}
    return {node: known[name] for node, name in names.items() if name in known}


def _add_source(made: _Made, traced: TrainingGraph, node: fx.Node) -> None:
    name = traced.names[node.name]
    stays = node.name in traced.parameters or node.name in traced.resident
    tensor = _tensor(name, node.meta["val"])
    axes = range(len(tensor.shape)) if stays else range(min(1, len(tensor.shape)))
    ways = [Signature((), (i,), tensor.shape[i]) for i in axes if tensor.shape[i] > 1]
    kind = "parameter" if node.name in traced.parameters else "buffer" if stays else "input"
    kind = "constant" if name in traced.constants else kind
    made.number[node.name] = len(made.tensors)
    made.operators.append(
        Operator(
            name,
            (),
            (len(made.tensors),),
            (*ways, Signature((), (COPIED,))),
            Role.PARAMETER if stays else Role.INPUT,
            kind,
        )
    )
    made.tensors.append(tensor)


def _add(made: _Made, node: fx.Node, target: Machine, backward: bool) -> None:
    """Add the outputs of a call; items of a tuple and aliases only get a number."""
    if node.target is operator.getitem:
        part = made.parts[node.args[0].name][node.args[1]]
        if part is not None:
            made.number[node.name] = part
        return
    kind = name_of(node)
    values = node.meta["val"]
    if kind in SAME:
        made.number[node.name] = made.number[node.all_input_nodes[0].name]
        return
    read = tuple(made.number[one.name] for one in tensor_arguments(node))
    several = isinstance(values, tuple | list)
    made.parts[node.name] = []
    outputs: list[int] = []
    for k, value in enumerate(values if several else [values]):
        if not isinstance(value, torch.Tensor):
            made.parts[node.name].append(None)
            continue
        name = f"{node.name}.{k}" if several else node.name
        outputs.append(len(made.tensors))
        made.parts[node.name].append(len(made.tensors))
        made.tensors.append(_tensor(name, value))
    if not several:
        made.number[node.name] = outputs[0]
    around = [made.tensors[t] for t in (*read, *outputs)]
    shapes = [t.shape for t in around]
    ways = signatures_of(node, shapes[: len(read)], shapes[len(read) :])
    ruled = ways is not None or not read
    copied = Signature((COPIED,) * len(read), (COPIED,) * len(outputs))
    ways = (copied,) if ways is None else _of_numbers(ways, around)
    view = kind in VIEWS
    flops = 0.0 if view else _flops(node)
    size = sum(t.size_bytes for t in around)
    made.operators.append(
        Operator(
            node.name,
            read,
            tuple(outputs),
            ways,
            kind=f"aten.{kind}",
            fixed=0.0 if view else 1e3 * target.launch_s,
            compute=1e3 * flops / target.flops_per_s,
            memory=0.0 if view else 1e3 * size / target.bytes_per_s,
            flops=flops,
            backward=backward,
            view=view,
            ruled=ruled,
        )
    )


def _of_numbers(ways: tuple[Signature, ...], around: list[Tensor]) -> tuple[Signature, ...]:
    """Return the signatures without partial sums of tensors that cannot be added."""
    return tuple(
        way
        for way in ways
        if all(
            "float" in tensor.dtype or one != PARTIAL
            for one, tensor in zip(way.inputs + way.outputs, around, strict=True)
        )
    )


def tensor_arguments(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that a call reads as tensors, in order; one read twice is there twice."""
    found: list[fx.Node] = []
    if name_of(node) in CONSTANTS:
        return found

    def visit(value: Any) -> Any:
        if isinstance(value.meta.get("val"), torch.Tensor):
            found.append(value)
        return value

    fx.map_arg((node.args, node.kwargs), visit)
    return found


def _tensor(name: str, value: torch.Tensor) -> Tensor:
    if value.layout is not torch.strided:
        raise InputError(f"tensor {name}: it is sparse, which has no parts; leave out sparse=True")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in ITEM_BYTES:
        raise InputError(f"tensor {name}: its type {dtype} cannot be planned with")
    return Tensor(name, tuple(int(extent) for extent in value.shape), dtype)


def _flops(node: fx.Node) -> float:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    return flops_of(node.target, args, kwargs, node.meta["val"])


def operator_seconds(
    traced: TrainingGraph, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, float]:
    """Return the median seconds of each call of a training graph, by its node's name.

    The graph runs again and again on the model's numbers, as `measure_kernels` does it. InputError
    if the model is not on a CPU, or fails when it runs.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    inputs = {f"input {k}": value for k, value in enumerate(tensors((args, dict(kwargs))))}
    values = {name: value.detach() for name, value in (state | inputs).items()}
    values |= traced.constants
    if any(value.device.type != "cpu" for value in values.values()):
        raise InputError("model: operators are measured on CPUs alone; give --estimate")
    clock = host_clock(torch.device("cpu"))
    seconds: dict[str, list[float]] = {}

    class Timed(fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: fx.Node) -> Any:
            begun = clock()
            made = super().run_node(node)
            if node.op == "call_function" and node.target is not operator.getitem:
                seconds.setdefault(node.name, []).append(clock() - begun)
            return made

    running = Timed(fx.GraphModule(nn.Module(), traced.graph))
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for _ in runs_to_time():
        given = [values.get(traced.names.get(node.name, "")) for node in placeholders]
        for k, node in enumerate(placeholders):
            if node.name in traced.resident:  # statistics change
                given[k] = values[traced.names[node.name]].clone()
        try:
            with torch.no_grad():
                running.run(*given, enable_io_processing=False)
        except RuntimeError as error:
            reason = reason_of(error, model)
            raise InputError(f"model: it fails when it runs: {reason}") from None
    return {name: statistics.median(each[WARM_UP:]) for name, each in seconds.items()}


def as_measured(program: TensorProgram, seconds: Mapping[str, float]) -> TensorProgram:
    """Return a program with the roofline's times of a CPU core replaced by measured ones, in ms.

    The median time of a view is that of a call without work, which is fixed. The rest of an
    operator's time scales with its work or its bytes, in the roofline's proportion.
    """
    views = [seconds[str(o.name)] for o in program.operators if o.view and o.name in seconds]
    call = 1e3 * statistics.median(views) if views else 0.0

    def measured(one: Operator) -> Operator:
        if one.name not in seconds:
            return one
        taken = 1e3 * seconds[str(one.name)]
        if one.view:
            return replace(one, fixed=taken)
        fixed = min(taken, call)
        # with neither work nor bytes (empty tensors), the rest counts as memory
        compute, memory = one.compute, one.memory or float(one.compute == 0)
        factor = (taken - fixed) / max(compute, memory)
        return replace(one, fixed=fixed, compute=factor * compute, memory=factor * memory)

    return TensorProgram(program.tensors, tuple(map(measured, program.operators)))


#: Name of the operator that reads the tensors that leave a layer.
LEAVES = "leaves"


@dataclass(frozen=True, eq=False)
class LayerProgram:
    """The program of a layer, with the tensors that enter and leave the layer."""

    graph: TrainingGraph  # of the forward and the backward pass
    program: TensorProgram  # of the graph, and `LEAVES`
    # for each input the number of its tensor; None if nothing reads it
    entering: tuple[int | None, ...]
    outputs: tuple[int, ...]  # for each output the number of its tensor
    # for each output the number of its gradient's tensor; None if nothing reads it
    arriving: tuple[int | None, ...]
    # for each input the number of its gradient's tensor; None if it has none
    gradients: tuple[int | None, ...]


def layer_program(
    module: nn.Module,
    inputs: Sequence[TensorValue],
    outputs: Sequence[int],
    target: Machine,
) -> LayerProgram:
    """Return the program of a layer's forward and backward pass, priced by a machine's roofline.

    Every device has copies of the inputs and of the outputs' gradients, and must get copies of the
    outputs and of the inputs' gradients: the operator `LEAVES` reads them as copies, in no time. So
    the sharding of a layer does not depend on its neighbours'. The module takes
    the inputs in order and returns a tuple, of which it makes the `outputs` itself; other tensors
    only pass through. InputError says why it cannot be traced.
    """
    graph, learned, reached = _traced(module, inputs, outputs)
    ends = [_tensor_name(graph, node) for node in graph.losses]
    last = max(graph.losses[: len(outputs)], key=list(graph.graph.nodes).index)
    graph = replace(graph, losses=(last,))
    program = program_of_graph(graph, target)
    number = {tensor.name: t for t, tensor in enumerate(program.tensors)}
    made = tuple(number[name] for name in ends[: len(outputs)])
    left = (number[name] for name in ends[len(outputs) :])
    gradients = tuple(next(left) if one else None for one in reached)
    read = sorted({*made, *(t for t in gradients if t is not None)})
    copied = Signature((COPIED,) * len(read), (COPIED,))
    done = len(program.tensors)
    leaves = Operator(LEAVES, tuple(read), (done,), (copied,))
    names = iter(range(len(inputs), len(inputs) + len(made)))
    whole = (Signature((), (COPIED,)),)
    arriving = (
        replace(one, signatures=whole) if one.role is Role.INPUT else one
        for one in program.operators
    )
    return LayerProgram(
        graph,
        TensorProgram((*program.tensors, Tensor(LEAVES, ())), (*arriving, leaves)),
        tuple(number.get(f"input {k}") for k in range(len(inputs))),
        made,
        tuple(number.get(f"input {next(names)}") if has else None for has in learned),
        gradients,
    )


def _traced(
    module: nn.Module, inputs: Sequence[TensorValue], outputs: Sequence[int]
) -> tuple[TrainingGraph, list[bool], list[bool]]:
    """Return a graph of outputs and inputs' gradients, and which outputs and inputs have one."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    held = {x.device for x in (*module.parameters(), *module.buffers())}
    device = next((x for x in held if x.type != "meta"), torch.device("cpu"))
    with mode:
        given = [
            torch.empty(x.shape, dtype=x.dtype, device=device, requires_grad=x.grad) for x in inputs
        ]
    weights, buffers = fake_state(module, mode)
    trained = [name for name, value in weights.items() if value.requires_grad]
    learned: list[bool] = []
    reached = [False] * len(given)

    def forward(given: Any) -> list[torch.Tensor]:
        made = module(*given)
        return [made[k] for k in outputs]

    def step(weights: Any, buffers: Any, given: Any, arriving: Any) -> tuple[Any, Any]:
        with swapped_state(module, {**weights, **buffers}):
            return both_ways(weights, given, arriving)

    def both_ways(weights: Any, given: Any, arriving: Any) -> tuple[Any, Any]:
        made = forward(given)
        entering = [k for k, x in enumerate(given) if x.requires_grad]
        wanted = [given[k] for k in entering] + [weights[name] for name in trained]
        learned[:] = [x.requires_grad for x in made]
        if not any(learned) or not wanted:
            return made, [None] * len(trained)
        roots = [x for x in made if x.requires_grad]
        found = torch.autograd.grad(roots, wanted, arriving, allow_unused=True)
        for k, x in zip(entering, found, strict=False):
            reached[k] = x is not None
        count = len(entering)
        return [*made, *(x for x in found[:count] if x is not None)], list(found[count:])

    try:
        with mode:
            with swapped_state(module, {**weights, **buffers}):
                made = forward(given)
            arriving = [torch.empty_like(x) for x in made if x.requires_grad]
            traced = make_fx(step)(weights, buffers, given, [x.detach() for x in arriving])
    except Exception as error:  # the user's code may fail in any way
        raise InputError(
            f"a layer cannot be traced: {reason_of(error, module)}; plan it without tensor degrees"
        ) from None
    if traced.graph.find_nodes(op="get_attr"):
        raise InputError(
            "a layer holds a tensor that is no parameter or buffer; register it as a buffer, or "
            "plan it without tensor degrees"
        )
    return named_graph(traced, weights, buffers, trained, (given, arriving)), learned, reached


def _tensor_name(graph: TrainingGraph, node: fx.Node) -> str:
    """Return the name that a node's tensor has in the program of its graph."""
    while node.op == "call_function" and name_of(node) in SAME:
        node = node.all_input_nodes[0]
    if node.op == "placeholder":
        return graph.names.get(node.name, node.name)
    if node.target is operator.getitem:
        return f"{node.args[0].name}.{node.args[1]}"
    return str(node.name)
