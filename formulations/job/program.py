"""The program of one outer point: layers of each stage, and how many of them are recomputed.

For stage s and layer type τ, n_sτ layers, r_sτ of them recomputed; y_k whether rank k recomputes
any, u_kτ whether it has layers of type τ. Seconds of stage s for a microbatch are linear in n and
r, with E_s what the ends have besides:

    F_s = Σ_τ f_τ n_sτ + E_sF + φ_s,   B_s = Σ_τ ( g_τ n_sτ + g'_τ r_sτ ) + E_sB + ψ_s          (6)

    minimise  T + G + O + constants
    T ≥ Σ_s ( n_πsF F_s + n_πsB B_s + n_πsW W_s ) + n_π · message       paths π found so far    (4)
    Σ_s n_sτ = L_τ,   r_sτ ≤ n_sτ,   Σ_τ n_sτ within the declared range of s                    (7)
    bytes of rank k ≤ memory_k, X_k with the recomputed layer where y_k   every rank k           (5)
    the same with X_τ where u_kτ,  Σ_s n_sτ ≤ L_τ u_kτ                    X_τ above the least
    r_sτ ≤ L_τ y_k                                                      s on k                  (8)
    G ≥ reduce_k + gather_k, each as far as nothing hides it            every rank k            (9)
    O ≥ the optimizer's step over what rank k holds                     every rank k           (10)
    φ_s ≥ gather_s − hidden (F_s − C_s), φ_s ≥ slowed · gather_s,
    φ_s ≥ a layer's gather; ψ_s alike                                   weights sharded        (11)
    φ_s ≥ d_s − hidden F_s,  ψ_s ≥ d_s − hidden B_s                     host memory used       (14)

C_s are the collectives in F_s on links that gathering needs: equation (4) of docs/job.md; d_s the
seconds in which what s has in host memory comes or goes.
Traffic of a rank is below its true seconds where those are not linear (all-reduce is the faster of
ring and tree). Where layers of two types follow each other once (dense ones, then mixtures of
experts), z_s says that stage s has none of the second type, and n_sτ keep that order; where types
a, b alternate, in the first j layers N_ja and N_jb of them,

    least ≤ Σ_{q≤s} ( n_qb − L_b / L_a n_qa ) ≤ most of N_jb − L_b / L_a N_ja over j            (15)

which of a regular alternation leaves its own places alone. So the optimum is a bound for every plan
at this point, and if its longest path is among those found, it is the plan's time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from ...instances.common.arrays import Floats, Ints
from ...instances.costs.description import ModelDescription
from ...instances.costs.layers import LayerPrices
from ...instances.costs.layout import Layout
from ...instances.costs.stages import (
    blocked,
    host_step,
    host_weights,
    kinds_of_rank,
    layer_hooks,
    message_time,
    optimizer_rates,
    prices_of_ranks,
    replica_traffic,
    tied_all_reduce,
    waits_for_weights,
)
from ..linear import Linear, LinearBuilder
from .memory import memory_rows
from .paths import JobPaths
from .rates import Rates
from .space import JobSpace


@dataclass(frozen=True, eq=False)
class PointCosts:
    """All costs of an outer point that do not depend on its stages."""

    #: The point's layout, with stages of nearly equal numbers of layers.
    layout: Layout
    #: Seconds of a message between two ranks.
    message: float
    #: Shape (ranks, 3): lower bounds on the seconds of each rank's data-parallel traffic, gathering
    #: its weights and reducing its gradients: whatever it holds, per shared parameter, and per
    #: parameter of routed experts.
    gather: Floats
    reduce: Floats
    #: Shape (ranks, 2): seconds of the optimizer per parameter that all replicas hold, and per
    #: routed one.
    step: Floats
    #: Seconds of an iteration for the host's step and the all-reduce of a tied embedding.
    constant: float
    #: Shape (ranks,): prices on the nodes of each rank, by which its passes wait.
    on: tuple[LayerPrices, ...]

    def in_units(self, unit: float) -> PointCosts:
        """Return the costs in the given unit of time, seconds."""
        return replace(
            self, message=self.message / unit, gather=self.gather * (1 / unit),
            reduce=self.reduce * (1 / unit), step=self.step / unit, constant=self.constant / unit,
        )  # fmt: skip


#: Least number of pieces in which a rank sends gradients; the last is always exposed.
LEAST_PIECES = 8
#: Number of parameters, far below that of any rank, from which on traffic is taken as linear.
FEW = 1.0
#: Largest change of a number of layers by rounding.
ROUNDING = 1e-7


def point_costs(space: JobSpace, point: int, prices: LayerPrices) -> PointCosts:
    """Return the costs of an outer point that do not depend on its stages."""
    layout = space.layout(point)
    most = float(space.model.parameters)
    on = prices_of_ranks(layout, prices)
    # Waits for sharded weights are priced on each rank's own nodes.
    at = on if waits_for_weights(layout) else (prices,) * layout.pipeline
    lines = {one: _traffic_lines(layout, one, most) for one in set(at)}
    gather, reduce = np.stack([lines[one] for one in at], axis=1)
    step = np.array(optimizer_rates(layout, prices))
    constant = host_step(layout, prices) + tied_all_reduce(layout, prices)
    return PointCosts(layout, message_time(layout, prices), gather, reduce, step, constant, on)


def _traffic_lines(layout: Layout, prices: LayerPrices, most: float) -> Floats:
    """Return linear lower bounds on the seconds to gather and to reduce up to `most` parameters.

    Shape (2, 3), as in `PointCosts`; of several kinds of nodes the one where they are longest.
    """
    every = [
        [replica_traffic(layout, one, *held) for held in ((FEW, 0.0), (most, 0.0), (0.0, most))]
        for one in prices.each
    ]
    few, many, routed = np.array(every).swapaxes(0, 1)
    lines = np.stack((few, (many - few) / most, routed / most), axis=2)
    longest = (few + most * (lines[:, :, 1] + lines[:, :, 2])).argmax(axis=0)
    return np.asarray(lines[longest, [0, 1]])


@lru_cache(maxsize=64)
def _first_layers(types: tuple[int, ...]) -> int:
    """Count the layers of the first type if all of a second type follow; 0 for other orders."""
    first = types[0]
    count = next((k for k, one in enumerate(types) if one != first), 0)
    return count if count and len(set(types[count:])) == 1 else 0


def stage_range(model: ModelDescription, layout: Layout) -> tuple[Ints, Ints]:
    """Return the declared least and most layers of each stage.

    With one stage per rank, any number from 1 on. With several chunks, stages are even to within
    rounding, as launchers cut them, with embedding, head and each further prediction as one layer.
    """
    stages, layers = layout.stages, model.layers
    if layout.chunks == 1:
        return np.ones(stages, np.int64), np.full(stages, layers, np.int64)
    ends = np.zeros(stages, np.int64)
    ends[0], ends[-1] = 1, 1 + len(model.mtp)
    least = np.maximum(1, layers // stages - ends)
    return least, np.maximum(least, -(-(layers + ends.sum()) // stages) - ends)


class ProgramBuilder:
    """Columns of the program and its rows, one method per equation.

    Objective and columns of time count in units of `unit` seconds, about an iteration, so that the
    solver's tolerance, which is absolute, is a small part of it.
    """

    def __init__(
        self, space: JobSpace, rates: Rates, costs: PointCosts, point: int, prices: LayerPrices
    ) -> None:
        self.layout, self.prices, self.point = costs.layout, prices, point
        self.i = int(space.setting[point])
        whole = rates.count @ rates.passes[self.i] + rates.ends[self.i].sum(axis=0)
        self.unit = float(costs.layout.microbatches * (whole[0] + whole[1]) / costs.layout.pipeline)
        self.space, self.rates, self.costs = space, rates, costs.in_units(self.unit)
        self.stages, self.ranks = self.layout.stages, self.layout.pipeline
        self.rank_of = self.layout.stage_ranks
        self.kinds = len(rates.count)
        self.recomputes = space.job.counts_layers(self.layout)
        self.sharded = waits_for_weights(self.layout)
        self.hosts = self.layout.offload_activations > 0 or self.layout.offload_weights > 0
        self.by_stage = space.job.settings.recompute_by_stage
        self.build = LinearBuilder()
        most = np.broadcast_to(rates.count, (self.stages, self.kinds))
        self.n = self.build.columns((self.stages, self.kinds), most)
        self.r = self.build.columns((self.stages, self.kinds), most) if self.recomputes else None
        self.y = self.build.columns(self.ranks) if self.recomputes else None
        self.t, self.g, self.o = ends = self.build.columns(3, np.inf, whole=False)
        self.build.row("cutoff", ends, 1.0, -np.inf, np.inf)  # the first row
        lies_on = [kinds_of_rank(rank, self.layout, space.cluster) for rank in range(self.ranks)]
        self.of_stages = [rates.on(lies_on[rank]) for rank in self.rank_of]
        self.each, self.more, self.ends = self.rates_of_stages()
        waits = self.sharded or self.hosts
        self.wait = self.build.columns((self.stages, 2), np.inf, whole=False) if waits else None
        self.z: Ints | None = None
        self.u: Ints | None = None
        self.busy, self.busy_more, self.busy_ends = self.collectives_of_stages()
        self.ends_held = rates.ends_of(self.i, self.stages)
        self.layers()
        self.one_number()
        self.order_of_types()
        self.memory()
        self.waits()
        self.host_memory()
        self.traffic()
        self.optimizer()
        self.listed: set[int] = set()

    @property
    def columns(self) -> dict[str, Ints]:
        """Columns of each symbol of the module's text; w has the waits φ and ψ."""
        of = {"n": self.n, "r": self.r, "y": self.y, "u": self.u, "w": self.wait, "z": self.z}
        of |= {"T": np.asarray(self.t), "G": np.asarray(self.g), "O": np.asarray(self.o)}
        return {name: numbers for name, numbers in of.items() if numbers is not None}

    @property
    def row_meanings(self) -> dict[str, str]:
        """Meanings of the families of rows, by their names, as sentences."""
        families = {
            "layers": self.layers, "range": self.layers, "recomputed": self.layers,
            "recomputes": self.layers, "one_number": self.one_number,
            "ends": self.alternation, "again": self.alternation, "before": self.order_of_types,
            "behind": self.order_of_types, "memory": self.memory,
            "loss": self.memory, "heavier": self.memory, "has": self.memory,
            "wait": self.waits, "slowed": self.waits, "unit": self.waits,
            "host": self.host_memory, "traffic": self.traffic,
            "optimizer": self.optimizer, "path": self.paths,
        }  # fmt: skip
        return {name: str(method.__doc__) for name, method in families.items()}

    def rates_of_stages(self) -> tuple[Floats, Floats, Floats]:
        """Return the times of a layer in each stage, of its recomputation, and of the ends.

        Shapes (stages, K, 3), (stages, K) and (stages, 3).
        """
        ends = np.zeros((self.stages, 3))
        ends[0] += self.of_stages[0].ends[self.i, 0]
        ends[-1] += self.of_stages[-1].ends[self.i, 1]
        each = np.array([one.passes[self.i] for one in self.of_stages])
        hooks = np.array([layer_hooks(self.layout, one) for one in self.costs.on])
        each[:, :, 1] += hooks[list(self.rank_of), None]
        more = np.array([one.again[self.i] for one in self.of_stages])
        return each / self.unit, more / self.unit, ends / self.unit

    def collectives_of_stages(self) -> tuple[Floats, Floats, Floats]:
        """Return the times of passes that hide no traffic of replicas, in the same shapes."""
        at = self.costs.on if self.sharded else (self.prices,) * self.ranks
        both = np.zeros((self.ranks, 6, 3))
        for k, one in enumerate(at):
            both[k, 0::2, 0] = both[k, 1::2, 1] = blocked(self.layout, one)
        both = both[list(self.rank_of)] / self.unit
        each, more = (
            np.array([getattr(one, name)[self.i] for one in self.of_stages]) @ both
            for name in ("busy", "busy_again")
        )
        ends = np.zeros((self.stages, 3))
        ends[0] += self.of_stages[0].ends_busy[self.i, 0] @ both[0]
        ends[-1] += self.of_stages[-1].ends_busy[self.i, 1] @ both[-1]
        return each, more, ends

    def program(self, paths: JobPaths, cutoff: float) -> Linear:
        """Return the program with the paths so far, for plans of at most `cutoff` seconds."""
        self.paths(paths)
        ends, left = [self.t, self.g, self.o], cutoff / self.unit - self.costs.constant
        cost = np.zeros(len(self.build.upper))
        cost[ends] = 1.0
        linear = self.build.build(cost)
        upper, most = linear.column_upper.copy(), linear.row_upper.copy()
        upper[ends] = most[0] = left  # one of the three may take all of it
        return replace(linear, column_upper=upper, row_upper=most, offset=self.costs.constant)

    def plan(self, x: Floats) -> Layout:
        """Return the layout of a solution of the program."""
        counts = np.rint(x[self.n].sum(axis=1)).astype(int)
        again: int | tuple[int, ...] | None = self.layout.recompute_layers
        if self.r is not None:
            again = tuple(np.rint(x[self.r].sum(axis=1)).astype(int).tolist())
            again = again if self.by_stage else again[0]
        return replace(self.layout, stage_layers=tuple(counts.tolist()), recompute_layers=again)

    def seconds(self, x: Floats) -> Floats:
        """Return the passes of every stage in a solution, shape (stages, 3)."""
        found = np.einsum("sk,skq->sq", x[self.n], self.each) + self.ends
        if self.r is not None:
            found[:, 1] += (x[self.r] * self.more).sum(axis=1)
        if self.wait is not None:
            found[:, :2] += x[self.wait]
        return np.asarray(found * self.unit)

    def passes(self, s: int, weight: Floats) -> tuple[list[int], list[float], float]:
        """Return columns, factors and constant of Σ weight · (F_s, B_s, W_s), equation (6)."""
        columns, factors = list(self.n[s]), list(self.each[s] @ weight)
        if self.r is not None:
            columns += list(self.r[s])
            factors += list(self.more[s] * weight[1])
        if self.wait is not None:
            columns += list(self.wait[s])
            factors += list(weight[:2])
        return columns, factors, float(self.ends[s] @ weight)

    def computes(self, s: int, weight: Floats) -> tuple[list[int], list[float], float]:
        """Return the same for the passes without the collectives that compete for links.

        Where they wait for sharded weights, without these waits.
        """
        columns, factors, constant = self.passes(s, weight)
        again = self.busy_more[s] if self.r is not None else self.busy_more[s, :0]
        taken = np.concatenate((self.busy[s], again)) @ weight
        behind = [] if self.sharded else factors[len(taken) :]
        columns = columns[: len(taken) + len(behind)]
        factors = [one - busy for one, busy in zip(factors, taken, strict=False)] + behind
        return columns, factors, constant - float(self.busy_ends[s] @ weight)

    def layers(self) -> None:
        """Every layer is in one stage, whose number of layers is in its range (7)."""
        for k in range(self.kinds):
            count = self.rates.count[k]
            self.build.row(f"layers[{k}]", self.n[:, k], 1.0, count, count)
        least, most_layers = stage_range(self.space.model, self.layout)
        for s in range(self.stages):
            low, high = float(least[s]), float(most_layers[s])
            self.build.row(f"range[{s}]", self.n[s], 1.0, low, high)
            if self.r is not None and self.y is not None:
                for k in range(self.kinds):
                    one, most = [self.r[s, k], self.n[s, k]], self.rates.count[k]
                    self.build.row(f"recomputed[{s},{k}]", one, [1.0, -1.0], -np.inf, 0.0)
                    two = [self.r[s, k], self.y[self.rank_of[s]]]
                    self.build.row(f"recomputes[{s},{k}]", two, [1.0, -most], -np.inf, 0.0)

    def one_number(self) -> None:
        """All stages recompute equally many layers, where the launcher has one number for all."""
        if self.r is None or self.by_stage:
            return
        for s in range(1, self.stages):
            columns = np.concatenate([self.r[s], self.r[0]])
            factors = np.repeat([1.0, -1.0], self.kinds)
            self.build.row(f"one_number[{s}]", columns, factors, 0.0, 0.0)

    def order_of_types(self) -> None:
        """A stage with layers of the second type is followed by none with the first."""
        model = self.space.model
        types = model.types_of_layers[: model.layers]
        first = _first_layers(types)
        if self.stages == 1:
            return
        if not first:
            self.alternation(types)
            return
        a, b = types[0], types[-1]
        self.z = self.build.columns(self.stages)
        for s in range(self.stages):
            most = self.rates.count[b]
            self.build.row(f"before[{s}]", [self.n[s, b], self.z[s]], [1.0, most], -np.inf, most)
            if s:
                pair = [self.n[s, a], self.z[s - 1]]
                self.build.row(f"behind[{s}]", pair, [1.0, -float(first)], -np.inf, 0.0)

    def alternation(self, types: tuple[int, ...]) -> None:
        """Layers in front of a place are as many of each type as the order of types has there (15).

        Each stage begins and ends at a place, and what is recomputed of it are its first layers.
        """
        for a, b in combinations(sorted(set(types)), 2):
            steps = {a: -self.rates.count[b] / self.rates.count[a], b: 1.0}
            ahead = np.cumsum([0.0, *(steps.get(one, 0.0) for one in types)])
            low, high = float(ahead.min()) - ROUNDING, float(ahead.max()) + ROUNDING
            for s in range(self.stages):
                before = self.n[:s, [a, b]]
                for name, last in (("ends", self.n), ("again", self.r)):
                    if last is not None and s + 1 < self.stages:
                        columns = np.vstack((before, last[s, [a, b]])).ravel()
                        factors = np.tile([steps[a], steps[b]], s + 1)
                        self.build.row(f"{name}[{s},{a},{b}]", columns, factors, low, high)

    def memory(self) -> None:
        """Every rank has the bytes that it needs, at each moment when it may hold most (5)."""
        rows = memory_rows(self.space, self.rates, self.point)
        there = np.flatnonzero(self.rates.count)
        x, loss = max(float(rows.working[there].min()), float(rows.last)), float(rows.loss)
        heavier = [kind for kind in there.tolist() if rows.working[kind] > x]
        if heavier:
            self.u = self.build.columns((self.ranks, len(heavier)))
            for (k, j), has in np.ndenumerate(self.u):
                own = self.n[list(self.layout.rank_stages(k)), heavier[j]]
                least = np.append(np.ones(len(own)), -self.rates.count[heavier[j]])
                self.build.row(f"has[{k},{heavier[j]}]", np.append(own, has), least, -np.inf, 0.0)
        for k, moment in product(range(self.ranks), range(len(rows.flight))):
            columns: list[int] = []
            factors: list[float] = []
            for s, a in zip(self.layout.rank_stages(k), rows.flight[moment, k], strict=True):
                columns += list(self.n[s])
                factors += list(rows.state + a * rows.kept)
                if self.r is not None:
                    columns += list(self.r[s])
                    factors += list(-a * rows.saved)
            free = rows.limit[k] - rows.fixed[moment, k]
            scale = 1 / rows.limit[k]
            if k == rows.head and loss and rows.flight[moment, k, -1]:
                self.build.row(
                    f"loss[{k},{moment}]", columns, np.array(factors) * scale, -np.inf,
                    (free - loss) * scale,
                )  # fmt: skip
            for j, kind in enumerate(heavier):
                assert self.u is not None
                self.build.row(
                    f"heavier[{k},{moment},{kind}]", [*columns, self.u[k, j]],
                    np.array([*factors, rows.working[kind] - x]) * scale, -np.inf,
                    (free - x) * scale,
                )  # fmt: skip
            if self.y is not None and rows.working[there].any():
                columns = [*columns, self.y[k]]
                factors = [*factors, float(rows.saved[there].min())]
            self.build.row(
                f"memory[{k},{moment}]",
                columns,
                np.array(factors) * scale,
                -np.inf,
                (free - x) * scale,
            )

    def waits(self) -> None:
        """Passes wait for sharded weights that computation does not hide, and are slowed (11)."""
        if self.wait is None or not self.sharded:
            return
        for s, rank in enumerate(self.rank_of):
            table = self.costs.on[rank].calibration
            hidden, slowed = table.hidden, table.slowed
            gather, reduce = self.costs.gather[rank], self.costs.reduce[rank]
            back = [reduce, gather] if self.layout.reshard_after_forward else [reduce]
            for column, lines, weight in (
                (0, [gather], np.array([1.0, 0.0, 0.0])),
                (1, back, np.array([0.0, 1.0, 0.0])),
            ):
                held, factors, constant = self.held([s], np.array(lines))
                busy, shares, fixed = self.computes(s, hidden * weight)
                self.build.row(
                    f"wait[{s},{column}]",
                    [self.wait[s, column], *held, *busy],
                    [1.0, *(-f for f in factors), *shares],
                    constant - fixed,
                    np.inf,
                )
                self.build.row(
                    f"slowed[{s},{column}]",
                    [self.wait[s, column], *held],
                    [1.0, *(-slowed * f for f in factors)],
                    slowed * constant,
                    np.inf,
                )
                # Of one unit: a layer's gather, or its gradients' reduction.
                each = self.held([s], np.array(lines[:1]))[1]
                least = min(each[k] for k in np.flatnonzero(self.rates.count))
                self.build.row(f"unit[{s},{column}]", [self.wait[s, column]], [1.0], least, np.inf)

    def host_memory(self) -> None:
        """Passes wait for what comes from host memory, or goes there, beside them (14)."""
        if self.wait is None or not self.hosts:
            return
        each = np.array(host_weights(self.layout))
        moved = self.rates.held[self.i] @ each + self.rates.away[self.i]
        if self.r is not None:
            moved = np.concatenate((moved, -self.rates.away_saved[self.i]))
        ends = self.ends_held @ each
        for s, rank in enumerate(self.rank_of):
            prices = self.costs.on[rank]
            second = self.unit * prices.cluster.accelerator.host_bandwidth
            fixed = float(ends[0] * (s == 0) + ends[1] * (s == self.stages - 1)) / second
            hidden = prices.calibration.hidden
            for column in range(2):
                columns, factors, least = self.passes(s, hidden * np.eye(3)[column])
                row = np.array(factors)
                row[: len(moved)] -= moved / second
                row[columns.index(self.wait[s, column])] = 1.0
                self.build.row(f"host[{s},{column}]", columns, row, fixed - least, np.inf)

    def held(self, stages: list[int], lines: Floats) -> tuple[list[int], list[float], float]:
        """Return columns, factors and constant of the traffic of some stages' parameters.

        `lines`, shape (n, 3), are bounds as in `PointCosts`, which are added up.
        """
        of = self.rates.held[self.i], self.ends_held
        own, ends = ((lines[:, 1:] * held[:, None]).sum(axis=2).sum(axis=1) for held in of)
        constant = lines[:, 0].sum() + ends[0] * (0 in stages)
        constant += ends[1] * (self.stages - 1 in stages)
        return self.n[stages].ravel().tolist(), own.tolist() * len(stages), float(constant)

    def traffic(self) -> None:
        """Traffic of gradients and weights that nothing hides (9)."""
        if self.sharded:
            return
        overlap, hidden = self.layout.overlap, self.prices.calibration.hidden
        shown = max(1 / max(LEAST_PIECES, self.layout.chunks), self.prices.calibration.slowed)
        for k in range(self.ranks):
            own = list(self.layout.rank_stages(k))
            ways: list[list[tuple[list[int], list[float], float]]] = []
            for line, hides, weight in (
                (self.costs.reduce[k], overlap.gradients, np.array([0.0, 1.0, 0.0])),
                (self.costs.gather[k], overlap.parameters, np.array([1.0, 0.0, 0.0])),
            ):
                columns, factors, constant = self.held(own, line[None])
                whole = (columns, factors, constant)
                if not hides:
                    ways.append([whole])
                    continue
                part = (columns, [f * shown for f in factors], constant * shown)
                beside = (list(columns), list(factors), constant)
                for s in own:
                    busy, shares, fixed = self.computes(s, -hidden * weight)
                    beside = (beside[0] + busy, beside[1] + shares, beside[2] + fixed)
                ways.append([beside, part])
            for a, one in enumerate(ways[0]):
                for b, two in enumerate(ways[1]):
                    self.build.row(
                        f"traffic[{k},{a},{b}]",
                        [self.g, *one[0], *two[0]],
                        [1.0, *(-f for f in one[1]), *(-f for f in two[1])],
                        one[2] + two[2],
                        np.inf,
                    )  # fmt: skip

    def optimizer(self) -> None:
        """The optimizer's step over what a rank holds (10)."""
        for k, rates in enumerate(self.costs.step.tolist()):
            own = list(self.layout.rank_stages(k))
            columns, factors, constant = self.held(own, np.array([[0.0, *rates]]))
            self.build.row(
                f"optimizer[{k}]", [self.o, *columns], [1.0, *(-f for f in factors)],
                constant, np.inf,
            )  # fmt: skip

    def paths(self, paths: JobPaths) -> None:
        """No path is longer than the schedule (4)."""
        columns = [np.array([self.t]), self.n.ravel()]
        if self.r is not None:
            columns.append(self.r.ravel())
        if self.wait is not None:
            columns.append(self.wait.ravel())
        where = np.concatenate(columns)
        rows, messages = paths.rows
        for number in range(len(self.listed), len(rows)):
            self.listed.add(number)
            path, sent = rows[number], messages[number]
            factors = [np.ones(1), -np.einsum("sq,skq->sk", path, self.each).ravel()]
            if self.r is not None:
                factors.append(-(path[:, 1:2] * self.more).ravel())
            if self.wait is not None:
                factors.append(-path[:, :2].ravel())
            least = sent * self.costs.message + float((path * self.ends).sum())
            self.build.row(f"path[{number}]", where, np.concatenate(factors), least, np.inf)
