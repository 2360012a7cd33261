"""Sums and norms of gradients over the ranks that hold a copy of a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from ..measure.group import rank_device


class GradientSums:
    """All-reduce of the gradients of parameters that several ranks hold.

    Holders are the replicas of a parameter's piece and, of a tied weight, of all its pieces; the
    gradient is the sum over them. `others` are the holders of other members of a tensor group: all
    ranks make the same process groups.
    """

    def __init__(
        self,
        holders: Mapping[str, frozenset[int]],
        others: Sequence[Mapping[str, frozenset[int]]] = (),
    ) -> None:
        self.holders = holders
        known = {ranks for each in (holders, *others) for ranks in each.values()}
        sets = sorted(tuple(sorted(ranks)) for ranks in known if len(ranks) > 1)
        everyone = tuple(range(dist.get_world_size()))
        self.groups = {
            ranks: None if ranks == everyone else dist.new_group(list(ranks)) for ranks in sets
        }

    def add_up(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Replace the gradients by their sums over the ranks.

        All holders of a parameter call this with it and the same others of these holders.
        A parameter that has a gradient on none of its ranks has none afterwards; sums of sparse
        gradients are dense.
        """
        together: dict[tuple[tuple[int, ...], torch.dtype], list[nn.Parameter]] = {}
        for name in sorted(n for n in parameters if len(self.holders[n]) > 1):
            key = (tuple(sorted(self.holders[name])), parameters[name].dtype)
            together.setdefault(key, []).append(parameters[name])
        for (ranks, dtype), group in sorted(together.items(), key=lambda item: str(item[0])):
            present = torch.tensor([p.grad is not None for p in group]).to(group[0].device, dtype)
            parts = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in group]
            counts, *sums = sums_over([present, *parts], self.groups[ranks])
            for parameter, count, total in zip(group, counts.tolist(), sums, strict=True):
                parameter.grad = total.clone() if count else None


def sums_over(parts: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Return tensors of one type added up over a group, in one collective."""
    flat = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(flat, group=group)
    sums = flat.split([part.numel() for part in parts])
    return [total.view_as(part) for total, part in zip(sums, parts, strict=True)]


def clip_norm(
    parameters: Mapping[str, nn.Parameter],
    holders: Mapping[str, frozenset[int]],
    max_norm: float,
) -> torch.Tensor:
    """Scale this rank's gradients so that those of all ranks have at most a Euclidean norm.

    All ranks call it together, after gradients were added up. Copies count once. Returns the norm
    before.
    """
    rank = dist.get_rank()
    here = {name: x.grad for name, x in parameters.items() if x.grad is not None}
    norms = [
        torch.linalg.vector_norm((x.abs() if x.is_complex() else x).to_dense(), dtype=torch.float32)
        for name, x in here.items()
        if rank == min(holders[name])
    ]
    square = torch.stack(norms).square().sum() if norms else torch.zeros((), device=rank_device())
    return scale_to_norm(list(here.values()), square, max_norm)


def scale_to_norm(
    gradients: Sequence[torch.Tensor], square: torch.Tensor, max_norm: float
) -> torch.Tensor:
    """Scale this rank's gradients so that those of all ranks have at most a Euclidean norm.

    `square` is this rank's part of the squared norm. Returns the norm before.
    """
    dist.all_reduce(square)
    norm = square.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ has it
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.dtype))
    return norm


def holders_of(
    names: Sequence[Sequence[str]], ranks: Sequence[Sequence[int]]
) -> dict[str, frozenset[int]]:
    """Return which ranks hold each parameter, from the names and the ranks of each piece."""
    holders: dict[str, frozenset[int]] = {}
    for own, where in zip(names, ranks, strict=True):
        for name in own:
            holders[name] = holders.get(name, frozenset()) | frozenset(where)
    return holders
