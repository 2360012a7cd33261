"""Branch and bound over chains of P stages, from the last stage to the first.

A node fixes the stages s, …, P − 1. Executed with all stages before them taking no time, they have
the makespan T_s. In any plan that ends so, the microbatch of the first action on that longest path
has passed all stages before, and that of the last action still has to go back, so the makespan is
at least T_s plus the least forward and backward time of s stages for what is left (of the forward
alone where the backward passes are split, as a path can then end with gradients of weights). Any
prices of the game (`sized`) give another bound: what the fixed stages cost at these prices, and the
cheapest chain for what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from ....instances.common.arrays import Bools, Floats
from ...core.search import Clock
from .by_device.options import device_limits
from .sized import SLACK, Cheapest, Sized, Used, cheapest_chain
from .stage_list import share_a_device


@dataclass
class Branching:
    """The outcome of branching."""

    #: The makespan below which a chain was asked for last.
    target: float
    #: Whether every chain below it was looked at.
    complete: bool = True
    #: Chains that were left out have at least this makespan.
    open_bound: float = np.inf
    #: Executions.
    nodes: int = 0


#: Prices that are tried on every node.
POOL = 12


#: Executions of a step.
STEP = 200


#: Takes a chain and its makespan by equation 1.
Offer = Callable[[Cheapest, float], None]


class _Brancher:
    def __init__(
        self, plans: Sized, aim: Callable[[], float], offer: Offer, search: Clock, most: int
    ) -> None:
        self.plans, self.target, self.aim, self.offer = plans, aim(), aim, offer
        self.search, self.most = search, most
        paths = plans.paths
        self.rules = paths.line.rules
        self.stages, self.chain, self.size = paths.stages, paths.chain, plans.size
        self.kinds = range(len(paths.line.kinds))
        self.count = paths.line.count * paths.line.problem.chunks_per_device
        self.duration = [paths.durations(k).T.copy() for k in self.kinds]
        # A stage that a kind cannot hold is never allowed, and 0 × inf is no number.
        self.priced_duration = [np.where(np.isfinite(d), d, 0.0) for d in self.duration]
        self.forward = [self.stages.forward[k] for k in self.kinds]
        split = self.chain.order.splits
        self.left = [
            self.forward[k] + (0.0 if split else self.stages.backward[k]) for k in self.kinds
        ]
        self.ends = np.searchsorted(self.stages.end, np.arange(self.stages.lattice.size + 1))
        shared = self.chain.order.stages > len(self.chain.order.tables)
        self.limits = device_limits(paths) if shared else None
        self.work = self.stages.ahead.sum(axis=0)
        self.out = Branching(self.target)
        self.known: dict[tuple[int, int, Used], Floats] = {}

    def run(self) -> Generator[None, None, Branching]:
        self._bound_prefixes()
        whole = tuple(0 for _ in self.kinds)
        yield from self._extend(
            self.size, self.stages.lattice.size - 1, whole, np.zeros((self.size, 4)), (), ()
        )
        self.out.target = self.target
        return self.out

    def _bound_prefixes(self) -> None:
        """Find the stages that a chain below the target may have, and the least time before."""
        paths = self.plans.paths
        work = 0.0
        for _ in range(2):
            bounds = [
                [paths.least_makespan(s, k, work) for k in self.kinds] for s in range(self.size)
            ]
            self.allowed: list[list[Bools]] = [[b < self.target for b in row] for row in bounds]
            both = [self.forward[k] + self.stages.backward[k] for k in self.kinds]
            whole = self._least(both)
            if not np.isfinite(whole.price):
                break
            work = whole.price * (1 - SLACK)
        self.value = self._least(self.left).value

        self.prices = np.array(self.plans.pool[-POOL:] or [self.plans.prices])
        self.priced = [self._cheapest(prices).value for prices in self.prices]

    def _least(self, cost: list[Floats]) -> Cheapest:
        return cheapest_chain(
            self.stages,
            self.count,
            self.size,
            lambda s, k: np.where(self.allowed[s][k], cost[k], np.inf),
        )

    def _cheapest(self, prices: Floats) -> Cheapest:
        return cheapest_chain(
            self.stages,
            self.count,
            self.size,
            lambda s, k: np.where(self.allowed[s][k], self.priced_duration[k] @ prices[s], np.inf),
        )

    def _before(self, value: dict[Used, Floats], stage: int, behind: Used) -> Floats:
        """Return the least cost of `stage` stages for each ideal, with the devices left."""
        key = id(value), stage, behind
        if key not in self.known:
            least = np.full(self.stages.lattice.size, np.inf)
            for used, costs in value.items():
                fits = all(a + b <= c for a, b, c in zip(used, behind, self.count, strict=True))
                if sum(used) == stage and fits:
                    least = np.minimum(least, costs)
            self.known[key] = least
        return self.known[key]

    def _extend(
        self,
        stage: int,
        ideal: int,
        used: Used,
        duration: Floats,
        numbers: tuple[int, ...],
        kinds: tuple[int, ...],
    ) -> Generator[None, None, None]:
        """Try all stages that end at an ideal as stage `stage` − 1."""
        s = stage - 1
        low, high = int(self.ends[ideal]), int(self.ends[ideal + 1])
        children: list[tuple[float, float, int, int]] = []
        for k in self.kinds:
            if used[k] >= self.count[k]:
                continue
            behind = (*used[:k], used[k] + 1, *used[k + 1 :])
            start = self.stages.start[low:high]
            before = self._before(self.value, s, behind)[start]
            bound = np.full(high - low, -np.inf)
            own = self.duration[k][low:high]
            priced = self.priced_duration[k][low:high]
            for prices, value in zip(self.prices, self.priced, strict=True):
                fixed = float((prices[stage:] * duration[stage:]).sum())
                cost = self._before(value, s, behind)[start] + priced @ prices[s] + fixed
                bound = np.maximum(bound, cost * (1 - SLACK))
            if self.limits is not None:
                room = self.limits.room(s, duration, own, self.target) * (1 + SLACK)
                bound = np.maximum(bound, self.limits.least(s, duration, own) * (1 - SLACK))
                before = np.where(self.work[start] <= room, before, np.inf)
            able = np.isfinite(before) & (bound < self.target)
            able &= self.allowed[s][k][low:high]
            for i in np.flatnonzero(able).tolist():
                number = low + i
                if not self._fits(s, k, number, numbers):
                    continue
                duration[s] = self.duration[k][number]
                if self._spent():
                    self._leave(self.plans.bound)
                    return
                alone = self.chain.makespan(duration)
                self.out.nodes += 1
                if self.out.nodes % STEP == 0:
                    yield
                    self.target = min(self.target, self.aim())
                least = max(alone + float(before[i]) * (1 - SLACK), float(bound[i]))
                if least < self.target:
                    children.append((least, alone, k, number))
        for least, alone, k, number in sorted(children):
            if least >= self.target:
                continue  # a better chain was found meanwhile
            duration[s] = self.duration[k][number]
            behind = (*used[:k], used[k] + 1, *used[k + 1 :])
            chain = (number, *numbers), (k, *kinds)
            if s == 0:
                self.offer(Cheapest({}, alone, *chain), alone)
                self.target = min(self.target, self.aim())
            elif self._spent():
                self._leave(least)
            else:
                yield from self._extend(s, int(self.stages.start[number]), behind, duration, *chain)
        duration[s] = 0.0

    def _spent(self) -> bool:
        return self.out.nodes >= self.most or self.search.should_stop()

    def _leave(self, bound: float) -> None:
        self.out.complete = False
        self.out.open_bound = min(self.out.open_bound, bound)

    def _fits(self, s: int, kind: int, number: int, numbers: tuple[int, ...]) -> bool:
        """Whether the stages chosen so far have room on the device of stage s, and may share it."""
        order, stages = self.chain.order, self.stages
        chosen = (number, *numbers)
        own = np.flatnonzero(order.device == order.device[s])
        own_known = [chosen[t - s] for t in own if t >= s]
        vectors = order.in_flight[int(order.device[s])][:, len(own) - len(own_known) :]
        if len(own_known) > 1 and self.rules.apart:
            pairs = [(int(stages.start[i]), int(stages.end[i])) for i in own_known]
            if not share_a_device(self.rules, stages.lattice, pairs):
                return False
        peak = stages.resident[own_known].sum() + (vectors @ stages.activation[own_known]).max()
        return bool(peak <= self.plans.paths.line.room[kind])


def branch(
    plans: Sized, aim: Callable[[], float], offer: Offer, search: Clock, most: int
) -> Generator[None, None, Branching]:
    """Look depth first, best stage first, for chains of P stages below a target, in steps.

    The target that `aim` returns may fall; `offer` gets what is found. Each node costs an
    execution, of which there are `most`.
    """
    return (yield from _Brancher(plans, aim, offer, search, most).run())
