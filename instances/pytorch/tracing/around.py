"""Exports a model around the parts that `torch.export` cannot follow, or whose backward pass it
would lose.

A module at fault runs as it is, with all modules of its class; if no border can be drawn around it,
so does the module that calls it. Autograd functions and calls under activation checkpointing are
parts by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial, wraps
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from ...common.errors import InputError
from .hidden import OF_TORCH, BackwardLost, replaced
from .leaves import look_into, tensors
from .traced import Traced, fault, flat_inputs, parameters_of, quiet, why_of
from .unchanged import unchanged
from .whole import PartRecorder
from .without_numbers import has_no_numbers, mode_of

#: Makes a graph of a model, while the parts are stood in for.
Export = Callable[[], fx.GraphModule]

#: What `checkpoint` keeps for itself.
_OPTIONS = ("context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")


def export_around(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    error: Exception,
    export: Export,
) -> Traced | None:
    """Export a model around its parts; None if there is no such way.

    Parameters
    ----------
    error
        Why it cannot be exported as a whole.
    export
        Exports it.
    """
    whole: dict[str, str] = {}
    known = isinstance(error, BackwardLost)  # functions and checkpointing are parts without a word
    for _ in range(sum(1 for _ in model.modules()) + 1):
        if not known:
            path = getattr(error, "path", "")  # of a border; it may be that of a function
            if path not in dict(model.named_modules()):
                path = ""
            path = path or _at_fault(error, model)
            if path in whole:
                path = path.rpartition(".")[0]
            if not path:
                return None
            reason = whole.get(getattr(error, "path", ""), why_of(error, model))
            whole |= dict.fromkeys(_alike(model, path), reason)
        try:
            return _exported(model, args, kwargs, training, whole, export)
        except Exception as again:  # any code of the model may run here, and fail in any way
            error, known = again, False
    return None


def export_uncut(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    export: Export,
) -> Traced:
    """Export a model as a single part, which runs as it is.

    Raises
    ------
    InputError
        If what goes in or out of it cannot pass a border.
    """
    try:
        return _exported(model, args, kwargs, training, {"": "kept whole"}, export)
    except Exception as error:  # any code of the model may run here, and fail in any way
        raise InputError(
            f"{type(model).__name__}: it cannot run as a whole either: {why_of(error, model)}"
        ) from None


def _exported(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    whole: Mapping[str, str],
    export: Export,
) -> Traced:
    """Export a model, with calls of some modules as parts; ``""`` is the model itself."""
    parts = _rehearsed(model, args, kwargs, training, whole)
    with (
        unchanged(model, (args, kwargs)),
        quiet(),
        parts.standing_in(),
        _apart(model, parts, whole, training),
    ):
        module = export()
    parts.put_in(module)
    given = flat_inputs(args, kwargs)
    return Traced(module, given, parameters_of(model), "torch.export in parts", _said(parts))


def _rehearsed(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    whole: Mapping[str, str],
) -> PartRecorder:
    """Run a model on its inputs, and on others like them, and note its parts."""
    parts = PartRecorder(model)
    with _run_again(model, (args, kwargs), training), _apart(model, parts, whole, training):
        model(*args, **kwargs)
    for other in (_near, _turned):
        again = PartRecorder(model)
        with _run_again(model, (args, kwargs), training), _apart(model, again, whole, training):
            given, named = tree_map(other, (args, dict(kwargs)))
            # Such numbers may be nonsense to the model, and it may raise anything. What it reached
            # is compared; a size that depends on numbers beyond that ends a run, which names it.
            with suppress(Exception):
                model(*given, **named)
        parts.compare(again)
    return parts


@contextmanager
def _run_again(model: nn.Module, inputs: Any, training: bool) -> Iterator[None]:
    held = (*model.parameters(), *model.buffers(), *tensors(inputs))
    mode = mode_of(held) if has_no_numbers(held) else nullcontext()
    with unchanged(model, inputs), quiet(), torch.set_grad_enabled(training), mode:
        yield


def _near(value: Any) -> Any:
    """Return other numbers of about the same size."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value * (1 + 0.05 * torch.randn_like(value))
    return value


def _turned(value: Any) -> Any:
    """Return the same numbers in another order."""
    return value.flip(-1) if isinstance(value, torch.Tensor) and value.dim() else value


def _said(parts: PartRecorder) -> str:
    """Return the parts by their reasons, in one line."""
    names: dict[str, list[str]] = {}
    for part in parts.found:
        names.setdefault(part.why, []).append(part.name)
    return "; ".join(f"{_listed(own)}: {why}" for why, own in names.items())


def _listed(names: list[str]) -> str:
    once = list(dict.fromkeys(names))
    more = f" and {len(once) - 3} more" if len(once) > 4 else ""
    return ", ".join(once[:3] if more else once) + more


def _at_fault(error: Exception, model: nn.Module) -> str:
    where = fault(error, model)
    return "" if where is None else where[0]


def _alike(model: nn.Module, path: str) -> list[str]:
    """Return the paths of all modules of a class; of torch's own, which are containers, of one."""
    kind = type(model.get_submodule(path))
    if kind.__module__.startswith("torch."):
        return [path]
    return [other for other, module in model.named_modules() if type(module) is kind]


@contextmanager
def _apart(
    model: nn.Module, parts: PartRecorder, whole: Mapping[str, str], training: bool
) -> Iterator[None]:
    """Let all parts pass through `parts`."""
    with ExitStack() as stack:
        for path, why in whole.items():
            stack.enter_context(_module(model.get_submodule(path), path, why, parts))
        stack.enter_context(_functions(parts) if training else nullcontext())
        yield


@contextmanager
def _module(module: nn.Module, path: str, why: str, parts: PartRecorder) -> Iterator[None]:
    own, before = module.forward, vars(module).get("forward")
    name, carriers = path or type(module).__name__, (path,) if path else _held(module)

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return parts.call(name, why, own, args, kwargs, carriers)

    module.forward = forward
    try:
        yield
    finally:
        vars(module).pop("forward", None)
        if before is not None:
            module.forward = before


def _held(model: nn.Module) -> tuple[str, ...]:
    """Return what a model itself holds: its modules, parameters and buffers."""
    held = {**model._modules, **model._parameters, **model._buffers}
    return tuple(name for name, value in held.items() if value is not None)


@contextmanager
def _functions(parts: PartRecorder) -> Iterator[None]:
    """Let autograd functions and checkpointed calls be parts."""
    apply = torch.autograd.Function.__dict__["apply"]

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        own = apply.__get__(None, cls)
        if cls.__module__.startswith(OF_TORCH):
            return own(*args, **kwargs)
        why = "an autograd function"
        return parts.call(cls.__name__, why, own, args, kwargs, ())

    whole = torch.utils.checkpoint.checkpoint.__wrapped__

    def checkpoint(function: Any, *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
        parts.recomputes = True
        if parts.inside:
            return whole(function, *args, use_reentrant=use_reentrant, **kwargs)
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        held, make = _opened(function)
        name, own = _owner(parts.model, function, (held, args, kwargs))

        def entry(held: Any, *args: Any, **kwargs: Any) -> Any:
            return _again(make(held), use_reentrant is not False, options)(*args, **kwargs)

        why = "activation checkpointing"
        return parts.call(name, why, entry, (held, *args), kwargs, None, own)

    before = getattr(whole, "__dynamo_disable", None)
    setattr(whole, "__dynamo_disable", checkpoint)  # what the public one calls
    try:
        with replaced(call, lambda: parts.inside):
            yield
    finally:
        setattr(whole, "__dynamo_disable", before)


def _again(function: Any, reentrant: bool, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what computes a function, and computes it again in the backward pass."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if reentrant and not any(getattr(x, "requires_grad", False) for x in tree_leaves(args)):
            with torch.no_grad():  # as torch's own does
                return function(*args, **kwargs)
        return torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False, **options, **kwargs
        )

    return run


def _opened(value: Any, around: tuple[int, ...] = ()) -> tuple[Any, Callable[[Any], Any]]:
    """Return what a function holds beside its code, and what makes it again from other such values.

    Tensors may lie in a partial's arguments, a closure, defaults, or an object whose method it is.
    """
    around = (*around, id(value))

    def each(values: Any) -> tuple[list[Any], Callable[[Any], list[Any]]]:
        opened = [_opened(one, around) if id(one) not in around else (one, _same) for one in values]
        return (
            [held for held, _ in opened],
            lambda new: [make(held) for (_, make), held in zip(opened, new, strict=True)],
        )

    if isinstance(value, partial):
        held, make = each([value.func, *value.args, *value.keywords.values()])
        names = tuple(value.keywords)

        def again(new: Any) -> Any:
            function, *given = make(new)
            at = len(given) - len(names)
            return partial(function, *given[:at], **dict(zip(names, given[at:], strict=True)))

        return held, again
    if isinstance(value, MethodType):
        held, make = each([value.__self__])
        return held, lambda new: MethodType(value.__func__, make(new)[0])
    if isinstance(value, FunctionType):
        cells, usual = value.__closure__ or (), value.__defaults__ or ()
        by_name = value.__kwdefaults__ or {}
        full = [cell for cell in cells if _is_full(cell)]
        if not (full or usual or by_name):
            return value, _same
        held, make = each([*(cell.cell_contents for cell in full), *usual, *by_name.values()])

        def closed(new: Any) -> Any:
            contents = iter(make(new))
            made = FunctionType(
                value.__code__,
                value.__globals__,
                value.__name__,
                closure=tuple(CellType(next(contents)) if _is_full(c) else c for c in cells),
            )
            made.__defaults__ = tuple(next(contents) for _ in usual)
            made.__kwdefaults__ = {name: next(contents) for name in by_name}
            return made

        return held, closed
    return value, _same


def _same(value: Any) -> Any:
    return value


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # nothing was put in it yet
        return False


def _owner(model: nn.Module, function: Any, given: Any) -> tuple[str, tuple[str, ...]]:
    """Return what a function is called, and the parameters and buffers of the modules it has."""
    look_into(given)
    modules = [leaf for leaf in tree_leaves(given) if isinstance(leaf, nn.Module)]
    paths = {id(vars(module)): path for path, module in model.named_modules()}
    found = [(paths[id(vars(m))], m) for m in modules if id(vars(m)) in paths]
    held = tuple(
        f"{path}.{name}" if path else name
        for path, module in found
        for name in (*module._parameters, *module._buffers)
        if getattr(module, name) is not None
    )
    name = found[0][0] or type(model).__name__ if found else ""
    return name or str(getattr(function, "__name__", "checkpoint")), held
