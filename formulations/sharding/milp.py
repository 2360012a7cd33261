"""Sharding as an integer program: the compact form, and the strong form by flows.

    symbol        meaning                                                         in the model
    x_{v,k}       1 if operator v has choice k                                    x[v,k]
    y_{T,a,b}     1 if tensor T is made as a and converted to b                   y[T,a,b]
    z_{r,a,b}     1 if use r reads as b what is made as a                         z[r,a,b]
    h_{T,b}       1 if T is kept as b for the backward pass                       kept[T,b]
    g_{T,b}       1 if that takes memory of its own                               held[T,b]
    C             the cost                                                        C
    cost_{v,k}    of computing v by choice k
    conv_{T,a,b}  of converting T from a to b
    made_{T,a}    Σ x_{v,k} over choices k of T's maker v that make T as a
    need_{r,b}    Σ x_{v,k} over choices k of the reader v of use r that need b
    own_{v,k}     bytes on a device of a parameter, its gradient and its state
    size_{T,b}    bytes on a device of T as b
    M             memory of a device

    in_{e,v}      1 if the end e of a step counts operator v
    in_{e,T,a,b}  1 if it counts the conversion of T from a to b
    L_s           how long phase s of a step takes                                length[s]

    minimise  C                                                                           (0)

    C = Σ_{v,k} cost_{v,k} x_{v,k} + Σ_{T,a,b} conv_{T,a,b} y_{T,a,b}                     (1)
    Σ_k x_{v,k} = 1                                                                       (2)

Where gradients overlap, or parts are placed on groups of devices, C is Σ over phases of the latest
end of each instead ((1') and (1'') of `costs.py`; with overlap there is one phase):

    C = Σ_s L_s                                                                          (1'')
    L_s ≥ Σ_{v,k} in_{e,v} cost_{v,k} x_{v,k} + Σ_{T,a,b} in_{e,T,a,b} conv_{T,a,b} y_{T,a,b} (1')

The compact form, over the properties a ≠ b with conv_{T,a,b} > 0:

    y_{T,a,b} ≥ made_{T,a} + need_{r,b} − 1                                               (3)

The strong form: one unit flows from how T is made to how each use reads it, and all uses share a
conversion:

    Σ_b z_{r,a,b} = made_{T,a}                                                            (4)
    Σ_a z_{r,a,b} = need_{r,b}                                                            (5)
    z_{r,a,b} ≤ y_{T,a,b}                                                                 (6)

Memory: what backward operators read of tensors that they do not make is kept as they read it. What
looks at another tensor is kept as that one is, unless it is converted; a parameter as it lies has
no memory of its own.

    Σ_{v,k} own_{v,k} x_{v,k} + Σ_{T,b} size_{T,b} g_{T,b} ≤ M                            (7)
    h_{T,b} ≥ need_{r,b}                                                                  (8)
    h_{S,a} ≥ h_{T,b} + Σ_{k makes T as b, needs S as a} x_{v,k} − 1                      (9)
    g_{T,b} ≥ h_{T,b} − made_{T,b}                                                       (10)
    g_{T,b} = h_{T,b}                                                                    (11)

(8) over uses r by backward operators, (9) where v looks at S, (10) for what looks at another tensor
and for parameters, (11) for all others. The bound of the strong form's relaxation is that of (4) of
`CostNetwork` with a flow for every use: what single uses of a tensor cost is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyomo.environ as pyo

from ...instances import Role, TensorSharding
from ...instances.common.arrays import Ints
from ..program import Start, Value
from .costs import ShardingCosts, Use
from .memory import own_bytes, state_bytes

#: Rows and columns that a program may have: more take HiGHS and Pyomo too long.
MOST_COLUMNS = 400_000


@dataclass(frozen=True, eq=False)
class ShardingModel:
    """The Pyomo program, with its data for reading solutions and writing starts."""

    costs: ShardingCosts  # the data that it states
    # the Pyomo model; its objective times `scale` is in the objective's unit
    model: pyo.ConcreteModel
    scale: float  # units of the objective per unit of the program

    def read(self, value: Value) -> TensorSharding:
        """Return the plan, given the value of each variable."""
        taken = [
            [value(self.model.x[v, k]) for k in range(len(choices.cost))]
            for v, choices in enumerate(self.costs.choices)
        ]
        chosen = np.array([int(np.argmax(values)) for values in taken], np.int64)
        return TensorSharding(self.costs.signature(chosen))

    def start(self, plan: TensorSharding) -> Start | None:
        """Return the values of x for a plan; None if it makes a choice that is not allowed."""
        chosen = self.costs.chosen(plan.signature)
        if chosen is None:
            return None
        return [(var, float(chosen[v] == k)) for (v, k), var in self.model.x.items()]


def sharding_model(costs: ShardingCosts, scale: float, *, strong: bool) -> ShardingModel:
    """State the program, in its strong form with (4) to (6), else with (3).

    For O operators, U uses of tensors and p properties of each about O·p + U·p² columns and, for
    the strong form, U·p² rows. `scale` is the units of the objective per unit of the program.
    """
    m = pyo.ConcreteModel("sharding")
    pairs = [(v, k) for v, c in enumerate(costs.choices) for k in range(len(c.cost))]
    m.x = pyo.Var(pairs, domain=pyo.Binary)
    terms = _Terms(m, costs)
    m.y = pyo.Var(sorted(terms.dear), bounds=(0, 1))
    m.C = pyo.Var(domain=pyo.NonNegativeReals)
    m.objective = pyo.Objective(expr=m.C)
    _cost(m, costs, terms, scale)
    if strong:
        _flows(m, terms)
    else:
        _compact(m, terms)
    if costs.problem.memory_bytes is not None:
        _memory(m, costs, terms, costs.problem.memory_bytes)
    return ShardingModel(costs, m, scale)


class _Terms:
    """The sums made_{T,a} and need_{r,b}, and the conversions that cost something."""

    def __init__(self, m: pyo.ConcreteModel, costs: ShardingCosts) -> None:
        self.costs = costs
        self.made: list[dict[int, Any]] = []
        self.uses: list[tuple[int, Use]] = []
        self.need: list[dict[int, Any]] = []
        self.dear: dict[tuple[int, int, int], float] = {}
        for t, users in enumerate(costs.uses):
            maker, makes = costs.makes[t]
            self.made.append(_sums(m, maker, makes))
            for use in users:
                self.uses.append((t, use))
                self.need.append(_sums(m, use.operator, use.needs))
                for a in self.made[t]:
                    for b in self.need[-1]:
                        price = float(costs.conversions[t].cost[a, b])
                        if price > 0:
                            self.dear[t, a, b] = price


def _sums(m: pyo.ConcreteModel, v: int, numbers: Ints) -> dict[int, Any]:
    """Return, by number of a property, the sum of the choices of v that have it."""
    return {
        int(b): pyo.quicksum(m.x[v, k] for k in np.flatnonzero(numbers == b).tolist())
        for b in np.unique(numbers)
    }


def _cost(m: pyo.ConcreteModel, costs: ShardingCosts, terms: _Terms, scale: float) -> None:
    def total(m: pyo.ConcreteModel) -> object:
        """(1) C = Σ_{v,k} cost_{v,k} x_{v,k} + Σ_{T,a,b} conv_{T,a,b} y_{T,a,b}."""
        computing = pyo.quicksum(
            float(costs.choices[v].cost[k]) / scale * var for (v, k), var in m.x.items()
        )
        converting = pyo.quicksum(price / scale * m.y[key] for key, price in terms.dear.items())
        return computing + converting == m.C

    def phases(m: pyo.ConcreteModel) -> object:
        """(1'') C = Σ_s L_s."""
        return pyo.quicksum(m.length.values()) == m.C

    def end(m: pyo.ConcreteModel, e: int) -> object:
        """(1') L_s ≥ Σ in_{e,v} cost_{v,k} x_{v,k} + Σ in_{e,T,a,b} conv_{T,a,b} y_{T,a,b}.

        For all ends e of a step, each in a phase s, over v, k and T, a, b.
        """
        ends = costs.ends
        assert ends is not None
        operators = ends.operators[e]
        counts = [
            np.where(inside, here, other)
            for inside, here, other in zip(
                ends.within, ends.tensors[e], ends.elsewhere[e], strict=True
            )
        ]
        computing = pyo.quicksum(
            float(operators[v] * costs.choices[v].cost[k]) / scale * var
            for (v, k), var in m.x.items()
            if operators[v]
        )
        converting = pyo.quicksum(
            price / scale * m.y[t, a, b] for (t, a, b), price in terms.dear.items() if counts[t][b]
        )
        s = int(np.searchsorted(ends.phases, e, "right")) - 1
        return computing + converting <= m.length[s]

    def once(m: pyo.ConcreteModel, v: int) -> object:
        """(2) Σ_k x_{v,k} = 1  for all operators v."""
        return pyo.quicksum(m.x[v, k] for k in range(len(costs.choices[v].cost))) == 1

    if costs.ends is None:
        m.total = pyo.Constraint(rule=total)
    else:
        m.length = pyo.Var(range(len(costs.ends.phases)), domain=pyo.NonNegativeReals)
        m.phases = pyo.Constraint(rule=phases)
        m.ends = pyo.Constraint(range(len(costs.ends.operators)), rule=end)
    m.once = pyo.Constraint(range(len(costs.choices)), rule=once)


def _compact(m: pyo.ConcreteModel, terms: _Terms) -> None:
    keys = [
        (r, a, b)
        for r, (t, _) in enumerate(terms.uses)
        for a in terms.made[t]
        for b in terms.need[r]
        if (t, a, b) in terms.dear
    ]

    def converted(m: pyo.ConcreteModel, r: int, a: int, b: int) -> object:
        """(3) y_{T,a,b} ≥ made_{T,a} + need_{r,b} − 1  for all uses r of T, a ≠ b."""
        t, _ = terms.uses[r]
        return m.y[t, a, b] >= terms.made[t][a] + terms.need[r][b] - 1

    m.converted = pyo.Constraint(keys, rule=converted)


def _flows(m: pyo.ConcreteModel, terms: _Terms) -> None:
    dear = {t for t, _, _ in terms.dear}
    uses = [r for r, (t, _) in enumerate(terms.uses) if t in dear]
    keys = [(r, a, b) for r in uses for a in terms.made[terms.uses[r][0]] for b in terms.need[r]]
    m.z = pyo.Var(keys, bounds=(0, 1))
    rows = [(r, a) for r in uses for a in terms.made[terms.uses[r][0]]]
    columns = [(r, b) for r in uses for b in terms.need[r]]
    shared = [(r, a, b) for r, a, b in keys if (terms.uses[r][0], a, b) in terms.dear]

    def flows_from(m: pyo.ConcreteModel, r: int, a: int) -> object:
        """(4) Σ_b z_{r,a,b} = made_{T,a}  for all uses r of T, a."""
        made = terms.made[terms.uses[r][0]][a]
        return pyo.quicksum(m.z[r, a, b] for b in terms.need[r]) == made

    def flows_to(m: pyo.ConcreteModel, r: int, b: int) -> object:
        """(5) Σ_a z_{r,a,b} = need_{r,b}  for all uses r, b."""
        ways = terms.made[terms.uses[r][0]]
        return pyo.quicksum(m.z[r, a, b] for a in ways) == terms.need[r][b]

    def is_converted(m: pyo.ConcreteModel, r: int, a: int, b: int) -> object:
        """(6) z_{r,a,b} ≤ y_{T,a,b}  for all uses r of T, a ≠ b."""
        return m.z[r, a, b] <= m.y[terms.uses[r][0], a, b]

    m.flows_from = pyo.Constraint(rows, rule=flows_from)
    m.flows_to = pyo.Constraint(columns, rule=flows_to)
    m.is_converted = pyo.Constraint(shared, rule=is_converted)


def _memory(m: pyo.ConcreteModel, costs: ShardingCosts, terms: _Terms, room: float) -> None:
    operators = costs.program.operators
    uses = [
        (r, b)
        for r, (t, use) in enumerate(terms.uses)
        if operators[use.operator].backward and not operators[costs.program.maker[t]].backward
        for b in terms.need[r]
    ]
    kept = {(terms.uses[r][0], b) for r, b in uses}
    looks: list[tuple[int, int, int, int]] = []  # T, b, S, a
    waiting = sorted(kept)
    while waiting:
        t, b = waiting.pop()
        v, makes = costs.makes[t]
        if operators[v].view:
            source = operators[v].inputs[0]
            for a in np.unique(costs.choices[v].needs[0][makes == b]).tolist():
                looks.append((t, b, source, a))
                if (source, a) not in kept:
                    kept.add((source, a))
                    waiting.append((source, a))
    unit = room / 1000 if room > 0 else 1.0
    keys = sorted(kept)
    m.kept = pyo.Var(keys, bounds=(0, 1))
    m.held = pyo.Var(keys, bounds=(0, 1))
    owned = {v: own_bytes(costs, v) for v, o in enumerate(operators) if o.role is Role.PARAMETER}
    free = {
        (t, b)
        for t, b in keys
        if b in terms.made[t] and (operators[costs.makes[t][0]].view or costs.makes[t][0] in owned)
    }

    def fits(m: pyo.ConcreteModel) -> object:
        """(7) Σ_{v,k} own_{v,k} x_{v,k} + Σ_{T,b} size_{T,b} g_{T,b} ≤ M."""
        own = pyo.quicksum(
            float(size) / unit * m.x[v, k] for v, by in owned.items() for k, size in enumerate(by)
        )
        activations = pyo.quicksum(state_bytes(costs, t, b) / unit * m.held[t, b] for t, b in keys)
        return own + activations <= room / unit

    def is_kept(m: pyo.ConcreteModel, r: int, b: int) -> object:
        """(8) h_{T,b} ≥ need_{r,b}  for all uses r of T by backward operators, b."""
        return m.kept[terms.uses[r][0], b] >= terms.need[r][b]

    def looked_at(m: pyo.ConcreteModel, t: int, b: int, s: int, a: int) -> object:
        """(9) h_{S,a} ≥ h_{T,b} + Σ_{k makes T as b, needs S as a} x_{v,k} − 1."""
        v, makes = costs.makes[t]
        both = np.flatnonzero((makes == b) & (costs.choices[v].needs[0] == a)).tolist()
        return m.kept[s, a] >= m.kept[t, b] + pyo.quicksum(m.x[v, k] for k in both) - 1

    def held_beside(m: pyo.ConcreteModel, t: int, b: int) -> object:
        """(10) g_{T,b} ≥ h_{T,b} − made_{T,b}  for what looks at another, and parameters."""
        return m.held[t, b] >= m.kept[t, b] - terms.made[t][b]

    def held_itself(m: pyo.ConcreteModel, t: int, b: int) -> object:
        """(11) g_{T,b} = h_{T,b}  for all others."""
        return m.held[t, b] == m.kept[t, b]

    if owned or keys:
        m.fits = pyo.Constraint(rule=fits)
    m.is_kept = pyo.Constraint(uses, rule=is_kept)
    m.looked_at = pyo.Constraint(looks, rule=looked_at)
    m.held_beside = pyo.Constraint(sorted(free), rule=held_beside)
    m.held_itself = pyo.Constraint([key for key in keys if key not in free], rule=held_itself)
