"""Local computation of operators under a signature, on shards of tensors.

Most operators are called as they are, on parts instead of whole tensors; some get other sizes
(views, groups of a convolution). Operators that need values of other devices are generators: they
yield a tensor to be summed, or reduced to its maximum, over an axis of the mesh, and are sent the
result. So the same code runs on a process group, and in a test on all devices of a mesh in turn.

Parts must be contiguous: some kernels of torch 2.13 (`native_layer_norm_backward` on a CPU) take
strided statistics for contiguous ones, and compute nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ....instances.model.tensor_program import PARTIAL, Property, local_shape
from ....instances.pytorch.tensor_rules import CONSTANTS
from ..attention import copied_heads


@dataclass(frozen=True, eq=False)
class Exchange:
    """All-reduce of an operator's statistics along an axis of the mesh."""

    tensor: Tensor
    how: Literal["sum", "max"]
    axis: int


#: Generator that yields exchanges, is sent their results, and returns the operator's.
Computing = Generator[Exchange, Tensor, Any]


@dataclass(frozen=True, eq=False)
class Call:
    """Call of an operator on one device, with parts in place of whole tensors.

    `kind` is ATen's name of the operator, such as ``mm``; `read` and `made` are the properties of
    its inputs and outputs, and `shapes` those of its whole outputs.
    """

    kind: str
    target: Any  # the overload of ATen's operator
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    read: Sequence[Property]
    made: Sequence[Property]
    shapes: Sequence[tuple[int, ...]]
    mesh: tuple[int, ...]
    place: tuple[int, ...]
    device: torch.device

    def along(self, how: Property, axis: int) -> list[int]:
        """Return the axes of the mesh that split a tensor of properties `how` by its `axis`."""
        return [d for d, one in enumerate(how) if one == axis]

    def parts(self, axes: Sequence[int]) -> int:
        """Return the number of parts along some axes of the mesh."""
        return prod(self.mesh[d] for d in axes)

    def offset(self, how: Property, axis: int, extent: int) -> int:
        """Return the index at which this device's part of an axis, of size `extent`, begins."""
        number = 0
        for d in self.along(how, axis):
            number = number * self.mesh[d] + self.place[d]
        return number * extent

    def local(self, output: int = 0) -> list[int]:
        """Return the shape of this device's shard of an output."""
        return list(local_shape(self.shapes[output], self.made[output], self.mesh))


def compute(call: Call) -> Computing:
    """Compute a call on this device's parts."""
    if call.kind in _ALONE:
        return _ALONE[call.kind](call)
    if call.kind in _EXCHANGING:
        made = yield from _EXCHANGING[call.kind](call)
        return made
    args = list(call.args)
    if call.kind in CONSTANTS:
        return _constant(call)
    if call.kind in ("squeeze", "view", "_unsafe_view", "reshape"):
        return args[0].reshape(call.local())  # a part may have strides that no view allows
    if call.kind in ("expand", "slice_backward", "select_backward"):
        args[1] = call.local()
    if call.kind == "convolution" and args[8] > 1:
        args[8] = args[8] * args[1].shape[0] // _whole_filters(call, 1)
    if call.kind == "convolution_backward":
        args[3] = None if args[3] is None else [args[0].shape[1]]
        if args[9] > 1:
            args[9] = args[9] * args[2].shape[0] // _whole_filters(call, 2)
    if args and isinstance(args[0], Tensor) and call.target._schema.is_mutable:
        args[0] = args[0].contiguous()  # zeros in place of what is elsewhere take no memory
    result = call.target(*args, **call.kwargs)
    return _shared(call, result)


def _constant(call: Call) -> Any:
    """Return this device's shard of a constant."""
    args, size = list(call.args), CONSTANTS[call.kind]
    if size != 0:
        args[0] = torch.empty(call.local(), dtype=args[0].dtype, device=call.device)
    if size is not None:
        args[size] = call.local()
    return call.target(*args, **call.kwargs)


def _shared(call: Call, result: Any) -> Any:
    """Return a result, of a mean divided by the number of parts that its samples are in."""
    if call.kind == "mean":
        how, read = call.made[0], call.read[0]
        axes = [d for d, one in enumerate(how) if one == PARTIAL and read[d] != PARTIAL]
    elif call.kind in ("mse_loss", "mse_loss_backward"):
        at = 2 if call.kind == "mse_loss" else 3
        reduction = call.args[at] if len(call.args) > at else 1
        axes = [d for d, one in enumerate(call.read[-1]) if one >= 0 and reduction == 1]
    else:
        return result
    return result / call.parts(axes)


def _whole_filters(call: Call, at: int) -> int:
    return int(call.args[at].shape[0]) * call.parts(call.along(call.read[at], 0))


def _over(axes: Sequence[int], part: Tensor, how: Literal["sum", "max"] = "sum") -> Computing:
    """Reduce a tensor over some axes of the mesh."""
    for axis in axes:
        part = yield Exchange(part, how, axis)
    return part


def _softmax(call: Call) -> Computing:
    values, dim = call.args[0], call.args[1] % call.args[0].dim()
    axes = call.along(call.read[0], dim)
    if not axes:
        return call.target(*call.args, **call.kwargs)
    largest = yield from _over(axes, values.amax(dim, keepdim=True), "max")
    powers = (values - largest).exp()
    total = yield from _over(axes, powers.sum(dim, keepdim=True))
    if call.kind == "_softmax":
        return powers / total
    return values - largest - total.log()


def _softmax_backward(call: Call) -> Computing:
    gradient, output = call.args[0], call.args[1]
    dim = call.args[2] % gradient.dim()
    axes = call.along(call.read[0], dim)
    if not axes:
        return call.target(*call.args, **call.kwargs)
    logarithm = call.kind.startswith("_log")
    weighed = gradient if logarithm else gradient * output
    total = yield from _over(axes, weighed.sum(dim, keepdim=True))
    if logarithm:
        return gradient - output.exp() * total
    return output * (gradient - total)


def _batch_norm(call: Call) -> Computing:
    """Batch norm by the statistics of all samples; running statistics are updated by these."""
    values, weight, bias, running_mean, running_var, training, momentum, eps = call.args
    axes = call.along(call.read[0], 0)
    if not training or not axes:
        return call.target(*call.args, **call.kwargs)
    count = values.numel() // values.shape[1] * call.parts(axes)
    others = [0, *range(2, values.dim())]
    mean = (yield from _over(axes, values.sum(others))) / count
    squares = yield from _over(axes, ((values - _channels(mean, values)) ** 2).sum(others))
    scale = torch.rsqrt(squares / count + eps)
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(squares / max(count - 1, 1), momentum)
    made = (values - _channels(mean, values)) * _channels(scale, values)
    made = made if weight is None else made * _channels(weight, values)
    return made if bias is None else made + _channels(bias, values), mean, scale


def _batch_norm_backward(call: Call) -> Computing:
    gradient, values, weight, _, _, mean, scale, training, _, mask = call.args
    axes = call.along(call.read[0], 0)
    if not training or not axes:
        return call.target(*call.args, **call.kwargs)
    count = values.numel() // values.shape[1] * call.parts(axes)
    others = [0, *range(2, values.dim())]
    normal = (values - _channels(mean, values)) * _channels(scale, values)
    of_bias = yield from _over(axes, gradient.sum(others))
    of_weight = yield from _over(axes, (gradient * normal).sum(others))
    factor = scale if weight is None else scale * weight
    inner = _channels(of_bias, values) + normal * _channels(of_weight, values)
    of_values = _channels(factor, values) * (gradient - inner / count)
    made = (of_values, of_weight, of_bias)
    return tuple(one if wanted else None for one, wanted in zip(made, mask, strict=True))


def _channels(one: Tensor, values: Tensor) -> Tensor:
    return one.reshape(1, -1, *(1,) * (values.dim() - 2))


def _loss(call: Call) -> Computing:
    log, target, _, reduction, ignored = call.args
    if not _is_parted(call, call.read[0]):  # it may have weights of classes, or no reduction
        return call.target(*call.args, **call.kwargs)
    valid, inside, place = _classes(call, log, call.read[0], target, ignored)
    picked = log.gather(1, place[:, None])[:, 0]
    loss = -torch.where(valid & inside, picked, torch.zeros_like(picked)).sum()
    total = yield from _over(call.along(call.read[0], 0), valid.sum().to(log.dtype))
    return loss / total if reduction == 1 else loss, total


def _loss_backward(call: Call) -> Any:
    gradient, log, target, _, reduction, ignored, total = call.args
    if not _is_parted(call, call.read[1]):
        return call.target(*call.args, **call.kwargs)
    valid, inside, place = _classes(call, log, call.made[0], target, ignored)
    share = -gradient / total if reduction == 1 else -gradient
    rows = torch.where(valid & inside, share, torch.zeros_like(share))
    return torch.zeros_like(log).scatter(1, place[:, None], rows[:, None])


def _is_parted(call: Call, how: Property) -> bool:
    """Return whether a tensor is split by its first axis or its second."""
    return bool(call.along(how, 0) or call.along(how, 1))


def _classes(
    call: Call, log: Tensor, how: Property, target: Tensor, ignored: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return masks of counted samples and of classes held here, and local columns."""
    here = target - call.offset(how, 1, log.shape[1])
    inside = (here >= 0) & (here < log.shape[1])
    return target != ignored, inside, torch.where(inside, here, torch.zeros_like(here))


def _embedding(call: Call) -> Any:
    weight, index = call.args[:2]
    if not call.along(call.read[0], 0):
        return call.target(*call.args, **call.kwargs)
    here = index - call.offset(call.read[0], 0, weight.shape[0])
    inside = (here >= 0) & (here < weight.shape[0])
    made = call.target(weight, torch.where(inside, here, torch.zeros_like(here)))
    return torch.where(inside[..., None], made, torch.zeros_like(made))


def _embedding_backward(call: Call) -> Any:
    gradient, index, _, padding, *rest = call.args
    if not call.along(call.made[0], 0):
        return call.target(*call.args, **call.kwargs)
    rows = call.local()[0]
    first = call.offset(call.made[0], 0, rows)
    here = index - first
    inside = (here >= 0) & (here < rows)
    if padding >= 0:
        inside = inside & (index != padding)
    masked = torch.where(inside[..., None], gradient, torch.zeros_like(gradient))
    return call.target(masked, torch.where(inside, here, torch.zeros_like(here)), rows, -1, *rest)


def _attention(call: Call) -> Any:
    """Attention as traced for a CPU; on GPUs its statistics, which nothing reads there, are 0."""
    if call.device.type == "cpu":
        return call.target(*call.args, **call.kwargs)
    made = _attended(call, call.args[:3], call.args[4:5])
    return made, made.new_zeros(call.local(1))


def _attention_backward(call: Call) -> Any:
    """Gradients of attention; on GPUs its forward pass is computed again."""
    if call.device.type == "cpu":
        return call.target(*call.args, **call.kwargs)
    leaves = [x.detach().requires_grad_() for x in call.args[1:4]]
    with torch.enable_grad():
        made = _attended(call, leaves, call.args[7:8])
    return torch.autograd.grad(made, leaves, call.args[0])


def _attended(call: Call, given: Sequence[Tensor], causal: Sequence[bool]) -> Tensor:
    query, key, value = given
    mask, scale = call.kwargs.get("attn_mask"), call.kwargs.get("scale")
    with copied_heads():
        return F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=any(causal), scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip


_EXCHANGING: Mapping[str, Callable[[Call], Computing]] = {
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "nll_loss_forward": _loss,
}
_ALONE: Mapping[str, Callable[[Call], Any]] = {
    "nll_loss_backward": _loss_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
