"""The operator graph while it is built: operators, who wrote what last, who shares a device."""

from __future__ import annotations

from collections.abc import Iterable

from ..recording.recording import Recording
from .graph import Flow, OperatorGraph, SharedWeight, TracedOperator


class Draft:
    """What the passes over a recording share."""

    def __init__(self, recording: Recording, training: bool) -> None:
        self.recording = recording
        self.training = training
        self.operators: list[TracedOperator] = []
        self.flows: list[Flow] = []
        self.shared: list[SharedWeight] = []
        self.anywhere: list[str] = []
        self.of_step: dict[int, int] = {}
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        changed = {
            s
            for i, step in enumerate(recording.steps)
            for s in step.writes
            if step.kernels and s in {r.storage for r in step.reads}
        }
        self.constant = set(recording.buffers) - changed
        self.state = set(recording.buffers) & changed
        self.leader: list[int] = []

    def owner(self, storages: Iterable[int]) -> int:
        """Return who made the first of these storages, or reads it first if nobody did."""
        for storage in storages:
            if storage in self.writer:
                return self.writer[storage]
            if self.readers.get(storage):
                return self.readers[storage][0]
        return -1

    def together(self, members: Iterable[int]) -> None:
        """Let these operators share a device, and all that share one with them."""
        first = -1
        for v in members:
            root = self.find(v)
            if first < 0:
                first = root
            low, high = sorted((self.find(first), root))
            self.leader[high] = low

    def find(self, v: int) -> int:
        """Return the operator that stands for all that share a device with `v`."""
        while self.leader[v] != v:
            self.leader[v] = self.leader[self.leader[v]]
            v = self.leader[v]
        return v

    def graph(self) -> OperatorGraph:
        """Return what was built."""
        classes: dict[int, list[int]] = {}
        for v in range(len(self.operators)):
            classes.setdefault(self.find(v), []).append(v)
        return OperatorGraph(
            operators=tuple(self.operators),
            flows=tuple(self.flows),
            sizes=self.recording.sizes,
            colours=tuple(tuple(c) for c in classes.values() if len(c) > 1),
            shared=tuple(self.shared),
            anywhere=tuple(self.anywhere),
        )
