"""Annealing again and again: of equal parts, and of the best chain of so many stages so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ....formulations.iteration.chain import Chain
from ....formulations.iteration.divisible import divide
from ....formulations.iteration.line import Line
from ....formulations.iteration.orders import order_of
from ....instances.common.arrays import Ints
from ..run import Run
from .boundaries import anneal, equal_parts

#: Annealings of a number of stages, and steps of those that cool more slowly.
ANNEALINGS, LONG_STEPS = 10, 10


class Number(Protocol):
    """A number of stages."""

    @property
    def size(self) -> int:
        """P."""

    @property
    def bound(self) -> float:
        """No plan with P stages has a smaller makespan."""

    @property
    def chain(self) -> Chain:
        """The order of P stages."""


@dataclass(frozen=True)
class Size:
    """What is known of a number of stages without a list of them: what divisible work says."""

    size: int
    bound: float
    chain: Chain


#: By number of stages: the least makespan met, and the ideals of its chain.
Best = dict[int, tuple[float, Ints]]


def restarts(
    run: Run, numbers: Sequence[Number], seeds: Iterable[int], steps: int, best: Best
) -> Iterator[None]:
    """Offer what annealing makes of each number of stages that may be better, a step at a time.

    Parameters
    ----------
    seeds
        Those that are even begin with equal parts, the others with the best chain.
    steps
        Of an annealing.
    best
        Kept between calls.
    """
    chunks = run.line.problem.chunks_per_device
    for seed in seeds:
        idle = True
        for number in sorted(numbers, key=lambda number: number.bound):
            start = equal_parts(run.line, run.lattice, number.size)
            if start is None or number.bound >= run.search.objective:
                continue
            if seed % 2 and number.size in best:
                start = best[number.size][1]
            devices = number.size // chunks
            for kind in range(len(run.line.kinds)):
                if run.line.count[kind] < devices:
                    continue
                kinds = (kind,) * devices
                for found in anneal(run.line, run.lattice, number.chain, kinds, start, seed, steps):
                    idle = False
                    if found[0] < best.get(number.size, (np.inf,))[0]:
                        best[number.size] = found
                        run.offer_ideals(found[1], (kind,) * number.size, found[0])
                    yield
        if idle:
            return


def sizes_of(statement: Line) -> list[Size]:
    """Return the numbers of stages that plans can have, without listing stages."""
    problem = statement.problem
    least = statement.compute.min(axis=0)  # annealing ends at once where a unit runs nowhere
    forward, compute = np.where(np.isfinite(least), least, 0.0).sum(axis=1).tolist()
    found = []
    for size in statement.sizes():
        own = Chain(order_of(problem, size, statement.trains), problem.weight_share)
        found.append(Size(size, divide(own, forward, compute).bound, own))
    return found
