"""Sends and receives between ranks of a pipeline: one message for all tensors of an edge.

One, because a message has its latency whatever its size, and because torch 2.6 waits for the last
message of a batch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist

#: Tensors in one message begin at multiples of it.
ALIGNMENT = 64


class Spec(NamedTuple):
    """Shape and type of a tensor that is on its way."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes."""
        return prod(self.shape) * int(self.dtype.itemsize)


class RankChannel:
    """Sends and receives between ranks.

    gloo moves memory of the host only: there, tensors of a GPU are copied on the way.

    Parameters
    ----------
    group
        Of the pipeline.
    device
        Of this rank.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.device = device
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        through_host = device.type != "cpu" and dist.get_backend(group) == "gloo"
        self._place = torch.device("cpu") if through_host else device

    def send(self, tensors: Sequence[torch.Tensor], rank: int) -> list[dist.P2POp]:
        """Return the operation that sends tensors to a rank and holds them meanwhile."""
        if len(tensors) == 1:
            packed = tensors[0].contiguous()
        else:
            specs = [Spec(tuple(t.shape), t.dtype) for t in tensors]
            packed = torch.empty(_ends(specs)[-1], dtype=torch.uint8, device=self.device)
            for tensor, part in zip(tensors, _parts(packed, specs), strict=True):
                part.copy_(tensor)
        return [dist.P2POp(dist.isend, packed.to(self._place), self._peer(rank), self.group)]

    def buffer(self, specs: Sequence[Spec]) -> torch.Tensor:
        """Return memory to receive tensors into."""
        if len(specs) == 1:
            return torch.empty(specs[0].shape, dtype=specs[0].dtype, device=self._place)
        return torch.empty(_ends(specs)[-1], dtype=torch.uint8, device=self._place)

    def receive(self, buffer: torch.Tensor, rank: int) -> list[dist.P2POp]:
        """Return the operation that receives tensors from a rank."""
        return [dist.P2POp(dist.irecv, buffer, self._peer(rank), self.group)]

    def unpack(self, buffer: torch.Tensor, specs: Sequence[Spec]) -> list[torch.Tensor]:
        """Return the tensors that were received, on this rank's device."""
        here = buffer.to(self.device)
        return [here] if len(specs) == 1 else _parts(here, specs)

    def _peer(self, rank: int) -> int:
        return int(dist.get_global_rank(self.group, rank))


def _ends(specs: Sequence[Spec]) -> list[int]:
    """Return where each tensor's room ends; a message has at least a byte."""
    ends = []
    end = 0
    for spec in specs:
        end += -(-spec.size_bytes // ALIGNMENT) * ALIGNMENT
        ends.append(end)
    return ends or [1]


def _parts(packed: torch.Tensor, specs: Sequence[Spec]) -> list[torch.Tensor]:
    starts = [0, *_ends(specs)[:-1]]
    return [
        packed[start : start + spec.size_bytes].view(spec.dtype).view(spec.shape)
        for start, spec in zip(starts, specs, strict=False)
    ]
