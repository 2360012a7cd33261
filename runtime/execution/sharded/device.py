"""One device of a sharding at work: its parts of parameters and inputs, operator by operator."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from ....instances import InputError, Role
from ....instances.model.sharding.properties import COPIED, Property
from .collectives import Place, combine, part_of, step, total
from .local import Call, compute
from .prepare import Held, Operation, PreparedSharding, property_of
from .recording import Event

#: Operators that change buffers which they read.
CHANGING = frozenset(("native_batch_norm",))


class ShardedDevice:
    """One device of a sharding.

    Parameters
    ----------
    prepared
        What is to be done.
    place
        Of this device on the mesh.
    record
        Whether to note what is done.

    Attributes
    ----------
    parameters
        This device's parts, by the model's names.
    resting
        Its parts of parameters and buffers.
    kept
        Which of these has a parameter or buffer as it is after a step.
    events
        What it did, if `record`.
    done
        How much it did.
    """

    def __init__(self, prepared: PreparedSharding, place: Place, *, record: bool = False) -> None:
        self.prepared, self.place, self.record = prepared, place, record
        model = prepared.model
        whole = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.parameters: dict[str, nn.Parameter] = {}
        self.kept: dict[str, Held] = {}
        self.resting: dict[Held, Tensor] = {}
        for operator, held in prepared.sources(Role.PARAMETER):
            value = whole[str(operator.name)]
            part = part_of(value.detach(), held[1], place).clone()
            if operator.kind == "parameter":
                trained = value.requires_grad
                self.parameters[str(operator.name)] = nn.Parameter(part, requires_grad=trained)
                part = self.parameters[str(operator.name)].detach()
            self.resting[held] = part
            self.kept[str(operator.name)] = held
        for held in self._changed():
            name = prepared.program.tensors[held[0]].name
            self.resting[held] = part_of(whole[name].detach(), held[1], place).clone()
            self.kept[name] = held
        self.events: list[Event] = []
        self.done = 0
        self.steps = 0
        self._held: dict[Held, Tensor] = {}
        self._losses: dict[Held, Tensor] = {}

    def step(self, batch: Sequence[Tensor]) -> None:
        """Compute loss and gradients of a batch; the parts of the gradients lie in `.grad`."""
        prepared = self.prepared
        self._held = dict(self.resting)
        given = {node.name: value for node, value in zip(prepared.graph.inputs, batch, strict=True)}
        placeholder = {label: name for name, label in prepared.graph.names.items()}
        for operator, held in prepared.sources(Role.INPUT):
            value = given[placeholder[str(operator.name)]]
            self._held[held] = part_of(value.detach(), held[1], self.place)
        with torch.no_grad():
            for operation in prepared.operations:
                self._operate(operation)
            self._take_gradients()
        self._losses = {held: self._held[held] for held in prepared.losses}
        self._held = {}
        self.steps += 1

    def loss(self) -> float:
        """Return the loss of the last step, or the sum of all outputs of a model without one.

        All devices call this; what they exchange for it is no part of the plan.
        """
        return sum(total(part, held[1], self.place) for held, part in self._losses.items())

    def whole(self, name: str) -> Tensor:
        """Return a parameter or buffer put together; all devices call this."""
        held = self.kept[name]
        return self.together(self.resting[held], held[1])

    def together(self, part: Tensor, how: Property) -> Tensor:
        """Return a tensor of which each device has a part; all devices call this."""
        for axis in reversed(range(len(how))):
            if how[axis] >= 0:
                part, _ = step(part, how[axis], COPIED, axis, self.place)
        return part

    def _operate(self, operation: Operation) -> None:
        parts = iter([self._part(held) for held in operation.reads])

        def given(node: fx.Node) -> Any:
            return next(parts) if isinstance(node.meta.get("val"), Tensor) else node

        args, kwargs = fx.map_arg((operation.node.args, operation.node.kwargs), given)
        program = self.prepared.program
        call = Call(
            operation.kind, operation.node.target, tuple(args), kwargs,
            [how for _, how in operation.reads], [how for _, how in operation.makes],
            [program.tensors[t].shape for t, _ in operation.makes],
            self.place.mesh, self.place.at,
        )  # fmt: skip
        made = self._computed(operation, call)
        several = made if isinstance(made, tuple | list) else [made]
        present = [one for one in several if isinstance(one, Tensor)]
        self._held |= zip(operation.makes, present, strict=True)
        for held in operation.gradients:
            self._part(held)
        for t in operation.done:
            for held in [held for held in self._held if held[0] == t]:
                del self._held[held]

    def _computed(self, operation: Operation, call: Call) -> Any:
        """Compute a call; what it asks the other devices for is timed apart."""
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

    def _part(self, held: Held) -> Tensor:
        """Return a tensor as it is needed: converted when it is first needed so."""
        if held not in self._held:
            tensor, wanted = held
            how = self.prepared.lying(tensor)
            part = self._held[tensor, how]
            for one in self.prepared.steps[held]:
                after = property_of(one.after)
                begun = time.perf_counter()
                part, sent = step(part, how[one.axis], after[one.axis], one.axis, self.place)
                if sent.collective:
                    name = self.prepared.program.tensors[tensor].name
                    self._note(name, sent.collective, one.axis, begun, sent.bytes)
                how = after
            assert how == wanted
            self._held[held] = part
        return self._held[held]

    def _changed(self) -> Iterator[Held]:
        """Yield buffers that an operator changes in place, as it reads them.

        Raises
        ------
        InputError
            If one is put together for that, and would be lost.
        """
        for operation in self.prepared.operations:
            for held in operation.reads if operation.kind in CHANGING else ():
                operator = self.prepared.program.operators[self.prepared.program.maker[held[0]]]
                if operator.kind != "buffer" or held in self.resting:
                    continue
                if any(one.bytes for one in self.prepared.steps[held]):
                    raise InputError(
                        f"plan: {operation.operator.name} changes {operator.name}, which lies "
                        f"otherwise than it reads it; plan with --fix {operator.name}="
                        f"{'x'.join('B' for _ in held[1])}"
                    )
                yield held

    def _take_gradients(self) -> None:
        for operator, (_, how) in self.prepared.sources(Role.PARAMETER):
            if operator.gradient is not None:
                self.parameters[str(operator.name)].grad = self._part((operator.gradient, how))

    def _note(
        self, name: str, kind: str, axis: int, begun: float, size: float = 0.0,
        *, within: bool = False,
    ) -> None:  # fmt: skip
        self.done += 1
        if self.record:
            now = time.perf_counter()
            self.events.append(Event(self.steps, name, kind, within, axis, begun, now, size))
