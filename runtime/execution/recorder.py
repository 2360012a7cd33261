"""Recorder of begin and end of this rank's actions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..schedules.actions import Action
from .recording_file import Done


class Recorder:
    """Notes actions, waiting for data left out.

    Times are `time.perf_counter`'s, which the processes of one host share. On a GPU every
    action waits until the device is idle, so recording costs time there.
    """

    def __init__(self, device: torch.device) -> None:
        self.step = 0
        self.done: list[Done] = []
        self._on_gpu = device.type == "cuda"

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Record begin and end of the block."""
        begun = self._now()
        yield
        self.done.append(Done(self.step, action, begun, self._now()))

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()
