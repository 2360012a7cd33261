"""Recording of one pass over a traced model with fake tensors: kernels, FLOPs, reads, writes.

The backward pass is autograd's own: the traced forward graph is executed with autograd on, every
autograd node is assigned to the step that made it, then the engine runs, and hooks on its nodes
separate their kernels. So the recording has the kernels that torch runs, not a compiler's.

FLOPs follow torch's formulas, except for those here: FlopCounterMode counts the fused attention of
GPUs as if a causal mask saved nothing; and neither the fused attention of CPUs, nor products of
grouped matrices (mixtures of experts), nor oneDNN's LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ..common.errors import InputError
from ..operator_graph import (
    BackwardStep,
    ExecutedNode,
    KernelCall,
    Parameter,
    Read,
    Recording,
    TensorValue,
)
from .tracing.traced import (
    Traced,
    as_fake,
    has_no_data,
    loss_of,
    mode_of,
    plain,
    quiet,
    reason_of,
    size,
    swapped_tensors,
    tensors,
    varying,
)
from .tracing.unchanged import unchanged

#: Operators that allocate, view or check memory, but compute nothing.
_FREE = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view"}
    | {"_assert_tensor_metadata", "_assert_async", "_local_scalar_dense", "lift_fresh"}
)

#: Operators that read only the selected rows, as many as they write.
_LOOKUPS = frozenset({"embedding", "index", "index_select", "gather"})

#: Operators that write values, or new tensors of an argument's shape, without reading what their
#: first argument held.
_FILLS = frozenset(
    {"copy_", "fill_", "zero_", "zeros_like", "ones_like", "full_like"}
    | {"new_zeros", "new_ones", "new_full", "rand_like", "randn_like", "randint_like"}
    | {"normal_", "uniform_", "exponential_", "random_", "log_normal_", "geometric_", "cauchy_"}
)

#: Names of autograd nodes on CPUs by their names on GPUs, where these differ: a model that was
#: profiled on a GPU is traced on a CPU when its plan runs.
_ATTENTION = "ScaledDotProductFlashAttentionForCpuBackward0"
ON_CPUS = {
    "CudnnBatchNormBackward0": "NativeBatchNormBackward0",
    "MiopenBatchNormBackward0": "NativeBatchNormBackward0",
    "ScaledDotProductFlashAttentionBackward0": _ATTENTION,
    "ScaledDotProductEfficientAttentionBackward0": _ATTENTION,
    "ScaledDotProductCudnnAttentionBackward0": _ATTENTION,
}

#: Clock that returns a mark; the time between two marks may be known only later.
Clock = Callable[[], Any]


class KernelRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed for mypy here
    """Dispatch mode that collects the kernels that run, or, with a clock, times them.

    `marks` then has signature, begin and end of each.
    """

    supports_higher_order_operators = True  # the operators in their graphs are seen

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.kernels: list[KernelCall] = []
        self.random = False
        self.written: list[torch.Tensor] = []
        self.marks: list[tuple[str, Any, Any]] = []
        self._clock = clock

    def take(self) -> tuple[tuple[KernelCall, ...], bool, list[torch.Tensor]]:
        """Return kernels, use of randomness and tensors written since the last call."""
        seen = (tuple(self.kernels), self.random, self.written)
        self.kernels, self.random, self.written = [], False, []
        return seen

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator and record it, unless it is a view."""
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or is_free(func):
            return func(*args, **kwargs)
        sign = signature(func, args, kwargs)
        if self._clock is not None:
            begun = self._clock()
            out = func(*args, **kwargs)
            self.marks.append((sign, begun, self._clock()))
            return out
        out = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random = True
        self.written += written(func, args, kwargs)
        self.kernels.append(
            KernelCall(sign, flops_of(func, args, kwargs, out), moved(func, args, out))
        )
        return out


class Storages:
    """Numbers of memory blocks, which are kept alive so that no number is used twice."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self.sizes: list[float] = []

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's memory block."""
        tensor = plain(tensor)
        dense = tensor.layout is torch.strided
        held: Any = tensor.untyped_storage() if dense else tensor
        key = held._cdata
        if key not in self._numbers:
            self._numbers[key] = len(self.sizes)
            self._kept.append(held)
            self.sizes.append(float(held.nbytes()) if dense else size(tensor))
        return self._numbers[key]

    def alias(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Give the memory of `other` the number of that of `tensor`."""
        number = self.number(tensor)
        self._kept.append(other.untyped_storage())
        self._numbers[other.untyped_storage()._cdata] = number

    def read(self, tensor: torch.Tensor) -> Read:
        """Return the part of a memory block that a tensor is."""
        tensor = plain(tensor)
        offset = int(tensor.storage_offset()) if tensor.layout is torch.strided else 0
        return Read(self.number(tensor), offset, size(tensor))


class _Engine:
    """Recorder of autograd's engine, by hooks on its nodes."""

    def __init__(self, watch: KernelRecorder, storages: Storages) -> None:
        self.watch = watch
        self.storages = storages
        self.order: list[Node] = []
        self.kernels: dict[Node, list[KernelCall]] = {}
        self.sent: dict[Node, list[Read | None]] = {}
        self.hooks: list[Any] = []
        self._arrived: set[tuple[Node, int]] = set()
        self._sums: list[Node] = []

    def listen(self, node: Node) -> None:
        """Register hooks for the begin and the end of `node`."""
        self.kernels[node] = []
        self.hooks.append(node.register_prehook(lambda _received: self.begins(node)))
        self.hooks.append(node.register_hook(lambda sent, _received: self.ends(node, sent)))

    def begins(self, node: Node) -> None:
        """Assign kernels since the last node's end, gradient sums, to their receivers."""
        between = self.watch.take()[0]
        for target, kernel in zip(self._sums, between, strict=False):
            self.kernels[target].append(kernel)
        if self.order:
            self.kernels[self.order[-1]] += between[len(self._sums) :]
        self._sums = []
        self.order.append(node)

    def ends(self, node: Node, sent: Sequence[torch.Tensor | None]) -> None:
        """Assign kernels to `node`; expect a sum for every gradient but the first."""
        self.kernels[node] += self.watch.take()[0]
        self.sent[node] = [None if g is None else self.storages.read(g) for g in sent]
        for (target, slot), gradient in zip(node.next_functions, sent, strict=False):
            if target is None or gradient is None:
                continue
            if (target, slot) in self._arrived:
                self._sums.append(node if _is_leaf(target) else target)
            self._arrived.add((target, slot))


class _RecordedPass(fx.Interpreter):  # type: ignore[misc]  # torch is not typed for mypy here
    """Interpreter that records the forward pass step by step."""

    def __init__(
        self,
        module: fx.GraphModule,
        attributes: Mapping[str, Any],
        watch: KernelRecorder,
        storages: Storages,
    ) -> None:
        super().__init__(module)
        self.garbage_collect_values = False
        self.attributes = attributes
        self.watch = watch
        self.storages = storages
        self.steps: list[ExecutedNode] = []
        self.saved: list[int] = []
        self.made_by: dict[Node, int] = {}

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        return self.attributes[target]

    def run_node(self, n: fx.Node) -> Any:
        self.watch.take()
        self.saved = []
        value = super().run_node(n)
        if n.op not in ("call_function", "call_method", "call_module"):
            return value
        kernels, random, changed = self.watch.take()
        whole = self.fetch_args_kwargs_from_env(n)
        given = tensors(whole)
        called = [m for m in tree_leaves(whole) if isinstance(m, torch.nn.Module)]
        called += [self.module.get_submodule(n.target)] if n.op == "call_module" else []
        given += [t for m in called for t in (*m.parameters(), *m.buffers())]
        reads = tuple(dict.fromkeys(self.storages.read(t) for t in given))
        known = {r.storage for r in reads}
        made = {self.storages.number(t) for t in tensors(value)} - known
        writes = made | {self.storages.number(t) for t in changed}
        self._claim(tensors(value))
        self.steps.append(
            ExecutedNode(
                name=n.name,
                modules=_modules(n),
                reads=reads,
                writes=tuple(sorted(writes)),
                kernels=kernels,
                random=random,
                saved=tuple(dict.fromkeys(self.saved)),
            )
        )
        return value

    def values(self) -> dict[str, TensorValue]:
        """Return the tensors that nodes gave, by the nodes' names."""
        return {
            n.name: TensorValue(
                n.name,
                tuple(int(size) for size in value.shape),
                value.dtype,
                value.requires_grad,
                self.storages.number(value),
            )
            for n, value in self.env.items()
            if isinstance(value, torch.Tensor) and n.op != "output"
        }

    def pack_hook(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a tensor that autograd saves."""
        self.saved.append(self.storages.number(tensor))
        return tensor

    def _claim(self, values: list[torch.Tensor]) -> None:
        """Assign new autograd nodes to the step that is recorded next."""
        waiting = [v.grad_fn for v in map(plain, values) if v.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in self.made_by:
                self.made_by[node] = len(self.steps)
                waiting += [before for before, _ in node.next_functions]


def record(traced: Traced, training: bool) -> Recording:
    """Record one pass, with its backward pass if `training`.

    The loss is the model's output, if it returns a single number among others; else the sum of all
    its outputs stands for it. Needs memory for the weights only, and linear time. Where sizes
    depend on numbers, the pass is run on real ones; InputError if there are none, on the device
    ``meta``.
    """
    held = (*traced.module.parameters(), *traced.module.buffers(), *tensors(traced.inputs))
    try:
        with unchanged(traced.module, traced.inputs), quiet():
            recording = _record(traced, training, mode_of(held))
        if not (training and any(map(_sized_by_running, recording.steps))):
            return recording
    except Exception as error:  # any code of the model may run here, and fail in any way
        if has_no_data(held):
            raise InputError(
                "model: it is on the device meta, where nothing runs; but "
                f"{reason_of(error, traced.module)}"
            ) from None
    try:
        with unchanged(traced.module, traced.inputs), quiet():
            if has_no_data(held):
                return _record_on_zeros(traced, training)
            return _record(traced, training, None)
    except Exception as error:  # any code of the model may run here
        raise InputError(
            f"model: traced by {traced.how}, but it does not run: {reason_of(error, traced.module)}"
        ) from None


def _record_on_zeros(traced: Traced, training: bool) -> Recording:
    """Record a model without values on zeros: bytes that kernels keep do not depend on values."""

    def zeros(value: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(value.shape, dtype=value.dtype).requires_grad_(value.requires_grad)
        return torch.nn.Parameter(made, made.requires_grad) if value.requires_grad else made

    with swapped_tensors(traced.module, zeros) as other:
        parameters = tuple((name, other(value)) for name, value in traced.parameters)
        inputs = tuple(tree_map(other, traced.inputs))
        return _record(replace(traced, parameters=parameters, inputs=inputs), training, None)


def _sized_by_running(step: ExecutedNode) -> bool:
    """Whether a step's kernels make tensors whose sizes are known only from a run."""
    return any(k.signature.startswith("aten.mkldnn_rnn_layer") for k in step.kernels)


def _record(traced: Traced, training: bool, fake: FakeTensorMode | None) -> Recording:
    """Record on fake tensors, or on real ones if `fake` is None."""
    storages = Storages()
    attributes, parameters, buffers = _attributes(traced, fake, storages)
    given = [tree_map(lambda x: as_fake(x, fake), x) for x in traced.inputs]
    places = tuple(storages.number(x) for x in given if isinstance(x, torch.Tensor))
    watch = KernelRecorder()
    run = _RecordedPass(traced.module, attributes, watch, storages)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(training))
        if fake is not None:
            stack.enter_context(fake)
        stack.enter_context(watch)
        if training:
            stack.enter_context(saved_tensors_hooks(run.pack_hook, lambda x: x))
        output = tensors(run.run(*given, enable_io_processing=False))
        values = run.values()  # after the pass, as in-place changes may add a gradient
        backward = run_backward(run.made_by, loss_of(output), watch, storages) if training else ()
    number = {step.name: i for i, step in enumerate(run.steps)}
    used = {s for step in run.steps for s in (r.storage for r in step.reads)}
    return Recording(
        steps=tuple(run.steps),
        backward=backward,
        sizes=tuple(storages.sizes),
        parameters={s: p for s, p in parameters.items() if s in used},
        buffers=buffers,
        inputs=places,
        outputs=tuple(storages.read(t) for t in output),
        unused=tuple(p for s, p in parameters.items() if s not in used),
        together=tuple(
            (number[a], number[b]) for a, b in varying(traced.module) if {a, b} <= set(number)
        ),
        values=values,
    )


def _attributes(
    traced: Traced, fake: FakeTensorMode | None, storages: Storages
) -> tuple[dict[str, Any], dict[int, Parameter], frozenset[int]]:
    """Return the attributes of `get_attr` nodes as fake tensors, and their storages."""
    converted: dict[int, torch.Tensor] = {}
    attributes: dict[str, Any] = {}
    parameters: dict[int, Parameter] = {}
    buffers = set()

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in converted:
            converted[id(tensor)] = as_fake(tensor, fake)
            storages.alias(converted[id(tensor)], tensor)
        return converted[id(tensor)]

    for n in traced.module.graph.nodes:
        if n.op != "get_attr" or n.target in attributes:
            continue
        value = traced.attribute(n.target)
        if not isinstance(value, torch.Tensor):
            attributes[n.target] = value
            continue
        attributes[n.target] = convert(value)
    for name, parameter in traced.parameters:
        storage = storages.number(convert(parameter))
        parameters.setdefault(
            storage, Parameter(name, parameter.numel(), size(parameter), parameter.requires_grad)
        )
    called = [m for m in attributes.values() if isinstance(m, torch.nn.Module)]
    called += [
        traced.module.get_submodule(n.target)
        for n in traced.module.graph.find_nodes(op="call_module")
    ]
    inside = [buffer for module in called for buffer in module.buffers()]
    for value in (*attributes.values(), *map(convert, inside)):
        if isinstance(value, torch.Tensor) and storages.number(value) not in parameters:
            buffers.add(storages.number(value))
    return attributes, parameters, frozenset(buffers)


def _modules(n: fx.Node) -> tuple[str, ...]:
    """Paths of the modules around a node, the root (an empty path) first."""
    stack = n.meta.get("nn_module_stack") or {}
    return tuple(str(entry[0]).removeprefix("L['self'].") for entry in stack.values())


def run_backward(
    made_by: Mapping[Node, int],
    roots: list[torch.Tensor],
    watch: KernelRecorder,
    storages: Storages,
) -> tuple[BackwardStep, ...]:
    """Run autograd's engine from roots and record the kernels of each of its nodes."""
    engine = _Engine(watch, storages)
    leaves = _leaves(made_by)
    for node in {*made_by, *leaves}:
        engine.listen(node)
    for leaf in leaves:  # so that it adds, as after the first microbatch
        leaf.variable.grad = torch.zeros_like(leaf.variable)
    watch.take()
    torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
    for hook in engine.hooks:  # a parameter keeps its leaf, for a second recording too
        hook.remove()
    for leaf in leaves:
        leaf.variable.grad = None
    order = [node for node in engine.order if not _is_leaf(node)]
    number = {node: i for i, node in enumerate(order)}
    steps = []
    for node in order:
        feeds, accumulates, sums = [], [], []
        for (target, slot), gradient in zip(node.next_functions, engine.sent[node], strict=False):
            if target is None or gradient is None:
                continue
            if _is_leaf(target):
                accumulates.append(storages.number(target.variable))
                sums += engine.kernels.pop(target, [])
            elif target in number:
                feeds.append((number[target], slot, gradient))
        steps.append(
            BackwardStep(
                name=ON_CPUS.get(node.name(), node.name()),
                forward=made_by[node],
                kernels=tuple(engine.kernels[node]),
                feeds=tuple(feeds),
                accumulates=tuple(accumulates),
                sums=tuple(sums),
            )
        )
    return tuple(steps)


def _leaves(nodes: Iterable[Node]) -> list[Any]:
    """Return the nodes that accumulate gradients of parameters, in a fixed order."""
    below = (target for node in nodes for target, _ in node.next_functions)
    return list(dict.fromkeys(node for node in below if node is not None and _is_leaf(node)))


def _is_leaf(node: Any) -> bool:
    """Whether an autograd node accumulates a parameter's gradient."""
    return hasattr(node, "variable")


def is_free(func: Any) -> bool:
    """Whether an operator computes nothing, such as a view."""
    if func.namespace == "prim" or func._schema.name.split("::")[-1] in _FREE:
        return True
    returns = [r.alias_info for r in func._schema.returns]
    return bool(returns) and all(alias and not alias.is_write for alias in returns)


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the arguments that an operator changes."""
    changed: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            changed += tensors(value)
    return changed


def moved(func: Any, args: tuple[Any, ...], out: Any) -> float:
    """Return the bytes that a kernel reads and writes."""
    results = tensors(out)
    total = sum(map(size, results))
    name = func._schema.name.split("::")[-1]
    if name in _LOOKUPS:
        return 2 * total + sum(size(t) for t in tensors(args[1:]))
    seen: set[int] = set()
    for tensor in tensors(args[1:] if name in _FILLS else args):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            total += size(tensor)
    return total


def signature(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a text with all that the time of a kernel depends on, apart from the machine."""
    words = [_word(value) for value in args]
    words += [f"{key}={_word(value)}" for key, value in kwargs.items()]
    return f"{func}({', '.join(words)})"


def _word(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        word = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}".replace(" ", "")
        return word if value.is_contiguous() else f"{word}/{value.stride()}".replace(" ", "")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_word, value))}]"
    return str(value)


def attention(name: str, *args: Any, **kwargs: Any) -> float:
    """FLOPs of Q·Kᵀ and weights·V, each 2·pairs·width, over all heads.

    Pairs are rows times columns; under a causal mask, which kernels skip above the diagonal, row i
    has i of them. A mask that is a tensor saves nothing. Backward there are five products instead
    of two, as the scores are computed again (Dao et al., NeurIPS 2022).
    """
    schema = getattr(torch.ops.aten, name).default._schema
    named = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    *heads, rows, width = named["query"].shape
    columns, depth = named["key"].shape[-2], named["value"].shape[-1]
    pairs = rows * columns
    if named.get("is_causal", False):
        square = min(rows, columns)
        pairs = square * (square + 1) // 2 + (rows - square) * columns
    products = 2 * torch.Size(heads).numel() * pairs * (width + depth)
    return float(products) * (2.5 if name.endswith("_backward") else 1.0)


def grouped_product(rows: Any, weights: Any, *_: Any, **__: Any) -> float:
    """FLOPs of a product of each row with its group's matrix: 2·rows·in·out."""
    return float(2 * rows.numel() * weights.shape[-1])


def grouped_product_backward(first: Any, second: Any, *_: Any, **__: Any) -> float:
    """FLOPs of the products for the gradient of the rows and for that of the weights."""
    a, b = (first, second) if second.dim() == 3 else (second, first)
    return 2.0 * grouped_product(a, b)


def recurrent(rows: Any, first: Any, second: Any, *_: Any, **__: Any) -> float:
    """FLOPs of an LSTM's layer: each row times the weights of input and state of all gates."""
    return float(2 * rows.numel() // rows.shape[-1] * (first.numel() + second.numel()))


def recurrent_backward(*args: Any, **kwargs: Any) -> float:
    """FLOPs of an LSTM layer's backward pass, twice the forward pass's: of input and of weights."""
    return 2.0 * recurrent(*args, **kwargs)


def flops_of(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the FLOPs of an operator's call that returned `out`; 0 without a formula."""
    if not isinstance(func, torch._ops.OpOverload):
        return 0.0
    if func._schema.name in FORMULAS:
        return FORMULAS[func._schema.name](*args, **kwargs)
    count = flop_registry.get(func.overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


#: Formulas of FLOPs by the operator's name, as its package may not be installed.
FORMULAS: Mapping[str, Callable[..., float]] = {
    **{
        f"aten::_scaled_dot_product_{kernel}{end}": partial(
            attention, f"_scaled_dot_product_{kernel}{end}"
        )
        for kernel in (
            "flash_attention_for_cpu",
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
        )
        for end in ("", "_backward")
    },
    "aten::mkldnn_rnn_layer": recurrent,
    "aten::mkldnn_rnn_layer_backward": recurrent_backward,
    "aten::_grouped_mm": grouped_product,
    "transformers::grouped_mm_fallback": grouped_product,
    "transformers::grouped_mm_fallback_backward": grouped_product_backward,
}
