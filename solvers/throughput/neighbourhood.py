"""Large-neighbourhood search over splits: a move divides the units of two devices anew."""

from __future__ import annotations

import numpy as np

from ...formulations.task import Task
from ...formulations.throughput.hypergraph import Hypergraph, Incidence
from ...formulations.throughput.whole_bytes import room_of
from ...instances import Placement, Solution, Throughput
from ...instances.common.arrays import Bools, Ints
from ...instances.common.kernel import NotCompiled, compiled_only_if
from ..core.search import Clock, Search
from .column_generation.frontier_kernels import FrontierLimits, FrontierNets, build
from .split_kernels import (
    DevicePair,
    PairLayers,
    SplitQuery,
    completion_bounds,
    held_by,
    split_pair,
)

#: Most states of one layer of the frontier.
WIDTH = 4000

#: Moves without success after which some nets are moved at random.
PATIENCE = 60


class Neighbourhood:
    """Walk over splits, from one that keeps all rules except contiguity.

    `order`, shape (U,), is an order of the units with a small frontier.
    """

    def __init__(
        self,
        task: Task[Throughput],
        graph: Hypergraph,
        order: Ints,
        start: Ints,
        rng: np.random.Generator,
    ) -> None:
        self._graph, self._order, self._rng = graph, order, rng
        self._compute = graph.compute.sum(axis=1)
        self._weight = graph.weight.sum(axis=1)
        self._kind_of = task.costs.kind_of
        self._room = room_of(task.costs.capacity_bytes)[self._kind_of]
        self.where = start.copy()
        self._weigh()
        self.best = float(self.load.max())
        self._best_where = self.where.copy()
        self._failures = 0
        self._seen: Solution | None = None
        #: Whether the last walk ended because it may not compile a kernel.
        self.needs_compiling = False

    def walk(
        self,
        search: Search[Solution],
        moves: int,
        clock: Clock | None = None,
        *,
        compiling: bool = True,
    ) -> bool:
        """Make up to `moves` moves until `clock`, or the search, says stop.

        Offer better splits, and return whether there were any.

        If not `compiling`, it ends before the first kernel that has to be compiled, and sets
        `needs_compiling`.
        """
        better = False
        clock = clock or search
        try:
            with compiled_only_if(lambda: compiling):
                if self.needs_compiling:
                    self._weigh()
                self.needs_compiling = False
                self._go_on_from(search)
                for _ in range(moves):
                    if clock.should_stop():
                        break
                    self._move()
                    better = self._keep(search) or better
        except NotCompiled:
            self.needs_compiling, self.where = True, self._best_where.copy()
        return better

    def _go_on_from(self, search: Search[Solution]) -> None:
        """Continue from the search's incumbent if that came from elsewhere since the last walk."""
        if isinstance(search.best, Placement) and search.best is not self._seen:
            if self._seen is not None:
                self.where = np.array(self._graph.restrict(search.best.device))
                self._weigh()
                self.best, self._best_where = float(self.load.max()), self.where.copy()
                self._failures = 0
            self._seen = search.best

    def _keep(self, search: Search[Solution]) -> bool:
        """Offer the split if it is the best so far; return whether it was taken."""
        if not self.load.max() < self.best * (1 - 1e-12):
            return False
        self.best, self._best_where = float(self.load.max()), self.where.copy()
        self._failures = 0
        better = search.offer(Placement(self._graph.expand(self.where)))
        if better:
            self._seen = search.best
        return better

    def _move(self) -> None:
        devices = len(self.load)
        if devices < 2:
            return
        if self._failures >= PATIENCE:
            self._shake()
            return
        top = int(self.load.argmax())
        relieve = bool(self._rng.integers(2))  # reduce the largest load, or else a sum of two
        a, b = (int(d) for d in self._rng.permutation(devices)[:2])
        if relieve and top not in (a, b):
            a = top
        before = (self.load[a], self.load[b])
        most = float(max(before) if relieve else self.load.max())
        if self._split(a, b, most, least_sum=not relieve):
            after = (self.load[a], self.load[b])
            gain = max(before) - max(after) if relieve else sum(before) - sum(after)
            if gain > 1e-9 * most:
                self._failures = 0
                return
        self._failures += 1

    def _split(self, a: int, b: int, most: float, *, least_sum: bool) -> bool:
        """Divide two devices' units anew, fixing some of them if the frontier is too wide."""
        kind_a, kind_b = self._kind_of[a], self._kind_of[b]
        pair = DevicePair(
            a, b, self._compute[kind_a], self._compute[kind_b], self._weight[kind_a],
            self._weight[kind_b], self._graph.memory_bytes, self._room[a], self._room[b],
        )  # fmt: skip
        free = (self.where == a) | (self.where == b)
        while free.any():
            found = resplit(
                self.where,
                free,
                pair,
                self._order,
                self._graph.incidence,
                most,
                least_sum=least_sum,
            )
            if found is not None:
                if found:
                    self._weigh()
                return found
            free = self._fewer(free)
        return False

    def _fewer(self, free: np.ndarray) -> np.ndarray:
        """Return a random half of the free units that is consecutive in the order."""
        units = self._order[free[self._order]]
        half = len(units) // 2
        begin = int(self._rng.integers(len(units) - half + 1))
        fewer = np.zeros(len(free), np.bool_)
        fewer[units[begin : begin + half]] = True
        return fewer

    def _shake(self) -> None:
        """Return to the best split, and move each of one to six nets onto one device."""
        self._failures = 0
        self.where = self._best_where.copy()
        for _ in range(int(self._rng.integers(1, 7))):
            if len(self._graph.pins):
                pins = list(self._graph.pins[int(self._rng.integers(len(self._graph.pins)))])
            else:
                pins = [int(self._rng.integers(self._graph.size))]
            device = int(self._rng.integers(len(self.load)))
            kind = self._kind_of[device]
            moved = self._graph.memory_bytes[[v for v in pins if self.where[v] != device]].sum()
            self._weigh()
            if (
                np.isfinite(self._compute[kind, pins]).all()
                and self._used[device] + moved <= self._room[device]
            ):
                self.where[pins] = device
        self._weigh()

    def _weigh(self) -> None:
        """Compute the load and the memory in use of each device, shape (D,)."""
        where, kind_of, devices = self.where, self._kind_of, len(self._kind_of)
        ptr, pins, _, _ = self._graph.incidence
        compute = self._compute[kind_of[where], np.arange(len(where))]
        # pairs of a net and a device with a pin of it; a net in one pair only is not cut
        net, device = np.divmod(
            np.unique(np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)) * devices + where[pins]),
            devices,
        )
        cut = np.bincount(net, minlength=len(ptr) - 1)[net] > 1
        paid = self._weight[kind_of[device[cut]], net[cut]]
        self.load = np.bincount(where, compute, devices) + np.bincount(device[cut], paid, devices)
        self._used = np.bincount(where, self._graph.memory_bytes, devices)


def resplit(
    where: Ints,
    free: Bools,
    pair: DevicePair,
    order: Ints,
    shape: Incidence,
    most: float,
    *,
    least_sum: bool,
) -> bool | None:
    """Divide the free units of two devices anew, with both loads below `most`.

    Return whether a split was found, and write it to `where`; None if that is too much work.

    It minimises the sum of both loads if `least_sum`, else their maximum.
    """
    units, held = held_by(where, free, pair, order, shape)
    floor = held.load_a + held.load_b + held.least_compute
    nets = FrontierNets(held.pins_left, held.fixed, held.outside, pair.weight_a, pair.weight_b)
    most_paid = 2 * most * (1 + 1e-9) - floor
    ptr, step, cost_a, cost_b, _ = build(
        units, shape.unit_ptr, shape.unit_nets, nets,
        FrontierLimits(True, most_paid, WIDTH, 64 * WIDTH, relax=False),
    )  # fmt: skip
    if len(ptr) == 0:
        return None
    if most <= 0:
        return False
    layers = PairLayers(ptr, step, cost_a, cost_b)
    bounds = completion_bounds(units, pair, layers)
    code = split_pair(where, units, held, SplitQuery(pair, layers, bounds, most, least_sum))
    return None if code < 0 else bool(code)
