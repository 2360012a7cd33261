"""A price for each byte that a sharding holds: ways of operators and tensors that cost it, too.

At a price of λ ≥ 0 a byte no sharding that fits into M bytes costs less than

    min over all shardings ( cost + λ · bytes held ) − λ · M

and not less than that with fewer bytes than are held. What is counted here, each byte once:

- a parameter with its gradient and the optimizer's state, as it lies;
- what backward operators read of a tensor otherwise than it is made: as they read it;
- what they read as it is made, if it is no view: as it is made;
- of all views in the memory of one tensor that are read as they are made, if that tensor itself is
  not: of the first one alone, what its maker reads, or the least that this can stand for if that
  is a view, too. What it looks at is not counted besides.

A parameter that a single view reads, and nothing else, is taken together with it: whether what is
read of the view is the parameter itself depends on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....instances import Sharding, TensorProgram
from ....instances.common.arrays import Floats, Ints
from ..sharding_steps import Lying, local_bytes
from .sharding_ways import Tensors, Use, Ways


def with_memory(
    program: TensorProgram,
    problem: Sharding,
    ways: Sequence[Ways],
    tensors: Sequence[Tensors],
    price: float,
) -> tuple[list[Ways], list[Tensors]]:
    """Return ways and tensors that cost what they hold, too, at a price for each byte.

    What is held of tensors comes after the others, as tensors of their own with negative numbers.
    """
    priced = _Priced(program, problem, list(ways), list(tensors), price)
    priced.parameters()
    kept = priced.kept()
    return priced.ways, [*priced.tensors, *kept]


class _Priced:
    """Ways and tensors, to which the price of memory is added."""

    def __init__(
        self,
        program: TensorProgram,
        problem: Sharding,
        ways: list[Ways],
        tensors: list[Tensors],
        price: float,
    ) -> None:
        self.program, self.problem, self.price = program, problem, price
        self.ways, self.tensors = ways, tensors
        self.late = {
            tensor.number: late
            for tensor in tensors
            if not program.operators[tensor.maker].backward
            and (late := [u for u in tensor.uses if program.operators[u.reader].backward])
        }

    def cost(self, t: int, how: Lying) -> float:
        """Return the price of a tensor that lies so."""
        return self.price * local_bytes(self.program.tensors[t], how, self.problem.mesh.shape)

    def made(self, t: int) -> list[Lying]:
        """Return how a tensor lies by each way of its maker."""
        v = self.program.maker[t]
        slot = self.program.operators[v].outputs.index(t)
        return [row[slot] for row in self.ways[v].made]

    def source(self, t: int) -> int | None:
        """Return what a tensor looks at; None if it is no view."""
        operator = self.program.operators[self.program.maker[t]]
        return operator.inputs[0] if operator.view else None

    def chain(self, t: int) -> list[int]:
        """Return a tensor, what it looks at, what that looks at, and so on."""
        found = [t]
        while (source := self.source(found[-1])) is not None:
            found.append(source)
        return found

    def parameters(self) -> None:
        """Add what parameters hold to their ways."""
        for v, operator in enumerate(self.program.operators):
            if operator.role == "parameter":
                copies = 1.0 if operator.gradient is None else 2.0 + self.problem.state
                held = [
                    copies * self.cost(operator.outputs[0], row[0]) for row in self.ways[v].made
                ]
                self.ways[v] = replace(self.ways[v], cost=self.ways[v].cost + np.array(held))

    def kept(self) -> list[Tensors]:
        """Return what backward operators keep, as tensors of their own."""
        chains = {t: self.chain(t) for t in self.late}
        first: dict[int, int] = {}  # of each tensor with views: whose bytes as made are counted
        for t in sorted(self.late, key=lambda t: (len(chains[t]) > 1, t)):
            first.setdefault(chains[t][-1], t)
        behind = {s for t in first.values() for s in chains[t][1:]}
        found = []
        for t in sorted(self.late.keys() - behind):
            alone = self._read_alone(t) if first[chains[t][-1]] == t else None
            if alone is not None:
                there = self._joined(t, alone)
            elif first[chains[t][-1]] == t:
                there = self._there(t)
            else:
                there = np.zeros(len(self.made(t)))
            found.append(self._tensor(t, there))
        return found

    def _there(self, t: int) -> Floats:
        """Return what is held at least if a tensor is kept as it is made, by ways of its maker."""
        source, made = self.source(t), self.made(t)
        v = self.program.maker[t]
        if source is None:
            counted = self.program.operators[v].role != "parameter"
            return np.array([counted * self.cost(t, how) for how in made])
        least: dict[Lying, float] = {}
        for how, held in zip(self.made(source), self._there(source), strict=True):
            least[how] = min(least.get(how, math.inf), float(held))
        return np.array(
            [
                min(self.cost(source, row[0]), least.get(row[0], math.inf))
                for row in self.ways[v].read
            ]
        )

    def _read_alone(self, t: int) -> Tensors | None:
        """Return the parameter that t looks at, if nothing else reads it."""
        source = self.source(t)
        v = self.program.maker[t]
        operator = self.program.operators[v]
        if source is None or len(operator.inputs) > 1 or len(operator.outputs) > 1:
            return None
        (found,) = (tensor for tensor in self.tensors if tensor.number == source)
        is_parameter = self.program.operators[found.maker].role == "parameter"
        return found if is_parameter and len(found.uses) == 1 else None

    def _joined(self, t: int, parameter: Tensors) -> Floats:
        """Let the view's operator choose how its parameter lies, too; return what is held there."""
        p, v = parameter.maker, self.program.maker[t]
        before, after = self.ways[p], self.ways[v]
        one, other = (side.ravel() for side in np.indices((len(before.cost), len(after.cost))))
        (use,) = parameter.uses
        moved = parameter.cost[parameter.by_maker[one], use.by_reader[other]]
        made = self.made(parameter.number)
        there = [
            0.0 if after.read[b][0] == made[a] else self.cost(parameter.number, after.read[b][0])
            for a, b in zip(one.tolist(), other.tolist(), strict=True)
        ]
        self.ways[v] = Ways(
            before.cost[one] + after.cost[other] + moved,
            [after.read[b] for b in other.tolist()],
            [after.made[b] for b in other.tolist()],
        )
        self.ways[p] = Ways(np.zeros(1), [[]], [[made[0]]])
        self.tensors = [
            self._renumbered(tensor, (p, one), (v, other))
            for tensor in self.tensors
            if tensor is not parameter
        ]
        return np.array(there)

    def _renumbered(
        self, tensor: Tensors, before: tuple[int, Ints], after: tuple[int, Ints]
    ) -> Tensors:
        """Return a tensor by the ways of the joined operator."""
        (p, one), (v, other) = before, after
        uses = [Use(v, -1, use.by_reader[one]) if use.reader == p else use for use in tensor.uses]
        if tensor.maker != v:
            return replace(tensor, uses=uses)
        return replace(tensor, uses=uses, by_maker=tensor.by_maker[other])

    def _tensor(self, t: int, there: Floats) -> Tensors:
        """Return what is held of a tensor, given that where it is kept as it is made."""
        (known,) = (tensor for tensor in self.tensors if tensor.number == t)
        made = self.made(t)
        classes = {pair: k for k, pair in enumerate(dict.fromkeys(zip(made, there, strict=True)))}
        needed: list[Lying] = [tuple(text.split("x")) for text in known.needed]
        cost = np.array(
            [
                [held if how == wanted else self.cost(t, wanted) for wanted in needed]
                for how, held in classes
            ]
        )
        return Tensors(
            number=-1 - t,
            maker=known.maker,
            made=[f"{'x'.join(how)} {k}" for (how, _), k in classes.items()],
            needed=known.needed,
            by_maker=np.array([classes[pair] for pair in zip(made, there, strict=True)], np.int64),
            cost=cost,
            uses=[Use(use.reader, use.slot, use.by_reader) for use in self.late[t]],
        )
