"""What torch itself counts when a model runs: the reference for what is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from .recording.formulas import custom_mapping
from .tracing.leaves import loss_of, tensors
from .tracing.unchanged import unchanged


@dataclass(frozen=True)
class Counts:
    """FLOPs of one pass, and bytes of the activations that it keeps for its backward pass."""

    flops: float
    saved_bytes: float


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
