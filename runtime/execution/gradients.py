"""Gradients of what several ranks hold: copies of tied weights are added up, replicas averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from .split import PieceModule


class GradientSums:
    """Who adds up which gradients with whom.

    Parameters
    ----------
    pieces
        Of the plan.
    rank_of
        Rank of each of the plan's devices within a replica.
    size
        Ranks of a replica.
    replicas
        How many there are.
    """

    def __init__(
        self,
        pieces: Sequence[PieceModule],
        rank_of: Mapping[int, int],
        size: int,
        replicas: int,
    ) -> None:
        self.replicas = replicas
        holders: dict[str, set[int]] = {}
        for piece in pieces:
            for name in piece.parameters:
                holders.setdefault(name, set()).add(rank_of[piece.device])
        shared: dict[tuple[int, ...], list[str]] = {}
        for name, ranks in holders.items():
            if replicas > 1 or len(ranks) > 1:
                shared.setdefault(tuple(sorted(ranks)), []).append(name)
        self._own = []
        for together, names in sorted(shared.items()):
            everywhere = [r * size + rank for r in range(replicas) for rank in together]
            group = dist.new_group(everywhere)  # every rank makes every group
            if dist.get_rank() in everywhere:
                self._own.append((group, names))

    def add_up(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Leave in every parameter the gradient of the mean over replicas of the summed loss."""
        for group, names in self._own:
            trained = [parameters[name] for name in names if parameters[name].requires_grad]
            for dtype in dict.fromkeys(p.dtype for p in trained):
                self._add_up([p for p in trained if p.dtype == dtype], group)

    def _add_up(self, parameters: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat, group=group)
        flat /= self.replicas
        parts = flat.split([p.numel() for p in parameters])
        for p, part in zip(parameters, parts, strict=True):
            p.grad = part.view_as(p)
