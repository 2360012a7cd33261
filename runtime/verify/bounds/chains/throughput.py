"""Whether some chain of stages has a max-load below a target: all chains, by ideals.

A contiguous split on devices in order is a chain of ideals (`ideals`), and what its stages cost is
in `stages`:

    reached[∅] = {0},
    reached[J] = { d + e_k : d ∈ reached[I], I ⊂ J, d_k < n_k, J ∖ I fits into a device of kind k
                   and costs it less than the target }

with d the numbers of devices used, by kind. The target is proved if no d reaches all nodes. Of
GPipe's objective, the largest forward plus the largest backward pass, the least largest backward
pass b is found among chains whose forward passes are below the target less the b before it, from
b = 0 on, until there is no such chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .....instances import Costs, Throughput, Workload, without_links
from .....instances.common.arrays import Ints
from .....instances.model.contiguity import pipeline_edges
from ..bound_check import too_much
from .ideals import Ideals, ideals_of
from .stages import PARTS, WORK, Stages, bytes_in_parts, parts

#: Chains of GPipe that are left out one by one, and numbers of devices used times ideals, at most.
CHAINS, STATES = 60, 100_000_000

#: Of what no chain reaches.
NEVER = 1 << 62

#: Numbers of devices used, by kind, and the largest backward pass on the way (GPipe; else 0).
State = tuple[tuple[int, ...], int]


def no_chain_below(workload: Workload, costs: Costs, problem: Throughput, target: float) -> bool:
    """Whether every contiguous split has an objective of `target` or more.

    Parameters
    ----------
    costs
        Of the cluster; links between devices are left out, which makes no split dearer.
    target
        Above 0 and finite.

    Raises
    ------
    VerificationError
        If there are too many ideals or stages to look at all of them.

    Notes
    -----
    O(R E) for R stages below the target between N ideals and E sets of a node and its readers.
    """
    chains = _chains(workload, without_links(costs, returning=False), problem, target)
    if problem.pipeline != "gpipe":
        return chains.least_backward(PARTS) is None
    backward = 0
    for _ in range(CHAINS):
        least = chains.least_backward(PARTS - backward)
        if least is None:
            return True
        if least <= backward:
            return False
        backward = least
    raise too_much(f"more than {CHAINS} chains are close to it")


@dataclass(frozen=True, eq=False)
class _Chains:
    """Chains of ideals, in parts of the target; N ideals, K kinds of devices.

    Parameters
    ----------
    stages
        With one pass, or the forward and the backward one if the objective is GPipe's.
    used_bytes
        Shape (K, N): in parts of twice what a device of the kind has.
    least
        Shape (N,): compute on the fastest kind.
    """

    overlap: bool
    ideals: Ideals
    count: Ints
    stages: Stages
    used_bytes: Ints
    least: Ints

    def least_backward(self, forward: int) -> int | None:
        """Return the least largest backward pass of chains below a limit; None without chain.

        Parameters
        ----------
        forward
            What forward passes must be below; all passes, unless the objective is GPipe's, where 0
            is returned.
        """
        last = len(self.least) - 1
        by_work = np.argsort(self.least, kind="stable")
        work = self.least[by_work]
        least = {(0,) * len(self.count): np.full(last + 1, NEVER)}  # by numbers of devices used
        least[(0,) * len(self.count)][0] = 0
        looked = 0
        for ideal in range(last):
            states = _best([(used, int(of[ideal])) for used, of in least.items()])
            if not states:
                continue
            left = int(self.count.sum()) - min(sum(used) for used, _ in states) - 1
            low = np.searchsorted(work, self.least[last] - left * PARTS, side="right")
            begin = np.searchsorted(work, self.least[ideal], side="left")
            high = np.searchsorted(work, self.least[ideal] + PARTS, side="left")
            ends = by_work[max(low, begin) : high]
            if self.least[last] < self.least[ideal] + PARTS:
                ends = np.union1d(ends, [last])
            ends = ends[self.ideals.inside(ideal, ends)]
            looked += len(ends) * max(1, len(self.stages.pins))
            if looked > WORK or len(least) * last > STATES:
                raise too_much("there are too many stages below it")
            for kind in range(len(self.count)):
                end, own = self._priced(ideal, ends, kind, forward)
                for used, before in states:
                    if used[kind] < self.count[kind]:
                        then = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
                        of = least.setdefault(then, np.full(last + 1, NEVER))
                        of[end] = np.minimum(of[end], np.maximum(before, own))
        found = min(int(of[last]) for of in least.values())
        return found if found < NEVER else None

    def _priced(self, ideal: int, ends: Ints, kind: int, forward: int) -> tuple[Ints, Ints]:
        """Return the ends of stages that fit into a device and the limits, and backward passes."""
        passes = range(len(self.stages.compute))
        limits = (forward, PARTS)
        fits = self.used_bytes[kind, ends] - self.used_bytes[kind, ideal] <= PARTS // 2
        for one in passes:
            fits &= self.stages.time(one, kind, ideal, ends) < limits[one]
        ends = ends[fits]
        fits = np.ones(len(ends), np.bool_)
        cost = np.zeros(len(ends), np.int64)
        for one, moved in zip(passes, self.stages.transfers(kind, ideal, ends), strict=True):
            time = self.stages.time(one, kind, ideal, ends)
            cost = np.maximum(time, moved) if self.overlap else time + moved
            fits &= cost < limits[one]
        return ends[fits], cost[fits] if len(passes) > 1 else np.zeros(fits.sum(), np.int64)


def _chains(workload: Workload, costs: Costs, problem: Throughput, target: float) -> _Chains:
    ideals = ideals_of(workload, costs, pipeline_edges(workload))
    backward, all_nodes = workload.backward, np.ones(workload.n, np.bool_)
    passes = (~backward, backward) if problem.pipeline == "gpipe" else (all_nodes,)
    stages = Stages.of(costs, ideals, target, passes, workload.successors, relayed=problem.relayed)
    used = bytes_in_parts(workload.memory_bytes, costs)
    compute = parts(costs.compute[costs.count > 0], target)
    return _Chains(
        problem.overlap,
        ideals,
        costs.count[costs.count > 0],
        stages,
        np.array([ideals.sums(kind) for kind in used]),
        ideals.sums(compute.min(axis=0)),
    )


def _best(states: list[State]) -> list[State]:
    """Return the states that are reached and no other is as good as."""
    kept: list[State] = []
    for used, backward in sorted(states):
        if backward < NEVER and not any(
            before <= backward and all(a <= b for a, b in zip(fewer, used, strict=True))
            for fewer, before in kept
        ):
            kept.append((used, backward))
    return kept
