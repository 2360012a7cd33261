"""Pipeline stages on several devices: each layer by its sharding, whole tensors between layers.

A layer is one node of autograd's graph, with whole inputs and outputs, so that stages, schedules
and losses are as on one device. A weight that several layers have, here or in other stages, is
whole on every device, as layers may split it in different ways; its gradient is the sum of those of
the devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....instances import (
    Cluster,
    DeviceKind,
    DeviceMesh,
    InputError,
    Link,
    Role,
    Sharding,
    TensorSharding,
    program_workload,
)
from ....instances.generate.roofline import machine
from ....instances.model.tensor_program import COPIED, PARTIAL, Property
from ....instances.pytorch.tensors import LayerProgram, layer_program
from ...verify.sharding import check
from ..split import PieceModule
from ..stage import named_tensors
from .collectives import MeshPosition, part_of, step
from .operators import Operators
from .parts import LocalShards, parts_of, resting_parts
from .program import PlacedTensor, ShardedProgram, sharded_program

_WHOLE: Property = (COPIED,)


class ShardedStage(nn.Module):  # type: ignore[misc]  # torch is not typed for mypy here
    """Module of a piece on one device of a tensor-parallel group.

    Inputs and outputs are those of the piece. `parts` has parameters and buffers by the model's
    names; `copied` are the parameters that each device has whole, except the `tied` ones, which
    several layers have. Raises InputError if a layer's sharding does not fit its operators.
    """

    def __init__(
        self,
        piece: PieceModule,
        layers: Sequence[tuple[PieceModule, str]],
        tied: frozenset[str],
        place: MeshPosition,
    ) -> None:
        super().__init__()
        self._takes, self._gives, self._tied = piece.inputs, piece.outputs, tied
        self._layers = [_Layer(layer, sharding, place) for layer, sharding in layers]
        lying: dict[str, Property] = {}
        for layer in self._layers:
            for name, how in layer.resting.items():
                alike = name not in tied and lying.get(name, how) == how
                lying[name] = how if alike else _WHOLE
        unread = dict(named_tensors(piece.module))
        self.parts: LocalShards = parts_of(
            piece.module, dict.fromkeys(unread, _WHOLE) | lying, place
        )
        copied = {name for name in self.parts.parameters if self.parts.lying[name] == _WHOLE}
        self.copied = copied - tied
        self._attribute = {name: f"part{k}" for k, name in enumerate(self.parts.lying)}
        for name, parameter in self.parts.parameters.items():
            self.register_parameter(self._attribute[name], parameter)
        for name, buffer in self.parts.buffers.items():
            self.register_buffer(self._attribute[name], buffer)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs of the piece."""
        values = dict(zip(self._takes, inputs, strict=True))
        for layer in self._layers:
            values = layer.run(values, {name: self._part(name, layer) for name in layer.resting})
        return tuple(values[name] for name in self._gives)

    def _part(self, name: str, layer: _Layer) -> Tensor:
        """Return a parameter or buffer as a layer reads it."""
        part: Tensor = getattr(self, self._attribute[name])  # a version's, while one is in use
        how = layer.resting[name]
        if name in self._tied and name in self.parts.parameters:
            made: Tensor = _OfWhole.apply(part, how, self.parts.place)
            return made
        return part if how == self.parts.lying[name] else part_of(part, how, self.parts.place)


class _Layer:
    """Executor of a layer on this device.

    `resting` has the properties of its parameters and buffers between steps, by the model's names,
    and `graded` whether each output has a gradient.
    """

    def __init__(self, piece: PieceModule, sharding: str, place: MeshPosition) -> None:
        made = [k for k, name in enumerate(piece.outputs) if name not in piece.inputs]
        values = [piece.values[name] for name in piece.inputs]
        target = machine()
        self._piece, self._made = piece, [piece.outputs[k] for k in made]
        self.graded = [piece.values[name].grad for name in self._made]
        self._ends = layer_program(piece.module, values, made, target)
        sharded = _sharded(self._ends, sharding, place.mesh)
        self._operators = Operators(sharded, place)
        self.resting, self._unchanged = resting_parts(sharded, piece.module, place)
        self._sources = {str(o.name): (o, t) for o, (t, _) in sharded.sources(Role.PARAMETER)}
        late = [one for one in sharded.operations if one.operator.backward]
        gradients = (operator.gradient for operator, _ in self._sources.values())
        self._later = {
            *(t for one in late for t, _ in one.reads),
            *self._ends.gradients,
            *gradients,
        }

    def run(self, values: Mapping[str, Tensor], parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs of the layer from its inputs, parameters and buffers."""
        weights = {name: x for name, x in parts.items() if x.requires_grad}
        buffers = {name: x for name, x in parts.items() if not x.requires_grad}
        entering = [values[name] for name in self._piece.inputs]
        made = _Step.apply(self, buffers, tuple(weights), *entering, *weights.values())
        known = {**values, **dict(zip(self._made, made, strict=True))}
        return {name: known[name] for name in self._piece.outputs}

    def forward(
        self, entering: Sequence[Tensor], parts: Mapping[str, Tensor]
    ) -> tuple[list[Tensor], dict[PlacedTensor, Tensor]]:
        """Return the outputs of the layer, and the tensors saved for its backward pass."""
        resting = self._resting(parts)
        held = dict(resting)
        for t, value in zip(self._ends.entering, entering, strict=True):
            if t is not None:
                held[t, _WHOLE] = value.detach()
        sharded = self._operators.sharded
        for name, more in sharded.graph.counted.items():
            parts[name].add_(more)
        self._operators.held = held
        for operation in sharded.operations:
            if not operation.operator.backward:
                self._operators.operate(operation)
        made = [self._operators.part((t, _WHOLE)) for t in self._ends.outputs]
        kept = {
            key: x
            for key, x in self._operators.held.items()
            if key[0] in self._later and key not in resting
        }
        self._operators.held = {}
        return made, kept

    def backward(
        self,
        kept: Mapping[PlacedTensor, Tensor],
        parts: Mapping[str, Tensor],
        arriving: Sequence[Tensor],
    ) -> tuple[list[Tensor | None], dict[str, Tensor]]:
        """Return gradients of the inputs, and of the trained parameters."""
        self._operators.held = {**kept, **self._resting(parts)}
        for t, gradient in zip(self._ends.arriving, arriving, strict=True):
            if t is not None:
                self._operators.held[t, _WHOLE] = gradient
        for operation in self._operators.sharded.operations:
            if operation.operator.backward:
                self._operators.operate(operation)
        part = self._operators.part
        entering = [None if t is None else part((t, _WHOLE)) for t in self._ends.gradients]
        learned = {
            name: part((operator.gradient, self.resting[name]))
            for name, (operator, _) in self._sources.items()
            if operator.gradient is not None
        }
        self._operators.held = {}
        return entering, learned

    def _resting(self, parts: Mapping[str, Tensor]) -> dict[PlacedTensor, Tensor]:
        held = dict(self._unchanged)
        for name, (_, t) in self._sources.items():
            if name in self.resting:
                held[t, self.resting[name]] = parts[name].detach()
        return held


class _Step(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed for mypy here
    """A layer's forward and backward pass as one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, layer: _Layer, buffers: dict[str, Tensor], names: tuple[str, ...], *given: Tensor
    ) -> tuple[Tensor, ...]:
        count = len(given) - len(names)
        weights = given[count:]
        made, kept = layer.forward(given[:count], buffers | dict(zip(names, weights, strict=True)))
        ctx.layer, ctx.buffers, ctx.names, ctx.keys = layer, buffers, names, tuple(kept)
        ctx.save_for_backward(*weights, *kept.values())
        ctx.mark_non_differentiable(
            *(x for x, graded in zip(made, layer.graded, strict=True) if not graded)
        )
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor | None, ...]:
        count, saved = len(ctx.names), ctx.saved_tensors
        weights = dict(zip(ctx.names, saved[:count], strict=True))
        kept = dict(zip(ctx.keys, saved[count:], strict=True))
        entering, learned = ctx.layer.backward(kept, ctx.buffers | weights, arriving)
        return None, None, None, *entering, *(learned.get(name) for name in ctx.names)


class _OfWhole(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed for mypy here
    """Part of a whole weight; gradients are padded, and sum to the weight's over the devices."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, how: Property, place: MeshPosition) -> Tensor:
        ctx.how, ctx.place = how, place
        return part_of(whole.detach(), how, place)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return step(gradient, ctx.how[0], PARTIAL, 0, ctx.place)[0], None, None


def _sharded(ends: LayerProgram, sharding: str, mesh: tuple[int, ...]) -> ShardedProgram:
    """Return the sharded program of a layer by its sharding's text."""
    program, texts = ends.program, sharding.split()
    ways = [[way.text for way in operator.signatures] for operator in program.operators]
    if len(texts) != len(ways) or any(t not in way for t, way in zip(texts, ways, strict=True)):
        raise InputError(
            "workload: the sharding of a layer is not one of the model's operators; profile it "
            "again with --train --layers --degrees"
        )
    chosen = [[way.index(t)] for t, way in zip(texts, ways, strict=True)]
    solution = TensorSharding(np.array(chosen))
    problem = Sharding(DeviceMesh(mesh, (Link(0.0, 1.0),)))
    workload = program_workload(program, "layer", time_unit="s")
    cluster = Cluster((DeviceKind("device", mesh[0]),))
    report = check(workload, cluster, problem, solution)
    kept = {*ends.outputs, *(t for t in ends.gradients if t is not None)}
    return sharded_program(program, ends.graph, problem, solution, report, kept)
