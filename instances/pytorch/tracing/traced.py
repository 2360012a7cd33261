"""Traced models, and helpers shared by all ways of tracing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

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


@dataclass(frozen=True)
class Traced:
    """A traced model."""

    # its graph; node names are stable: the same model and inputs give the same names
    module: fx.GraphModule
    inputs: tuple[Any, ...]  # what the placeholders stand for, in their order
    # name and value of every learned tensor of the model, tied ones once
    parameters: tuple[tuple[str, nn.Parameter], ...]
    # ``torch.export``; ``torch.export in parts``, of which some run as they are; or ``operators on
    # these numbers``, along the way that the numbers of the inputs lead
    how: str
    # why not as a whole: of each part, or of the model; empty for ``torch.export``
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
    """Return in one line the reason why a model is not exported as a whole."""
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


def parameters_of(model: nn.Module) -> tuple[tuple[str, nn.Parameter], ...]:
    """Return every learned tensor of the model under its first name."""
    return tuple(model.named_parameters())


def reason_of(error: BaseException, model: nn.Module) -> str:
    """Return an error in one line, with the module at fault."""
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
    said = f"model: it fails on its inputs: {reason_of(error, model)}"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        said += "; items of a list are inputs of their own: to give a list, write ([…],)"
    return InputError(said)


def why_of(error: Exception, model: nn.Module) -> str:
    """Return in one line why a model, or a module of it, cannot be exported."""
    where = fault(error, model)
    # Code in C that wants a number gets a tensor without numbers, and says so of its type.
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
    """Silence torch, which prints whole graphs when it fails: the reason is enough."""
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
    """Make libraries choose the kernels that they choose under `torch.export`."""
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
