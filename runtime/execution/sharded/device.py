"""One device of a sharding at work: its parts of parameters and inputs, operator by operator."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from ....instances import Role
from ....instances.model.sharding.properties import PARTIAL
from .collectives import Place, combine, part_of, step, total
from .local import Call, compute
from .prepare import Held, Operation, PreparedSharding, property_of

class Event(NamedTuple):
    """What this device did: of the step `step`, from `start_s` to `end_s`.

    Parameters
    ----------
    name
        Of the operator, or of the tensor that is converted.
    kind
        ``forward``, ``backward``, or a collective.
    within
        Whether an operator asks for a collective itself, for statistics.
    axis
        Of the mesh; −1 for computing.
    bytes
        That this device sends.
    """

    step: int
    name: str
    kind: str
    within: bool
    axis: int
    start_s: float
    end_s: float
    bytes: float


class ShardedDevice:
    """One device of a sharding.

    Parameters
    ----------
    prepared
        What is to be done.
    place
        Of this device on the mesh.

    Attributes
    ----------
    parameters
        This device's parts, by the model's names.
    events
        What it did.
    """

    def __init__(self, prepared: PreparedSharding, place: Place) -> None:
        self.prepared, self.place = prepared, place
        model = prepared.model
        whole = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.parameters: dict[str, nn.Parameter] = {}
        self.resting: dict[Held, Tensor] = {}
        for operator, held in prepared.sources(Role.PARAMETER):
            value = whole[str(operator.name)]
            part = part_of(value.detach(), held[1], place).clone()
            if operator.kind == "parameter":
                trained = value.requires_grad
                self.parameters[str(operator.name)] = nn.Parameter(part, requires_grad=trained)
                part = self.parameters[str(operator.name)].detach()
            self.resting[held] = part
        for held in self._read_for_free():  # so that what an operator changes in place stays
            name = prepared.program.tensors[held[0]].name
            self.resting[held] = part_of(whole[name].detach(), held[1], place).clone()
        self.events: list[Event] = []
        self.steps = 0
        self._held: dict[Held, Tensor] = {}

    def step(self, batch: Sequence[Tensor]) -> float:
        """Compute loss and gradients of a batch; the parts of the gradients lie in `.grad`.

        Returns
        -------
        float
            The loss, or the sum of all outputs of a model that has none.
        """
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
            loss = self._loss()
        self._held = {}
        self.steps += 1
        return loss

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
                asked = running.send(result)  # type: ignore[arg-type]
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

    def _read_for_free(self) -> Iterator[Held]:
        """Yield buffers as operators read them, if they need not be sent to lie so."""
        buffers = {
            held[0]
            for operator, held in self.prepared.sources(Role.PARAMETER)
            if operator.kind == "buffer"
        }
        for operation in self.prepared.operations:
            for held in operation.reads:
                if held[0] in buffers and held not in self.resting and PARTIAL not in held[1]:
                    if not any(one.bytes for one in self.prepared.steps[held]):
                        yield held

    def _take_gradients(self) -> None:
        for operator, (_, how) in self.prepared.sources(Role.PARAMETER):
            if operator.gradient is not None:
                self.parameters[str(operator.name)].grad = self._part((operator.gradient, how))

    def _loss(self) -> float:
        return sum(total(self._held[held], held[1], self.place) for held in self.prepared.losses)

    def _note(
        self, name: str, kind: str, axis: int, begun: float, size: float = 0.0,
        *, within: bool = False,
    ) -> None:  # fmt: skip
        now = time.perf_counter()
        self.events.append(Event(self.steps, name, kind, within, axis, begun, now, size))
