"""Parts of a model that run as they are, each one node of an exported graph.

Modules whose own code `torch.export` cannot follow, autograd functions, and calls under activation
checkpointing. The model first runs on its inputs, and what every part makes is noted; then it is
exported with an operator in the place of each part; at last a call of the part itself replaces the
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .leaves import is_fixed, is_plain, look_into, tensors

#: Size of a tensor; None where it depends on the numbers of the inputs.
Shape = tuple[int | None, ...]

_library = torch.library.Library("stagecut", "FRAGMENT")
_library.define("part(Tensor[] given, int number) -> Tensor[]")


class NoBorder(Exception):
    """A module cannot be a part, as what goes in or out is more than tensors; another may."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path


@dataclass(frozen=True)
class _Form:
    """A nested value without its tensors."""

    spec: TreeSpec
    leaves: tuple[Any, ...]

    def filled(self, tensors: Iterable[torch.Tensor]) -> Any:
        """Return the value with tensors in it."""
        waiting = iter(tensors)
        leaves = [next(waiting) if leaf is _TENSOR else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


@dataclass
class PartCall:
    """A call of a part.

    Parameters
    ----------
    name
        Path of its module, or what else it is called.
    why
        What keeps it from being taken apart.
    entry
        What runs.
    carriers
        Modules, parameters and buffers that it uses, by their names in the model.
    made, shapes, empty
        What it returns; the shapes of its tensors; and tensors without memory of their types.
    given
        What it takes when it is exported.
    recomputes
        Whether it computes in the backward pass what its forward pass did not keep.
    """

    name: str
    why: str
    entry: Callable[..., Any]
    carriers: tuple[str, ...]
    made: _Form
    shapes: list[Shape]
    empty: list[torch.Tensor]
    given: _Form | None = None
    recomputes: bool = False


class PartRecorder:
    """Notes the parts of a model when it runs, and stands in for them when it is exported."""

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
        """Do what the part does.

        Parameters
        ----------
        carriers, more
            What it uses; default: the modules that it calls, and what is said in `more`.
        """
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
        """Learn from a run on other numbers what depends on them."""
        for part, again in zip(self.found, other.found, strict=False):
            if part.name != again.name:
                return  # the export will find that the way depends on the numbers
            if part.made != again.made:
                raise NoBorder(part.name, "what it returns beside tensors depends on numbers")
            part.shapes = [
                tuple(a if a == b else None for a, b in zip(one, two, strict=True))
                for one, two in zip(part.shapes, again.shapes, strict=True)
            ]

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Let calls of parts become operators."""
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


#: The parts that are stood in for.
_STANDING_IN: list[PartRecorder] = []
_TENSOR = object()


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


torch.library.register_fake("stagecut::part", _outlines, lib=_library)


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
    """Return the tensors of what goes in or out of a part, and the rest of it."""
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
    """Note the modules that are called, but not those that they call."""
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
