"""Operators of a sharding on one device's shards: computed, converted, recorded."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, fx

from ....instances.pytorch.tensors.rules import CONSTANTS
from .collectives import Place, combine, step
from .local import Call, compute
from .program import Held, ShardedProgram, TracedOperation, property_of
from .recording import RecordedEvent


class Operators:
    """The operators of a sharding on one device.

    `held` are the parts that are here now, `done` counts what was done, and `events` has it, with
    the number of the step, if `record`.
    """

    def __init__(self, sharded: ShardedProgram, place: Place, *, record: bool = False) -> None:
        self.sharded, self.place, self.record = sharded, place, record
        self.held: dict[Held, Tensor] = {}
        self.events: list[RecordedEvent] = []
        self.done = 0
        self.steps = 0

    def operate(self, operation: TracedOperation) -> None:
        """Compute an operator on this device's shards, and free tensors after last use."""
        parts = iter([self.part(held) for held in operation.reads])

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
        for held in operation.gradients:
            self.part(held)
        for t in operation.done:
            for held in [held for held in self.held if held[0] == t]:
                del self.held[held]

    def _computed(self, operation: TracedOperation, call: Call) -> Any:
        """Compute a call; exchanges with other devices are timed apart."""
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

    def part(self, held: Held) -> Tensor:
        """Return a tensor as it is needed: converted when it is first needed so."""
        if held not in self.held:
            tensor, wanted = held
            how = self.sharded.lying(tensor)
            part = self.held[tensor, how]
            for one in self.sharded.steps[held]:
                after = property_of(one.after)
                begun = time.perf_counter()
                part, sent = step(part, how[one.axis], after[one.axis], one.axis, self.place)
                if sent.collective:
                    name = self.sharded.program.tensors[tensor].name
                    self._note(name, sent.collective, one.axis, begun, sent.bytes)
                how = after
            assert how == wanted
            self.held[held] = part
        return self.held[held]

    def _note(
        self, name: str, kind: str, axis: int, begun: float, size: float = 0.0,
        *, within: bool = False,
    ) -> None:  # fmt: skip
        self.done += 1
        if self.record:
            if self.place.device.type == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            self.events.append(
                RecordedEvent(self.steps, name, kind, within, axis, begun, now, size)
            )
