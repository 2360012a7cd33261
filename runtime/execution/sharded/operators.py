"""Execution of a sharding's operators and conversions on one device's shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ....instances.model.tensor_program import COPIED, Property, local_shape
from ....instances.pytorch.tensor_rules import CONSTANTS
from ...measure.group import idle_at
from ...simulate.sharded import ConversionStep
from ..recording_file import RecordedEvent
from .collectives import (
    MeshPosition,
    Sent,
    begin_sums,
    combine,
    is_elsewhere,
    nothing,
    sent_by_sum,
    step,
)
from .local import Call, compute
from .program import PlacedTensor, ShardedProgram, TracedOperation, property_of


@dataclass(frozen=True, eq=False)
class _Sums:
    """Collective in flight that sums gradients: when it was begun, and how to wait for it."""

    gradients: Sequence[PlacedTensor]
    sent: Sequence[Sent]
    begun: float
    wait: Callable[[], list[Tensor]]


class Operators:
    """Executor of a sharding's operators on one device.

    `held` has the parts that are in memory. `done` counts operators and collectives, which `events`
    lists, with the number of the step, if `record`.
    """

    def __init__(
        self, sharded: ShardedProgram, place: MeshPosition, *, record: bool = False
    ) -> None:
        self.sharded, self.place, self.record = sharded, place, record
        self.held: dict[PlacedTensor, Tensor] = {}
        self.events: list[RecordedEvent] = []
        self._sums: list[_Sums] = []
        self.done = 0
        self.steps = 0

    def operate(self, operation: TracedOperation) -> None:
        """Compute an operator if it is on this device, make due conversions, free tensors."""
        parts = iter([self.part(held) for held in operation.reads])
        if is_elsewhere(operation.makes[0][1], self.place):
            self.held |= {held: self._nothing(held) for held in operation.makes}
        else:
            self._compute(operation, parts)
        for held in operation.early:
            self.part(held)
        for bucket in operation.buckets:
            if is_elsewhere(bucket[0][1], self.place):
                continue
            self.finish()
            self._begin(bucket)
        for t in operation.done:
            for held in [held for held in self.held if held[0] == t]:
                del self.held[held]

    def _nothing(self, held: PlacedTensor) -> Tensor:
        """Return zeros for a tensor that is on other devices."""
        tensor = self.sharded.program.tensors[held[0]]
        like = torch.empty((), dtype=getattr(torch, tensor.dtype), device=self.place.device)
        return nothing(like, local_shape(tensor.shape, held[1], self.place.mesh))

    def _compute(self, operation: TracedOperation, parts: Iterator[Tensor]) -> None:
        """Compute an operator on the parts that it reads."""

        def given(node: fx.Node) -> Any:
            value = node.meta.get("val")
            if not isinstance(value, Tensor):
                return node
            return value if operation.kind in CONSTANTS else next(parts)

        args, kwargs = fx.map_arg((operation.node.args, operation.node.kwargs), given)
        if "device" in kwargs:  # that of the trace
            kwargs = {**kwargs, "device": self.place.device}
        program = self.sharded.program
        call = Call(
            operation.kind, operation.node.target, tuple(args), kwargs,
            [how for _, how in operation.reads], [how for _, how in operation.makes],
            [program.tensors[t].shape for t, _ in operation.makes],
            self.place.mesh, self.place.at, self.place.device,
        )  # fmt: skip
        made = self._computed(operation, call)
        several = made if isinstance(made, tuple | list) else [made]
        present = [one for one in several if isinstance(one, Tensor)]
        self.held |= zip(operation.makes, present, strict=True)

    def _computed(self, operation: TracedOperation, call: Call) -> Any:
        """Return the result of a call, whose exchanges with other devices are timed apart."""
        kind = "backward" if operation.operator.backward else "forward"
        name = str(operation.operator.name)
        running = compute(call)
        result: Tensor | None = None
        begun = time.perf_counter()
        while True:
            try:
                asked = running.send(result)
            except StopIteration as done:
                self._note(name, kind, -1, begun)
                return done.value
            self._note(name, kind, -1, begun)
            begun = time.perf_counter()
            result, sent = combine(asked, self.place)
            self._note(name, sent.collective, asked.axis, begun, sent.bytes, within=True)
            begun = time.perf_counter()

    def part(self, held: PlacedTensor) -> Tensor:
        """Return the part of a tensor with a property, converted when it is first needed."""
        if held not in self.held:
            how = self.sharded.lying(held[0])
            self._convert(held, self.held[held[0], how], how, self.sharded.steps[held])
        return self.held[held]

    def finish(self) -> None:
        """Wait for sums of gradients in flight, and make their remaining conversions."""
        for sums in self._sums:
            made, begun = sums.wait(), sums.begun
            for held, part, sent in zip(sums.gradients, made, sums.sent, strict=True):
                first, *more = self.sharded.steps[held]
                name = self.sharded.program.tensors[held[0]].name
                self._note(name, sent.collective, first.axis, begun, sent.bytes)
                begun = time.perf_counter()
                self._convert(held, part, property_of(first.after), more)
        self._sums = []

    def _begin(self, bucket: Sequence[PlacedTensor]) -> None:
        """Begin to sum the gradients of a bucket, those over the same axis together."""
        alike: dict[Any, list[tuple[PlacedTensor, int]]] = {}
        for held in bucket:
            how = self.sharded.lying(held[0])
            if held in self.held:
                continue
            first = self.sharded.steps[held][0]
            after = property_of(first.after)[first.axis]
            if first.collective in ("all-reduce", "reduce-scatter"):
                kind = (first.axis, after == COPIED, self.held[held[0], how].dtype)
                alike.setdefault(kind, []).append((held, after))
            else:
                self.part(held)
        for (axis, *_), pairs in alike.items():
            parts = [self.held[t, self.sharded.lying(t)] for (t, _), _ in pairs]
            after_of = [after for _, after in pairs]
            sent = [
                sent_by_sum(part, after, axis, self.place)
                for part, after in zip(parts, after_of, strict=True)
            ]
            begun = time.perf_counter()
            wait = begin_sums(parts, after_of, axis, self.place)
            self._sums.append(_Sums([held for held, _ in pairs], sent, begun, wait))

    def _convert(
        self, held: PlacedTensor, part: Tensor, how: Property, steps: Sequence[ConversionStep]
    ) -> None:
        """Convert a part of properties `how` by some steps, and hold the result."""
        name = self.sharded.program.tensors[held[0]].name
        for one in steps:
            after = property_of(one.after)
            begun = time.perf_counter()
            if one.axis > 0 and self.sharded.placed and is_elsewhere(how, self.place):
                # a group does it alone; conversions of all also pass through the first device
                how, part = after, self._nothing((held[0], after))
                continue
            part, sent = step(part, how[one.axis], after[one.axis], one.axis, self.place)
            if sent.collective:
                self._note(name, sent.collective, one.axis, begun, sent.bytes)
            how = after
        assert how == held[1]
        self.held[held] = part

    def _note(
        self, name: str, kind: str, axis: int, begun: float, size: float = 0.0,
        *, within: bool = False,
    ) -> None:  # fmt: skip
        self.done += 1
        if self.record:
            now = idle_at(self.place.device)
            self.events.append(
                RecordedEvent(self.steps, name, kind, within, axis, begun, now, size)
            )
