"""Watching what the operators of a model come down to, below autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..tracing.leaves import size, tensors
from .formulas import FORMULAS
from .recording import KernelCall

#: Make memory, look at it or check it, but compute nothing.
_FREE = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view"}
    | {"_assert_tensor_metadata", "_assert_async", "_local_scalar_dense", "lift_fresh"}
)

#: Read only the rows that they are asked for, as many as they write.
_LOOKUPS = frozenset({"embedding", "index", "index_select", "gather"})

#: Returns a mark in time; what lies between two marks is known later.
Clock = Callable[[], Any]


class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed for mypy here
    """Collects the kernels that run while it is active.

    Parameters
    ----------
    clock
        Times kernels instead of describing them: `marks` has signature, begin and end of each.
    """

    supports_higher_order_operators = True  # they run, and what is in them is seen

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.kernels: list[KernelCall] = []
        self.random = False
        self.written: list[torch.Tensor] = []
        self.marks: list[tuple[str, Any, Any]] = []
        self._clock = clock
        self._flops: dict[str, float] = {}

    def take(self) -> tuple[tuple[KernelCall, ...], bool, list[torch.Tensor]]:
        """Return what was seen since the last call: kernels, randomness, tensors written."""
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
        """Run the operator and note it, unless it is a view."""
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
            KernelCall(
                str(func), sign, self._flops_of(func, args, kwargs, sign), moved(func, args, out)
            )
        )
        return out

    def _flops_of(self, func: Any, args: Any, kwargs: Any, sign: str) -> float:
        if written(func, args, kwargs):
            return 0.0  # what changes its arguments must not run twice, and is no matrix product
        formula = FORMULAS.get(func._schema.name)
        if formula is not None:
            return formula(*args, **kwargs)
        if sign not in self._flops:
            with FlopCounterMode(display=False) as counter:
                func(*args, **kwargs)
            self._flops[sign] = float(counter.get_total_flops())
        return self._flops[sign]


def is_free(func: Any) -> bool:
    """Whether an operator computes nothing, as one that only views its argument."""
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
    if func._schema.name.split("::")[-1] in _LOOKUPS:
        return 2 * total + sum(size(t) for t in tensors(args[1:]))
    seen: set[int] = set()
    for tensor in tensors(args):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            total += size(tensor)
    return total


def signature(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return all that the time of a kernel depends on, apart from the machine, as one text."""
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
