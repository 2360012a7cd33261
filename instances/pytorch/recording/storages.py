"""Numbers for the memory blocks that a pass works on."""

from __future__ import annotations

from typing import Any

import torch

from ..tracing.leaves import plain, size
from .recording import Read


class Storages:
    """Numbers for memory blocks; holds on to them, so that no number means two."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        self.sizes: list[float] = []

    def number(self, tensor: torch.Tensor) -> int:
        tensor = plain(tensor)
        dense = tensor.layout is torch.strided
        held: Any = tensor.untyped_storage() if dense else tensor
        key = held._cdata
        if key not in self._numbers:
            self._numbers[key] = len(self.sizes)
            self._kept.append(held)
            self.sizes.append(float(held.nbytes()) if dense else size(tensor))
        return self._numbers[key]

    def alias(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Let `other` count as the memory of `tensor`."""
        number = self.number(tensor)
        self._kept.append(other.untyped_storage())
        self._numbers[other.untyped_storage()._cdata] = number

    def read(self, tensor: torch.Tensor) -> Read:
        tensor = plain(tensor)
        offset = int(tensor.storage_offset()) if tensor.layout is torch.strided else 0
        return Read(self.number(tensor), offset, size(tensor))
