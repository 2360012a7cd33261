"""Export of models around parts that `torch.export` cannot follow or whose gradients it loses.

A module at fault runs as it is, with all modules of its class; if more than tensors and constants
go in or out of it, so does its caller. Autograd functions and calls under activation checkpointing
are parts by themselves. The model first runs on its inputs, and the outputs of every part are
recorded; then it is exported with an operator in the place of each part; at last a call of the part
itself replaces the operator.

Custom backward passes are found because a graph of operators has the forward pass only, from which
autograd derives the backward pass: an autograd function derives it in its own way, and
checkpointing (or another use of saved-tensor hooks) recomputes tensors that it did not save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial, wraps
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from ...common.errors import InputError
from .traced import (
    Traced,
    fault,
    has_no_data,
    is_fixed,
    is_plain,
    listed,
    look_into,
    mode_of,
    quiet,
    tensors,
    traced_as,
    why_of,
)
from .unchanged import unchanged

#: Modules whose autograd functions are torch's own; operators keep these, and it exports them.
OF_TORCH = ("torch._library", "torch._higher_order_ops", "torch._functorch", "torch._dynamo")


class BackwardLost(Exception):
    """A part of the model has a backward pass that a graph of operators does not keep."""


#: Size of a tensor; None where it depends on the numbers of the inputs.
Shape = tuple[int | None, ...]
_library = torch.library.Library("stagecut", "FRAGMENT")


_library.define("part(Tensor[] given, int number) -> Tensor[]")


class NoBorder(Exception):
    """Error: a module cannot be a part, as its inputs or outputs are more than tensors."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path


@dataclass(frozen=True)
class _Form:
    """Structure of a nested value, with all leaves but tensors."""

    spec: TreeSpec
    leaves: tuple[Any, ...]

    def filled(self, tensors: Iterable[torch.Tensor]) -> Any:
        """Return the value with tensors in it."""
        waiting = iter(tensors)
        leaves = [next(waiting) if leaf is _TENSOR else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


@dataclass
class PartCall:
    """A call of a part."""

    name: str  # path of its module, or name of its function
    why: str  # reason why it is not traced
    entry: Callable[..., Any]  # function that runs it
    # modules, parameters and buffers that it uses, by their names in the model
    carriers: tuple[str, ...]
    # made, shapes, empty: structure of its result; shapes of the tensors in it; empty tensors of
    # their types
    made: _Form
    shapes: list[Shape]
    empty: list[torch.Tensor]
    given: _Form | None = None  # structure of its inputs in the export
    # whether it recomputes activations in the backward pass
    recomputes: bool = False


class PartRecorder:
    """Recorder of a model's parts in a run, which replaces them by operators in the export."""

    def __init__(self, model: nn.Module) -> None:
        self.found: list[PartCall] = []
        self.inside = False
        self.recomputes = False
        self.model = model
        self._next: int | None = None

    def call(
        self,
        name: str,
        why: str,
        entry: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        carriers: tuple[str, ...] | None = None,
        more: tuple[str, ...] = (),
    ) -> Any:
        """Call a part; by default its carriers are the modules that it calls, and `more`."""
        if self.inside:
            return entry(*args, **kwargs)
        if self._next is not None:
            return self._stand_in(name, args, kwargs)
        self.inside, self.recomputes = True, False
        called: list[nn.Module] = []
        try:
            with _called(called):
                out = entry(*args, **kwargs)
        finally:
            self.inside = False
        if carriers is None:
            paths = {module: path for path, module in self.model.named_modules()}
            found = dict.fromkeys(paths[m] for m in called if m in paths)
            carriers = (*found, *more)
        given, made = _flat(name, out)
        shapes: list[Shape] = [tuple(map(int, t.shape)) for t in given]
        empty = [t.detach().new_empty(0) for t in given]
        part = PartCall(name, why, entry, carriers, made, shapes, empty, recomputes=self.recomputes)
        self.found.append(part)
        return out

    def compare(self, other: PartRecorder) -> None:
        """Compare with a run on other numbers to find values that depend on them."""
        for part, again in zip(self.found, other.found, strict=False):
            if part.name != again.name:
                return  # the export will find that the path depends on the numbers
            if part.made != again.made:
                raise NoBorder(part.name, "what it returns beside tensors depends on numbers")
            part.shapes = [
                tuple(a if a == b else None for a, b in zip(one, two, strict=True))
                for one, two in zip(part.shapes, again.shapes, strict=True)
            ]

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Replace calls of parts by operators within the block."""
        self._next = 0
        _STANDING_IN.append(self)
        try:
            yield
        finally:
            _STANDING_IN.pop()

    def _stand_in(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        assert self._next is not None
        number, self._next = self._next, self._next + 1
        if number >= len(self.found) or self.found[number].name != name:
            raise RuntimeError(f"{name} is called when traced, and not when run")
        part = self.found[number]
        given, part.given = _flat(name, (args, dict(kwargs)), is_fixed)
        return part.made.filled(torch.ops.stagecut.part.default(given, number))

    def put_in(self, module: fx.GraphModule) -> None:
        """Replace the operators of a graph by calls of the parts."""
        vars(module)["_of_model"] = self.model  # no part of it, but what its parts may change
        for path in dict.fromkeys(path for part in self.found for path in part.carriers):
            with suppress(AttributeError):  # parameters are there already
                module.add_submodule(path, self.model.get_submodule(path))
        for n in list(module.graph.nodes):
            if n.target is not torch.ops.stagecut.part.default:
                continue
            part = self.found[n.args[1]]
            with module.graph.inserting_before(n):
                carriers = [module.graph.get_attr(path) for path in part.carriers]
                new = module.graph.create_node(
                    "call_function",
                    _caller(part),
                    (tuple(carriers), *n.args[0]),
                    name=part.name.replace(".", "_"),
                )
            new.meta = n.meta
            n.replace_all_uses_with(new)
            module.graph.erase_node(n)
        module.recompile()


#: Recorders whose parts are replaced by operators now.
_STANDING_IN: list[PartRecorder] = []
_TENSOR = object()

#: Function that exports a model whose parts are replaced by operators.
Export = Callable[[], fx.GraphModule]

#: Options of `checkpoint` itself; all others go to the function.
_OPTIONS = ("context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")


def export_around(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    error: Exception,
    export: Export,
) -> Traced | None:
    """Return a model's trace with parts that run as they are; None if it cannot be traced so."""
    whole: dict[str, str] = {}
    known = isinstance(error, BackwardLost)  # functions and checkpointed calls are parts anyway
    for _ in range(sum(1 for _ in model.modules()) + 1):
        if not known:
            path = getattr(error, "path", "")  # of a border; it may be that of a function
            if path not in dict(model.named_modules()):
                path = ""
            path = path or (fault(error, model) or ("",))[0]
            if path in whole:
                path = path.rpartition(".")[0]
            if not path:
                return None
            reason = whole.get(getattr(error, "path", ""), why_of(error, model))
            whole |= dict.fromkeys(_paths_of_class(model, path), reason)
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
    """Return the trace of a model as a single part, which runs as it is.

    InputError if more than tensors and constants go in or out of it.
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
        _intercepted(model, parts, whole, training),
    ):
        module = export()
    parts.put_in(module)
    how, because = "torch.export in parts", _reasons_text(parts)
    return traced_as(module, model, (args, dict(kwargs)), how, because)


def _rehearsed(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    training: bool,
    whole: Mapping[str, str],
) -> PartRecorder:
    """Return the parts of a model, from runs on its inputs and on similar ones."""
    parts = PartRecorder(model)
    with _run_again(model, (args, kwargs), training), _intercepted(model, parts, whole, training):
        model(*args, **kwargs)
    for other in (_perturbed, _permuted):
        again = PartRecorder(model)
        with (
            _run_again(model, (args, kwargs), training),
            _intercepted(model, again, whole, training),
        ):
            given, named = tree_map(other, (args, dict(kwargs)))
            # Such numbers may be invalid for the model, and it may raise anything. The parts up to
            # there are compared; later sizes that depend on numbers are an error of the run.
            with suppress(Exception):
                model(*given, **named)
        parts.compare(again)
    return parts


@contextmanager
def _run_again(model: nn.Module, inputs: Any, training: bool) -> Iterator[None]:
    held = (*model.parameters(), *model.buffers(), *tensors(inputs))
    mode = mode_of(held) if has_no_data(held) else nullcontext()
    with unchanged(model, inputs), quiet(), torch.set_grad_enabled(training), mode:
        yield


def _perturbed(value: Any) -> Any:
    """Return a tensor with slightly different floats."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value * (1 + 0.05 * torch.randn_like(value))
    return value


def _permuted(value: Any) -> Any:
    """Return a tensor with the same numbers in another order."""
    return value.flip(-1) if isinstance(value, torch.Tensor) and value.dim() else value


def _reasons_text(parts: PartRecorder) -> str:
    """Return a line with the parts, grouped by reason."""
    names: dict[str, list[str]] = {}
    for part in parts.found:
        names.setdefault(part.why, []).append(part.name)
    return "; ".join(f"{listed(own)}: {why}" for why, own in names.items())


def _paths_of_class(model: nn.Module, path: str) -> list[str]:
    """Return the paths of the modules of a module's class; its own path if the class is torch's."""
    kind = type(model.get_submodule(path))
    if kind.__module__.startswith("torch."):
        return [path]
    return [other for other, module in model.named_modules() if type(module) is kind]


@contextmanager
def _intercepted(
    model: nn.Module, parts: PartRecorder, whole: Mapping[str, str], training: bool
) -> Iterator[None]:
    """Replace calls of parts by `PartRecorder.call` within the block."""
    with ExitStack() as stack:
        for path, why in whole.items():
            stack.enter_context(_module(model.get_submodule(path), path, why, parts))
        stack.enter_context(_functions(parts) if training else nullcontext())
        yield


@contextmanager
def _module(module: nn.Module, path: str, why: str, parts: PartRecorder) -> Iterator[None]:
    own, before = module.forward, vars(module).get("forward")
    name, carriers = path or type(module).__name__, (path,) if path else _module_state(module)

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


def _module_state(model: nn.Module) -> tuple[str, ...]:
    """Return a model's modules, parameters and buffers."""
    held = {**model._modules, **model._parameters, **model._buffers}
    return tuple(name for name, value in held.items() if value is not None)


@contextmanager
def _functions(parts: PartRecorder) -> Iterator[None]:
    """Intercept autograd functions and checkpointed calls as parts."""
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
        held, make = _closure(function)
        name, own = _owner(parts.model, function, (held, args, kwargs))

        def entry(held: Any, *args: Any, **kwargs: Any) -> Any:
            return _recomputed(make(held), use_reentrant is not False, options)(*args, **kwargs)

        why = "activation checkpointing"
        return parts.call(name, why, entry, (held, *args), kwargs, None, own)

    before = getattr(whole, "__dynamo_disable", None)
    setattr(whole, "__dynamo_disable", checkpoint)  # what the public one calls
    try:
        with replaced(call, lambda: parts.inside):
            yield
    finally:
        setattr(whole, "__dynamo_disable", before)


def _recomputed(function: Any, reentrant: bool, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a checkpointed function, recomputed in the backward pass."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if reentrant and not any(getattr(x, "requires_grad", False) for x in tree_leaves(args)):
            with torch.no_grad():  # as torch's own does
                return function(*args, **kwargs)
        return torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False, **options, **kwargs
        )

    return run


def _closure(value: Any, around: tuple[int, ...] = ()) -> tuple[Any, Callable[[Any], Any]]:
    """Return a function's closure values and a constructor from other such values.

    Tensors may lie in a partial's arguments, a closure, defaults, or an object whose method it is.
    """
    around = (*around, id(value))

    def each(values: Any) -> tuple[list[Any], Callable[[Any], list[Any]]]:
        opened = [
            _closure(one, around) if id(one) not in around else (one, _same) for one in values
        ]
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
    """Return a function's name, and parameters and buffers of the modules it holds."""
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


def _outlines(given: list[torch.Tensor], number: int) -> list[torch.Tensor]:  # noqa: ARG001
    part = _STANDING_IN[-1].found[number]
    sizes = [
        [torch.library.get_ctx().new_dynamic_size() if size is None else size for size in shape]
        for shape in part.shapes
    ]
    return [
        torch.empty(size, dtype=t.dtype, device=t.device)
        for size, t in zip(sizes, part.empty, strict=True)
    ]


def _caller(part: PartCall) -> Callable[..., Any]:
    """Return a function of carriers and tensors that runs a part and returns its tensors."""
    assert part.given is not None
    form = part.given

    def run(_carriers: tuple[Any, ...], *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = form.filled(given)
        made = tensors(part.entry(*args, **kwargs))
        for tensor, shape in zip(made, part.shapes, strict=True):
            if not _fits(tensor, shape):
                raise RuntimeError(
                    f"{part.name} returned {'×'.join(map(str, tensor.shape))}, and "
                    f"{'×'.join(map(str, shape))} when it was traced: its sizes depend on numbers"
                )
        blocks = {t.untyped_storage()._cdata for t in given}
        return tuple(t.clone() if t.untyped_storage()._cdata in blocks else t for t in made)

    run.__name__ = part.name.replace(".", "_")
    vars(run)["recomputes"] = part.recomputes
    run.__qualname__ = f"{part.name} {form.spec} {part.made.spec}"
    return run


def _flat(
    name: str, value: Any, allowed: Callable[[Any], bool] = is_plain
) -> tuple[list[torch.Tensor], _Form]:
    """Return the tensors within a part's inputs or outputs, and their structure."""
    look_into(value)
    leaves, spec = tree_flatten(value)
    for leaf in leaves:
        if not allowed(leaf):
            raise NoBorder(name, f"a {type(leaf).__name__} goes in or out of it")
    found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    rest = (_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return found, _Form(spec, tuple(rest))


def _fits(tensor: torch.Tensor, shape: Shape) -> bool:
    return len(tensor.shape) == len(shape) and all(
        size is None or int(now) == size for now, size in zip(tensor.shape, shape, strict=True)
    )


@contextmanager
def _called(outermost: list[nn.Module]) -> Iterator[None]:
    """Record the outermost module calls."""
    depth = 0

    def enter(module: nn.Module, _: Any) -> None:
        nonlocal depth
        if depth == 0:
            outermost.append(module)
        depth += 1

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def refused() -> Iterator[None]:
    """Raise `BackwardLost` within the block at an autograd function or checkpointing."""

    apply = torch.autograd.Function.__dict__["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith(OF_TORCH):
            return apply.__get__(None, cls)(*args, **kwargs)
        raise BackwardLost(
            f"autograd function {cls.__name__} has a backward pass that an exported graph loses"
        )

    with replaced(refuse):
        yield


@contextmanager
def replaced(
    call: Callable[..., Any], allowed: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Replace autograd functions by `call`, and refuse saved-tensor hooks unless `allowed`."""
    function, hooks = torch.autograd.Function, torch.autograd.graph.saved_tensors_hooks
    apply, enter = function.__dict__["apply"], hooks.__enter__

    def refuse(own: Any) -> Any:
        if allowed():
            return enter(own)
        raise BackwardLost(
            "activation checkpointing, or another use of saved-tensor hooks, is lost in an "
            "exported graph"
        )

    function.apply, hooks.__enter__ = classmethod(call), refuse
    try:
        yield
    finally:
        function.apply, hooks.__enter__ = apply, enter


torch.library.register_fake("stagecut::part", _outlines, lib=_library)
