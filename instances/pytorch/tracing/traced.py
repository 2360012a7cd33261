"""Traced models, and helpers that find tensors in nested values or replace them by fake ones.

A model on the device ``meta`` is traced and recorded as one on the CPU, as fused kernels such as
that of attention do not exist on ``meta``.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from io import StringIO
from keyword import iskeyword
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import register_pytree_node, tree_leaves, tree_map

from ...common.errors import InputError
from ...common.units import ON_NUMBERS, TO_RUN

#: Characters of a reason that are shown.
_LONGEST = 200
_UNKNOWN = (torch.SymInt, torch.SymFloat, torch.SymBool)

#: Names of `torch.export`'s errors about control flow or sizes that depend on numbers.
_BY_NUMBERS = frozenset(
    {"GuardOnDataDependentSymNode", "DataDependentOutputException", "UserError"}
    | {"DynamicOutputShapeException", "PendingUnbackedSymbolNotFound"}
)
#: Names that parts of a model cannot have in torch's graphs of it.
_TAKEN = {*dir(fx.GraphModule), "meta"}.difference(dir(nn.Module))
_PLAIN = (torch.Tensor, int, float, complex, str, bool, type(None), torch.SymInt, torch.SymFloat)
_CONSTANT = (
    torch.Tensor, int, float, complex, str, bytes, type(None),
    torch.dtype, torch.device, torch.memory_format, Enum,
)  # fmt: skip
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def _attribute_code(owner: str, target: str) -> str:
    """Return the code that reads an attribute by its dotted path."""
    for name in target.split("."):
        plain = name.isidentifier() and not iskeyword(name)
        owner = f"{owner}.{name}" if plain else f"getattr({owner}, {name!r})"
    return owner


# torch's own writes `self.lambda` for a module of that name, in `torch.export` and in each module
# made of its graph, and the code does not compile.
fx.graph._format_target = _attribute_code


@dataclass(frozen=True)
class Traced:
    """A traced model."""

    # its graph; node names are stable: the same model and inputs give the same names
    module: fx.GraphModule
    inputs: tuple[Any, ...]  # values of the placeholders, in their order
    # name and value of every learned tensor of the model, tied ones once
    parameters: tuple[tuple[str, nn.Parameter], ...]
    # ``torch.export``; ``torch.export in parts``, of which some run as they are; or ``operators on
    # these numbers``, along the path that these inputs take
    how: str
    # reason why not as a whole, of each part or of the model; empty for ``torch.export``
    because: str = ""

    @property
    def runs(self) -> bool:
        """Whether the graph holds for all inputs of these shapes."""
        return self.how != ON_NUMBERS

    def attribute(self, target: str) -> Any:
        """Return the value of a `get_attr` node."""
        value: Any = self.module
        for name in target.split("."):
            value = getattr(value, name)
        return value


def varying(module: fx.GraphModule) -> list[tuple[str, str]]:
    """Return node pairs that pass tensors without a fixed size, or numbers."""
    pairs = []
    for n in module.graph.nodes:
        sizes = [
            size
            for leaf in tree_leaves(n.meta.get("val"))
            for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))
        ]
        if n.op == "call_function" and any(isinstance(size, _UNKNOWN) for size in sizes):
            pairs += [(n.name, user.name) for user in n.users]
    return pairs


def export_failure(traced: Traced) -> str:
    """Return a line with the reason why a model is not exported as a whole."""
    if traced.runs:
        return (
            "these run as they are, uncut, and must return the shapes that they had when traced: "
            f"{traced.because}"
        )
    return (
        f"torch.export failed: {traced.because}; traced on these numbers, so it can be planned but "
        f"not run: {TO_RUN}; or keep the model on one device (solve --for run)"
    )


def flat_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the inputs as the placeholders of a graph take them, nested ones unpacked."""
    return tuple(tree_leaves((args, dict(kwargs))))


def traced_as(
    module: fx.GraphModule, model: nn.Module, inputs: Inputs, how: str, because: str = ""
) -> Traced:
    """Return the trace of a model for its inputs, given the graph."""
    return Traced(module, flat_inputs(*inputs), tuple(model.named_parameters()), how, because)


def listed(names: Iterable[str]) -> str:
    """Return names as text, each once; of more than four the first three."""
    once = list(dict.fromkeys(names))
    more = f" and {len(once) - 3} more" if len(once) > 4 else ""
    return ", ".join(once[:3] if more else once) + more


def reason_of(error: BaseException, model: nn.Module) -> str:
    """Return a line with type, text and module of an error."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    what = lines[0] if lines else type(error).__name__
    if len(what) > _LONGEST:
        what = what[: _LONGEST - 1] + "…"
    where = fault(error, model)
    if where is None:
        return f"{type(error).__name__}: {what}"
    path, line = where
    return f"{type(error).__name__}: {what} (in module {path or type(model).__name__}, {line})"


def on_inputs(error: BaseException, model: nn.Module) -> InputError:
    """Return the error of a model that does not run on its inputs."""
    message = f"model: it fails on its inputs: {reason_of(error, model)}"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        message += "; items of a list are inputs of their own: to give a list, write ([…],)"
    return InputError(message)


def why_of(error: Exception, model: nn.Module) -> str:
    """Return a line with the reason why a model, or a module of it, cannot be exported."""
    own = (*model.named_children(), *model.named_parameters(), *model.named_buffers())
    if taken := _TAKEN.intersection(name for name, _ in own):
        return f"torch's graphs themselves have the name of its {min(taken)}; rename that"
    where = fault(error, model)
    # C code that needs a number gets a fake tensor, and names its type in the error.
    by_numbers = type(error).__name__ in _BY_NUMBERS or "FakeTensor" in str(error)
    if where is not None and by_numbers:
        return f"its code depends on numbers ({where[1]})"
    return reason_of(error, model)


def fault(error: BaseException, model: nn.Module) -> tuple[str, str] | None:
    """Return path and ``file:line`` of the innermost frame that runs a module's code."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        names = frame.f_code.co_varnames
        module = frame.f_locals.get(names[0]) if names else None
        if id(module) in paths and frame.f_code.co_name == "forward":
            file = frame.f_code.co_filename.rsplit("/", 1)[-1]
            found = paths[id(module)], f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress output and warnings of torch, which prints whole graphs when it fails."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextmanager
def as_exported() -> Iterator[None]:
    """Make libraries choose the same kernels as under `torch.export`."""
    flags = ("_is_compiling_flag", "_is_exporting_flag")
    before = {
        flag: getattr(torch.compiler, flag) for flag in flags if hasattr(torch.compiler, flag)
    }
    try:
        for flag in before:
            setattr(torch.compiler, flag, True)
        yield
    finally:
        for flag, value in before.items():
            setattr(torch.compiler, flag, value)


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in a nested value, in order."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, Mapping):
            found += tensors(tuple(leaf.values()))
        elif _is_record(leaf):
            found += tensors(tuple(getattr(leaf, f.name) for f in fields(leaf)))
    return found


def known(tree: Any) -> bool:
    """Whether torch knows the types of all leaves of a nested value."""
    return all(isinstance(leaf, _PLAIN) for leaf in tree_leaves(tree))


def register(tree: Any) -> None:
    """Register the dataclasses in a nested value as trees of torch."""
    for leaf in tree_leaves(tree):
        if _is_record(leaf):
            torch.export.register_dataclass(type(leaf))
            register(leaf)


def is_plain(leaf: Any) -> bool:
    """Whether a value is a tensor, or a constant that is compared by value."""
    return isinstance(leaf, _CONSTANT)


def is_fixed(leaf: Any) -> bool:
    """Whether a value is plain, or a module or function, compared by identity."""
    return is_plain(leaf) or isinstance(leaf, torch.nn.Module | FunctionType | BuiltinFunctionType)


def look_into(tree: Any) -> None:
    """Register the types of plain objects in a nested value as trees of torch."""
    register(tree)
    for leaf in tree_leaves(tree):
        kind = type(leaf)
        if is_plain(leaf) or callable(leaf) or not hasattr(leaf, "__dict__"):
            continue

        def made(values: Any, names: Any, kind: type = kind) -> Any:
            again: Any = object.__new__(kind)
            vars(again).update(zip(names, values, strict=True))
            return again

        register_pytree_node(kind, lambda own: (list(vars(own).values()), tuple(vars(own))), made)
        look_into(leaf)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor below `torch.func`'s wrappers, such as those of `vmap`."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def size(tensor: torch.Tensor) -> float:
    """Return the bytes of a tensor's elements, at most those of its memory."""
    if tensor.layout is torch.sparse_coo:
        return size(tensor._indices()) + size(tensor._values())
    shown = tensor.numel() * tensor.element_size()
    return float(min(shown, tensor.untyped_storage().nbytes()))


def loss_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs at which the backward pass starts: the loss, else all with gradients."""
    derivable = [t for t in outputs if t.requires_grad]
    single = [t for t in derivable if t.numel() == 1]
    return single[:1] or derivable


def has_no_data(candidates: Iterable[torch.Tensor]) -> bool:
    """Whether one of these tensors has no data (``meta`` or fake)."""
    return any(t.is_meta or isinstance(t, FakeTensor) for t in candidates)


def mode_of(candidates: Iterable[torch.Tensor]) -> FakeTensorMode:
    """Return the mode that fake tensors belong to; a new one if there are none."""
    modes = (t.fake_mode for t in candidates if isinstance(t, FakeTensor))
    return next(modes, None) or FakeTensorMode(allow_non_fake_inputs=True)


def as_fake(value: Any, mode: FakeTensorMode | None) -> Any:
    """Return a fake tensor for a tensor, on its device, or on the CPU for ``meta``."""
    if mode is None or not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    if not value.is_meta:
        return mode.from_tensor(value)
    made: Any = FakeTensor(mode, value.detach(), torch.device("cpu"))
    if isinstance(value, nn.Parameter):
        return nn.Parameter(made, value.requires_grad)
    return made.requires_grad_(value.requires_grad)


@contextmanager
def swapped_tensors(
    model: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[Callable[[Any], Any]]:
    """Replace a model's tensors within the block; yield the conversion of a nested value.

    One tensor becomes one other, wherever it is.
    """
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def other(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            made[id(value)] = value, convert(value)
        return made[id(value)][1]

    tables = [t for m in model.modules() for t in (m._parameters, m._buffers)]
    before = [dict(table) for table in tables]
    try:
        for table in tables:
            table.update({name: other(value) for name, value in table.items()})
        yield other
    finally:
        for table, own in zip(tables, before, strict=True):
            table.update(own)


@contextmanager
def off_meta(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Inputs]:
    """Replace ``meta`` tensors of a model by fake CPU ones; yield its inputs likewise.

    A model that is elsewhere stays as it is.
    """
    inputs: Inputs = args, dict(kwargs)
    held = [*model.parameters(), *model.buffers(), *tensors(inputs)]
    if not any(t.is_meta for t in held):
        yield inputs
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def convert(value: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = as_fake(value, mode)
        made.stands_for = value
        return made

    with swapped_tensors(model, convert) as other:
        yield tree_map(other, inputs)


def own(value: Any) -> Any:
    """Return the tensor that `off_meta` has replaced by this one; other values unchanged."""
    return getattr(value, "stands_for", value)
