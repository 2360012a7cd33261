"""Collectives of conversions between properties, step by step, on this device of a mesh.

No other module calls torch's operators for collectives, by which DTensor converts, and which its
`CommDebugMode` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ....instances.model.tensor_program import COPIED, FIRST, PARTIAL, Property
from ...measure.group import rank_device
from .local import Exchange

#: Operators of torch's collectives; unlike those of its functions in Python, their names stay.
_TORCH = torch.ops._c10d_functional


class Sent(NamedTuple):
    """Collective, empty if there was none, with the bytes that this device sent."""

    collective: str
    bytes: float


@dataclass(frozen=True, eq=False)
class MeshPosition:
    """Position of this process on a mesh of so many devices along each axis, and its device.

    `at` are its coordinates, `groups` the names of its process groups along each axis, and
    `devices` is the mesh as torch's own.
    """

    mesh: tuple[int, ...]
    at: tuple[int, ...]
    groups: tuple[str, ...]
    device: torch.device
    devices: DeviceMesh | None = None


def join_mesh(shape: tuple[int, ...], device: torch.device | None = None) -> MeshPosition:
    """Make the groups of a mesh; all ranks of the process group call it."""
    device = device or rank_device()
    names = tuple(str(axis) for axis in range(len(shape)))
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    groups = tuple(mesh.get_group(axis).group_name for axis in range(len(shape)))
    return MeshPosition(shape, tuple(mesh.get_coordinate()), groups, device, mesh)


def part_of(whole: Tensor, how: Property, place: MeshPosition) -> Tensor:
    """Return this device's part of a tensor with the properties `how`, on this device.

    It is zero if the tensor is on another group of devices.
    """
    if is_elsewhere(how, place):
        whole = torch.zeros_like(whole)
    for axis, one in enumerate(how):
        if one >= 0:
            whole = _slice(whole, one, axis, place)
    return whole.contiguous().to(place.device)


def is_elsewhere(how: Property, place: MeshPosition) -> bool:
    """Return whether a tensor is on another group of devices along the first axis."""
    return how[0] <= FIRST and place.at[0] != FIRST - how[0]


def nothing(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return zeros of a shape that take no memory, for a tensor on another group of devices."""
    return like.new_zeros(()).expand(shape)


def step(
    part: Tensor, before: int, after: int, axis: int, place: MeshPosition
) -> tuple[Tensor, Sent]:
    """Convert a shard along an axis of the mesh; return the new one and the collective."""
    count, group, size = place.mesh[axis], place.groups[axis], _bytes(part)
    part = part.contiguous()
    if before == COPIED or after == PARTIAL:
        return _without_sending(part, before, after, axis, place), Sent("", 0.0)
    if part.dtype is torch.bool:  # gloo does not move it; sums of padded parts are still 0 or 1
        made, sent = step(part.view(torch.uint8), before, after, axis, place)
        return made.view(torch.bool), sent
    if part.is_complex():  # nor does it move complex numbers
        made, sent = step(_real(part), before, after, axis, place)
        return torch.view_as_complex(made.contiguous()), sent
    if min(before, after) <= FIRST:
        return _rooted(part, before, after, axis, place)
    if before == PARTIAL:
        (made,) = begin_sums([part], [after], axis, place)()
        return made, sent_by_sum(part, after, axis, place)
    if after == COPIED:
        made = _TORCH.wait_tensor(_TORCH.all_gather_into_tensor(part, count, group))
        made = torch.cat(made.chunk(count), before) if before else made
        return made, Sent("all-gather", (count - 1) * size)
    pieces, each = torch.stack(part.chunk(count, after)), [1] * count
    moved = _TORCH.wait_tensor(_TORCH.all_to_all_single(pieces, each, each, group))
    made = torch.cat(moved.unbind(), before)
    return made, Sent("all-to-all", (count - 1) / count * size)


def begin_sums(
    parts: Sequence[Tensor], after: Sequence[int], axis: int, place: MeshPosition
) -> Callable[[], list[Tensor]]:
    """Begin to sum tensors over an axis of the mesh, in one collective.

    Afterwards all are copied, or each is split by the tensor's axis in `after`. Returns a function
    that waits for the sums and returns them.
    """
    count, group = place.mesh[axis], place.groups[axis]
    if parts[0].is_complex():
        real = begin_sums([_real(part) for part in parts], after, axis, place)
        return lambda: [torch.view_as_complex(each) for each in real()]
    if after[0] == COPIED:
        shapes = [part.shape for part in parts]
        flat = torch.cat([part.reshape(-1) for part in parts]) if parts[1:] else parts[0]
        made = _TORCH.all_reduce(flat.contiguous(), "sum", group)
    else:
        pieces = [torch.stack(p.chunk(count, by)) for p, by in zip(parts, after, strict=True)]
        shapes = [piece.shape[1:] for piece in pieces]
        flat = torch.cat([piece.view(count, -1) for piece in pieces], 1)
        made = _TORCH.reduce_scatter_tensor(flat, "sum", count, group)

    def wait() -> list[Tensor]:
        sums = _TORCH.wait_tensor(made).view(-1).split([shape.numel() for shape in shapes])
        return [each.view(shape) for each, shape in zip(sums, shapes, strict=True)]

    return wait


def sent_by_sum(part: Tensor, after: int, axis: int, place: MeshPosition) -> Sent:
    """Return the collective, and the bytes that a device sends, of a sum over an axis."""
    size = (place.mesh[axis] - 1) / place.mesh[axis] * _bytes(part)
    return Sent("all-reduce", 2 * size) if after == COPIED else Sent("reduce-scatter", size)


def _rooted(
    part: Tensor, before: int, after: int, axis: int, place: MeshPosition
) -> tuple[Tensor, Sent]:
    """Gather or reduce to one device along an axis, or scatter or broadcast from it.

    The other devices then have zeros of the whole shape.
    """
    count, root = place.mesh[axis], FIRST - min(before, after)
    here = place.at[axis] == root
    group = dist.distributed_c10d._resolve_process_group(place.groups[axis])
    if after == COPIED:
        made = part.clone()
        dist.broadcast(made, group=group, group_src=root)
        return made, Sent("broadcast", (count - 1) * _bytes(part) if here else 0.0)
    if before == PARTIAL:
        made = part.clone()
        dist.reduce(made, group=group, group_dst=root)
        made = made if here else nothing(part, part.shape)
        return made, Sent("reduce", 0.0 if here else _bytes(part))
    if before <= FIRST:
        pieces = [piece.contiguous() for piece in part.chunk(count, after)]
        made = torch.empty_like(pieces[0])
        dist.scatter(made, pieces if here else None, group=group, group_src=root)
        return made, Sent("scatter", (count - 1) * _bytes(made) if here else 0.0)
    several = [torch.empty_like(part) for _ in range(count)] if here else None
    dist.gather(part, several, group=group, group_dst=root)
    if several is not None:
        return torch.cat(several, before), Sent("gather", 0.0)
    whole: list[int] = list(part.shape)
    whole[before] *= count
    return nothing(part, whole), Sent("gather", _bytes(part))


def combine(exchange: Exchange, place: MeshPosition) -> tuple[Tensor, Sent]:
    """Reduce an operator's exchanged values over the devices along an axis."""
    group, count = place.groups[exchange.axis], place.mesh[exchange.axis]
    part = exchange.tensor.contiguous()
    made = _TORCH.wait_tensor(_TORCH.all_reduce(part, exchange.how, group))
    return made, Sent("all-reduce", 2 * (count - 1) / count * _bytes(part))


def total(part: Tensor, how: Property, place: MeshPosition) -> float:
    """Return the sum of all elements of a tensor; every device calls it."""
    value = part.detach().to(torch.float64).sum()
    if is_elsewhere(how, place):
        value.zero_()
    for axis, one in enumerate(how):
        if one != COPIED:
            value = _TORCH.wait_tensor(_TORCH.all_reduce(value, "sum", place.groups[axis]))
    return float(value)


def _without_sending(
    part: Tensor, before: int, after: int, axis: int, place: MeshPosition
) -> Tensor:
    if after >= 0:
        return _slice(part, after, axis, place).contiguous()
    if before <= FIRST or before == COPIED:  # of one device, which keeps it
        keeper = FIRST - min(before, after, FIRST)
        return part if place.at[axis] == keeper else nothing(part, part.shape)
    extent = part.shape[before]
    shape: list[int] = list(part.shape)
    shape[before] *= place.mesh[axis]
    padded = part.new_zeros(shape)
    padded.narrow(before, place.at[axis] * extent, extent).copy_(part)
    return padded


def _slice(whole: Tensor, tensor_axis: int, axis: int, place: MeshPosition) -> Tensor:
    extent = whole.shape[tensor_axis] // place.mesh[axis]
    return whole.narrow(tensor_axis, place.at[axis] * extent, extent)


def _real(part: Tensor) -> Tensor:
    """Return real and imaginary parts along a last axis."""
    return torch.view_as_real(part.resolve_conj())


def _bytes(part: Tensor) -> float:
    return float(part.numel() * part.element_size())
