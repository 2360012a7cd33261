"""Executor of one device of a sharding: its shards of parameters and inputs, by operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....instances import Role
from ....instances.model.sharding.program import COPIED
from .collectives import Place, part_of, total
from .operators import Operators
from .parts import parts_of
from .prepare import PreparedSharding
from .program import Held


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
    operators
        What it does, and did.
    parts
        Of parameters and buffers.
    """

    def __init__(self, prepared: PreparedSharding, place: Place, *, record: bool = False) -> None:
        self.prepared, self.place = prepared, place
        sharded, model = prepared.sharded, prepared.model
        self.operators = Operators(sharded, place, record=record)
        constants = sharded.graph.constants
        lying = {name: how for name, how in sharded.resting().items() if name not in constants}
        copied = (COPIED,) * len(sharded.mesh)
        self.parts = parts_of(model, lying | dict.fromkeys(sharded.graph.counted, copied), place)
        whole = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._resting: dict[Held, Tensor] = {}
        for operator, held in sharded.sources(Role.PARAMETER):
            name = str(operator.name)
            if name in constants:
                self._resting[held] = part_of(constants[name], held[1], place)
                continue
            self._resting[held[0], lying[name]] = self.parts.tensors[name].detach()
            if held[1] != lying[name]:  # for those who read it otherwise than what changes it
                self._resting[held] = part_of(whole[name].detach(), held[1], place).clone()
        self._losses: dict[Held, Tensor] = {}

    def step(self, batch: Sequence[Tensor]) -> None:
        """Compute loss and gradients of a batch; the parts of the gradients lie in `.grad`."""
        sharded, operators = self.prepared.sharded, self.operators
        operators.held = dict(self._resting)
        given = {node.name: value for node, value in zip(sharded.graph.inputs, batch, strict=True)}
        placeholder = {label: name for name, label in sharded.graph.names.items()}
        for operator, held in sharded.sources(Role.INPUT):
            value = given[placeholder[str(operator.name)]]
            operators.held[held] = part_of(value.detach(), held[1], self.place)
        with torch.no_grad():
            for operation in sharded.operations:
                operators.operate(operation)
            for operator, (_, how) in sharded.sources(Role.PARAMETER):
                if operator.gradient is not None:
                    gradient = operators.part((operator.gradient, how))
                    self.parts.parameters[str(operator.name)].grad = gradient
            for name, more in sharded.graph.counted.items():
                self.parts.buffers[name].add_(more)
        self._losses = {held: operators.held[held] for held in self.prepared.losses}
        operators.held = {}
        operators.steps += 1

    def loss(self) -> float:
        """Return the loss of the last step, or the sum of all outputs of a model without one.

        All devices call this; what they exchange for it is no part of the plan.
        """
        return sum(total(part, held[1], self.place) for held, part in self._losses.items())
