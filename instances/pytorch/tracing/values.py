"""Values of the nodes of a traced graph: shape, type, memory block, gradient or none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from .leaves import as_fake, mode_of, swapped_tensors, tensors
from .traced import Traced, quiet
from .unchanged import unchanged


@dataclass(frozen=True)
class TensorValue:
    """A tensor that a node of the graph gives."""

    name: str  # the fx node's
    shape: tuple[int, ...]
    dtype: torch.dtype
    grad: bool  # whether a gradient comes back for it
    storage: int  # number of its memory block: a tensor and its views share one

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * int(self.dtype.itemsize)


@dataclass(frozen=True)
class Values:
    """Values of the nodes of a graph."""

    of: Mapping[str, TensorValue]  # by node name; nodes that give no single tensor are left out
    changed: Mapping[str, frozenset[int]]  # memory blocks that a node changes in place, by its name


def values_of(traced: Traced, training: bool) -> Values:
    """Return the value of every node of a traced model.

    Tensors have shapes but no numbers, unless sizes depend on numbers: then the model runs.
    """
    with unchanged(traced.module, traced.inputs), quiet():
        try:
            return _values(traced, training, mode_of(()))
        except Exception:  # `record` has told why, and that real numbers help
            return _values(traced, training, None)


def _values(traced: Traced, training: bool, fake: FakeTensorMode | None) -> Values:
    run = _ValuePass(traced.module, fake)
    held = swapped_tensors(traced.module, run.convert)
    with held, torch.set_grad_enabled(training), fake or nullcontext():
        given = [tree_map(run.convert, x) for x in traced.inputs]
        run.run(*given, enable_io_processing=False)
        of = {n.name: run.value(n.name, given) for n, given in run.env.items() if _single(n, given)}
    return Values(of, run.changed)


def _single(n: fx.Node, given: Any) -> bool:
    return isinstance(given, torch.Tensor) and n.op != "output"


class _ValuePass(fx.Interpreter):  # type: ignore[misc]  # torch is not typed for mypy here
    """Interpreter that records the value of every node."""

    def __init__(self, module: fx.GraphModule, fake: FakeTensorMode | None) -> None:
        super().__init__(module)
        self.garbage_collect_values = False  # so that no memory block is used twice
        self.fake = fake
        self.converted: dict[int, torch.Tensor] = {}
        self.numbers: dict[int, int] = {}
        self.changed: dict[str, frozenset[int]] = {}

    def convert(self, value: Any) -> Any:
        """Return a tensor without its numbers; one and the same for one and the same."""
        if self.fake is None or not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.converted:
            self.converted[id(value)] = as_fake(value, self.fake)
        return self.converted[id(value)]

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.convert(super().get_attr(target, args, kwargs))

    def run_node(self, n: fx.Node) -> Any:
        given = tensors(self.fetch_args_kwargs_from_env(n)) if n.op.startswith("call") else []
        before = [t._version for t in given]
        value = super().run_node(n)
        changed = [t for t, v in zip(given, before, strict=True) if t._version != v]
        if changed:
            self.changed[n.name] = frozenset(map(self.number, changed))
        return value

    def value(self, name: str, tensor: torch.Tensor) -> TensorValue:
        """Return a node's value after the pass, as in-place changes may add a gradient."""
        shape = tuple(int(size) for size in tensor.shape)
        return TensorValue(name, shape, tensor.dtype, tensor.requires_grad, self.number(tensor))

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's memory block."""
        return self.numbers.setdefault(tensor.untyped_storage()._cdata, len(self.numbers))
