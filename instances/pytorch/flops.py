"""FLOP formulas missing or different in torch's FlopCounterMode, and torch's own counts.

FlopCounterMode counts attention by the fused kernels of GPUs, though as if a causal mask saved
nothing, but not by that of CPUs; and no product of grouped matrices, as of mixtures of experts.
`custom_mapping` hands the same formulas to FlopCounterMode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from .tracing.leaves import loss_of, tensors
from .tracing.unchanged import unchanged


@dataclass(frozen=True)
class Counts:
    """FLOPs of one pass, and bytes of the activations that it keeps for its backward pass."""

    flops: float
    saved_bytes: float


def attention(name: str, *args: Any, **kwargs: Any) -> float:
    """Q·Kᵀ and weights·V, each 2·pairs·width, over all heads.

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
    """A product for the gradient of the rows, and one for that of the weights."""
    a, b = (first, second) if second.dim() == 3 else (second, first)
    return 2.0 * grouped_product(a, b)


def custom_mapping() -> dict[Any, Callable[..., float]]:
    """Return the formulas as FlopCounterMode's `custom_mapping` takes them."""
    found: dict[Any, Callable[..., float]] = {}
    for name, formula in FORMULAS.items():
        space, operator = name.split("::")
        packet = getattr(getattr(torch.ops, space), operator, None)
        if packet is not None:
            found[packet] = _raw(formula)
    return found


def flops_of(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the FLOPs of a call of an operator that returned `out`; 0 of what is not counted."""
    if not isinstance(func, torch._ops.OpOverload):
        return 0.0
    if func._schema.name in FORMULAS:
        return FORMULAS[func._schema.name](*args, **kwargs)
    count = flop_registry.get(func.overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


def _raw(formula: Callable[..., float]) -> Callable[..., float]:
    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> float:  # noqa: ARG001
        return formula(*args, **kwargs)

    count._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes
    return count


def counted_by_torch(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
) -> Counts:
    """Run a model once under FlopCounterMode and saved-tensor hooks.

    Parameters
    ----------
    model, args, kwargs
        What runs: ``model(*args, **kwargs)``; afterwards it is as it was.
    training
        Whether the backward pass runs, too.

    Returns
    -------
    Counts
        ``flops`` of the pass, a multiply-add counted as two, and ``saved_bytes``, what is kept for
        the backward pass.

    Notes
    -----
    The fused attention that `nn.MultiheadAttention` has for inference is switched off meanwhile:
    FlopCounterMode does not see into it.

    Examples
    --------
    >>> counted_by_torch(nn.Linear(4, 8), (torch.zeros(3, 4),)).flops
    192.0
    """
    saved: dict[int, torch.UntypedStorage] = {}
    fast = torch.backends.mha.get_fastpath_enabled()
    with unchanged(model, (args, kwargs)):
        model.train(training)
        held = tensors([list(model.parameters()), list(model.buffers())])
        weights = {t.untyped_storage().data_ptr() for t in held}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = storage
            return tensor

        counter = FlopCounterMode(display=False, custom_mapping=custom_mapping())
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with counter, torch.set_grad_enabled(training):
                with saved_tensors_hooks(pack, lambda tensor: tensor):
                    roots = loss_of(tensors(model(*args, **(kwargs or {}))))
                if training and roots:
                    torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
    return Counts(float(counter.get_total_flops()), float(sum(s.nbytes() for s in saved.values())))


#: By name, as packages that are not installed may define the operator.
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
    "aten::_grouped_mm": grouped_product,
    "transformers::grouped_mm_fallback": grouped_product,
    "transformers::grouped_mm_fallback_backward": grouped_product_backward,
}
