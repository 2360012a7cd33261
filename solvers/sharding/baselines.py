"""Baselines for sharding: the rules of frameworks, applied to one operator after the other.

Along each axis of the mesh a rule is followed:

    replicate      every device computes everything
    data           samples are split, parameters are copies; gradients are all-reduced
    sharded        as data, but parameters are split, and gathered where they are read
    tensor         samples are copies; a product of a copy takes its weight split by columns, one of
                   a split input takes it split by rows, and its partial sums are all-reduced
                   (Megatron)

An operator takes the cheapest of its signatures that read each tensor in the property in which it
was made, or as copies. A copy or a constant may be read split where another input is split, at no
cost; but an output is split only where an input is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...formulations.sharding.costs import OperatorChoices, ShardingCosts, sharding_costs
from ...formulations.task import Task
from ...instances import Role, Sharding, Solution, TensorSharding
from ...instances.common.arrays import Bools, Floats, Ints
from ...instances.model.tensor_program import COPIED, PARTIAL
from ..core.search import Search
from .elimination import cheapest

#: Rules by baseline: that of all axes but the last, and that of the last.
AXES = {
    "replicate": ("replicate", "replicate"),
    "data-parallel": ("data", "data"),
    "fully-sharded": ("sharded", "sharded"),
    "megatron": ("data", "tensor"),
}


def baseline(name: str, task: Task[Sharding], search: Search[Solution]) -> None:
    """Offer the sharding of a rule."""
    costs = sharding_costs(task)
    if name == "communication-only":
        with search.phase("elimination"):
            free = tuple(replace(c, cost=np.zeros(len(c.cost))) for c in costs.choices)
            chosen = cheapest(replace(costs, choices=free), search)
    else:
        with search.phase("rule"):
            chosen = by_rule(costs, name)
    if chosen is not None:
        search.offer(TensorSharding(costs.signature(chosen)))


def first_plans(costs: ShardingCosts, search: Search[Solution]) -> None:
    """Offer the shardings of all rules."""
    for name in AXES:
        search.offer(TensorSharding(costs.signature(by_rule(costs, name))))


def by_rule(costs: ShardingCosts, name: str) -> Ints:
    """Return the choice of each operator by the rule of a baseline."""
    others, last = AXES[name]
    axes = len(costs.problem.mesh.shape)
    return _RulePass(costs, (*(others,) * (axes - 1), last)).chosen()


class _RulePass:
    """A pass over the operators in order that applies a rule along each axis.

    Parameters, views of them and constants get the property that the first operator which computes
    with them needs.
    """

    def __init__(self, costs: ShardingCosts, rules: Sequence[str]) -> None:
        self.costs, self.rules = costs, rules
        self.choice: dict[int, int] = {}
        self.made: dict[int, int] = {}  # number of a tensor's property, once it is chosen
        self.states = [np.array(c.states, np.int64).reshape(len(c.states), -1)
                       for c in costs.conversions]  # fmt: skip
        program = costs.program
        self.open: set[int] = set()  # tensors that get the property that their first reader needs
        self.weights: set[int] = set()
        self.constants: set[int] = set()
        for operator in program.operators:
            source = operator.role is Role.PARAMETER
            if operator.role is Role.OPERATOR and not operator.inputs:
                self.constants |= set(operator.outputs)
            elif source or (operator.view and self.weights.issuperset(operator.inputs)):
                self.weights |= set(operator.outputs)

    def chosen(self) -> Ints:
        """Return the choice of each operator."""
        program = self.costs.program
        for v, operator in enumerate(program.operators):
            if (self.weights | self.constants).issuperset(operator.outputs):
                self.open |= set(operator.outputs)
                continue
            self._take(v, self._best(v))
        for v, operator in enumerate(program.operators):
            if v not in self.choice:
                for t in operator.outputs:
                    if t in self.open:
                        self._settle(t, self._copied(t))
        return np.array([self.choice[v] for v in range(len(program.operators))], np.int64)

    def _best(self, v: int) -> int:
        choices, operator = self.costs.choices[v], self.costs.program.operators[v]
        cost = choices.cost.copy()
        led = self._led(v)
        allowed = self._from_parts(v)
        for slot, (t, needs) in enumerate(zip(operator.inputs, choices.needs, strict=True)):
            allowed &= self._allowed(v, slot, led)
            if t in self.made:
                cost = cost + self.costs.conversions[t].cost[self.made[t], needs]
        if "replicate" in self.rules and operator.role is Role.OPERATOR:
            allowed &= self._all_copied(v, choices)
        if not allowed.any():
            allowed[:] = True
        return int(np.where(allowed, cost, np.inf).argmin())

    def _led(self, v: int) -> Bools:
        """Return where a choice reads an input split as it was made; shape (choices, axes)."""
        choices, operator = self.costs.choices[v], self.costs.program.operators[v]
        found = np.zeros(choices.signature.shape, np.bool_)
        for t, needs in zip(operator.inputs, choices.needs, strict=True):
            if t in self.made and t not in self.weights:
                lies, wanted = self.states[t][self.made[t]], self.states[t][needs]
                found |= (wanted == lies) & (lies >= 0)
        return found

    def _from_parts(self, v: int) -> Bools:
        """Return the choices whose outputs are split only along axes along which an input is.

        A split parameter counts in products and views, but not as a table that is looked up.
        """
        choices, operator = self.costs.choices[v], self.costs.program.operators[v]
        parts, some, made, summed = np.zeros((4, *choices.signature.shape), np.bool_)
        for t, needs in zip(operator.inputs, choices.needs, strict=True):
            wanted = self.states[t][needs]
            weight = t in self.weights
            if not weight or operator.view or operator.compute > 0:
                parts |= wanted >= 0
            some |= (wanted >= 0) | ((wanted == PARTIAL) & (not weight))
        for t, makes in zip(operator.outputs, choices.makes, strict=True):
            made |= self.states[t][makes] >= 0
            summed |= self.states[t][makes] == PARTIAL
        fine = (parts | ~made) & (some | ~summed)
        return np.asarray(fine.all(axis=1) | (not operator.inputs), np.bool_)

    def _adds_up(self, v: int, t: int) -> Bools:
        """Return where rule `tensor` reduces t before v reads it; shape (choices, axes).

        It does before products, and where the backward pass computes from a partial gradient and
        from inputs that are not: each result would be partial, and have to be reduced in turn.
        """
        choices, operator = self.costs.choices[v], self.costs.program.operators[v]
        found = np.full(choices.signature.shape, operator.compute > 0)
        if self.costs.program.operators[self.costs.program.maker[t]].backward:
            for other, needs in zip(operator.inputs, choices.needs, strict=True):
                found |= self.states[other][needs] != PARTIAL
        return found

    def _allowed(self, v: int, slot: int, led: Bools) -> Bools:
        """Return which choices the rules allow for one input; `led` as `_led` returns it."""
        t = self.costs.program.operators[v].inputs[slot]
        needs = self.costs.choices[v].needs[slot]
        wanted = self.states[t][needs]
        fine = np.ones(len(needs), np.bool_)
        source = self.costs.program.operators[self.costs.program.maker[t]]
        for d, rule in enumerate(self.rules):
            column = wanted[:, d]
            copied = column == COPIED
            if t in self.weights:
                fine &= copied if rule in ("data", "sharded") else np.True_
            elif rule == "tensor" and source.role is Role.INPUT:
                fine &= copied
            elif t in self.constants:
                fine &= copied | led[:, d]
            elif t in self.made:
                lies = self.states[t][self.made[t], d]
                same = column == lies
                if rule == "tensor" and lies == PARTIAL:
                    same &= ~self._adds_up(v, t)[:, d]
                fine &= copied | same | (led[:, d] & (lies == COPIED))
        return fine

    def _all_copied(self, v: int, choices: OperatorChoices) -> Bools:
        operator = self.costs.program.operators[v]
        fine = np.ones(len(choices.cost), np.bool_)
        for t, column in zip(
            (*operator.inputs, *operator.outputs), (*choices.needs, *choices.makes), strict=True
        ):
            fine &= (self.states[t][column] == COPIED).all(axis=1)
        return fine

    def _take(self, v: int, k: int) -> None:
        choices, operator = self.costs.choices[v], self.costs.program.operators[v]
        self.choice[v] = k
        for t, needs in zip(operator.inputs, choices.needs, strict=True):
            if t in self.open:
                self._settle(t, int(needs[k]))
            else:
                self._add_up(t, int(needs[k]))
        for t, makes in zip(operator.outputs, choices.makes, strict=True):
            self.made[t] = int(makes[k])

    def _add_up(self, t: int, wanted: int) -> None:
        """Let partial sums that are read as copies be copies from then on, through views.

        So they are reduced once, however many views of them are read.
        """
        lies, after = self.states[t][self.made[t]], self.states[t][wanted]
        both = np.where((lies == PARTIAL) & (after == COPIED), COPIED, lies)
        if (both == lies).all():
            return
        v, number = self.costs.program.maker[t], self.costs.conversions[t].number
        self.made[t] = number[tuple(both.tolist())]
        operator, choices = self.costs.program.operators[v], self.costs.choices[v]
        (same,) = np.nonzero(choices.makes[operator.outputs.index(t)] == self.made[t])
        if operator.view and len(same):
            source = operator.inputs[0]
            needs = choices.needs[0][same]
            dear = self.costs.conversions[source].cost[self.made[source], needs]
            self._take(v, int(same[dear.argmin()]))

    def _settle(self, t: int, wanted: int) -> None:
        """Set the property of a parameter, or of its view, to the one wanted, where possible."""
        v = self.costs.program.maker[t]
        operator, choices = self.costs.program.operators[v], self.costs.choices[v]
        self.open.discard(t)
        makes = choices.makes[operator.outputs.index(t)]
        distance: Floats = self.costs.conversions[t].cost[makes, wanted].astype(np.float64)
        partial = (self.states[t][makes] == PARTIAL).any(axis=1)
        if operator.role is Role.PARAMETER and "sharded" in self.rules:
            distance = self._whole_parts(t, makes)
        k = int(np.where(partial, np.inf, distance).argmin())
        if np.isinf(np.where(partial, np.inf, distance)[k]):
            k = int(distance.argmin())
        self._take(v, k)

    def _whole_parts(self, t: int, makes: Ints) -> Floats:
        """Return the share of a parameter on a device, by choice; ties go to early dimensions."""
        states = self.states[t][makes]
        left = np.where(states >= 0, 1.0 / np.array(self.costs.problem.mesh.shape), 1.0)
        order = np.where(states >= 0, states, 0).sum(axis=1)
        return np.asarray(left.prod(axis=1) + 1e-6 * order, np.float64)

    def _copied(self, t: int) -> int:
        number = self.costs.conversions[t].number
        return number[(COPIED,) * len(self.costs.problem.mesh.shape)]
