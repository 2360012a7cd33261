"""What torch itself counts of a run: FLOPs, and bytes that autograd keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from stagecut.instances.operator_graph import Recording
from stagecut.instances.pytorch.record import FORMULAS
from stagecut.instances.pytorch.tracing.traced import loss_of, tensors
from stagecut.instances.pytorch.tracing.unchanged import unchanged


@dataclass(frozen=True)
class Counts:
    """FLOPs of one pass, and bytes of the activations that it keeps for its backward pass."""

    flops: float
    saved_bytes: float


def saved_bytes(recording: Recording) -> float:
    """Return the bytes saved for the backward pass: each storage once, no weights."""
    kept = {s for step in recording.steps for s in step.saved}
    return sum(recording.sizes[s] for s in kept - set(recording.parameters) - recording.buffers)


def custom_mapping() -> dict[Any, Callable[..., float]]:
    """Return the formulas as FlopCounterMode's `custom_mapping` takes them."""
    found: dict[Any, Callable[..., float]] = {}
    for name, formula in FORMULAS.items():
        space, operator = name.split("::")
        packet = getattr(getattr(torch.ops, space), operator, None)
        if packet is not None:
            found[packet] = _raw(formula)
    return found


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

    A multiply-add counts as two; the fused attention that `nn.MultiheadAttention` has for inference
    is switched off meanwhile: FlopCounterMode does not see into it. The model is left as it was.
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
