"""Whether some chain of stages has a max-load below a target: all chains, by ideals.

A contiguous split on devices in order is a chain of ideals (`ideals`). A set S of nodes costs a
device Σ p over S, and c_u for each node u of which some, not all, of u and its readers are in S;
if data is relayed, c_u for each end of the stage at which some, not all, of them are before it.

    reached[∅] = {0},
    reached[J] = { d + e_k : d ∈ reached[I], I ⊂ J, d_k < n_k, J ∖ I fits into a device of kind k
                   and costs it less than the target }

with d the numbers of devices used, by kind. The target is proved if no d reaches all nodes. Of
GPipe's objective, the largest forward plus the largest backward pass, the least largest backward
pass b is found among chains whose forward passes are below the target less the b before it, from
b = 0 on, until there is no such chain.

Times are whole parts of the target, rounded downwards, so that sums are exact and never too high.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....instances import Costs, Throughput, VerificationError, Workload, without_links
from ....instances.common.arrays import Floats, Ints
from ..rules import RELATIVE_SLACK
from .ideals import Ideals, ideals_of

#: Parts of the target: sums of 2^18 times that are no larger stay below 2^63.
PARTS = 1 << 44

#: Comparisons of a net with a stage at most, chains of GPipe that are left out one by one,
#: and numbers of devices used times ideals.
WORK, CHAINS, STATES = 40_000_000_000, 60, 100_000_000

#: Stages that are priced at once.
AT_ONCE = 4096

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
    chains = _Chains.of(workload, without_links(costs, returning=False), problem, target)
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
    raise VerificationError(f"more than {CHAINS} chains are close to the target")


@dataclass(frozen=True, eq=False)
class _Pass:
    """What a pass costs; of all passes together unless the objective is GPipe's.

    Parameters
    ----------
    compute, moved
        Shapes (K, N) and (K, E): of ideals, and for moving the output of nodes.
    crossed
        Shape (K, N): relayed data across the end of each ideal.
    """

    compute: Ints
    moved: Ints
    crossed: Ints


@dataclass(frozen=True, eq=False)
class _Chains:
    """Chains of ideals, in parts of the target; N ideals, K kinds of devices, E nets.

    Parameters
    ----------
    passes
        One, or the forward and the backward one.
    held, pins
        Shapes (N, E) and (E,): blocks of each net that an ideal holds, and that it has.
    used_bytes
        Shape (K, N): in parts of twice what a device of the kind has.
    least
        Shape (N,): compute on the fastest kind.
    """

    problem: Throughput
    ideals: Ideals
    count: Ints
    passes: tuple[_Pass, ...]
    held: NDArray[np.int32]
    pins: Ints
    used_bytes: Ints
    least: Ints

    @classmethod
    def of(cls, workload: Workload, costs: Costs, problem: Throughput, target: float) -> _Chains:
        kinds = np.flatnonzero(costs.count)
        ideals = ideals_of(workload, costs)
        compute = _parts(costs.compute[kinds], target)
        transfer = _parts(costs.transfer[kinds], target)
        room = costs.capacity_bytes[kinds, None] * (1 + RELATIVE_SLACK)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(costs.memory_bytes > 0, costs.memory_bytes / room, 0.0)
        backward, whole = workload.backward, np.ones(workload.n, np.bool_)
        passes = (~backward, backward) if problem.pipeline == "gpipe" else (whole,)
        nets: dict[frozenset[int], Ints] = {}  # what each pass pays for them, by kind
        for u, readers in enumerate(workload.successors):
            net = frozenset(ideals.block[[u, *readers]].tolist()) - {-1}
            if len(net) > 1:
                paid = nets.setdefault(net, np.zeros((len(passes), len(kinds)), np.int64))
                paid += [transfer[:, u] * own[u] for own in passes]
        held, pins = ideals.held(nets), np.array([len(net) for net in nets], np.int64)
        cut = (held > 0) & (held < pins)
        moved = np.array([*nets.values()]).reshape(len(nets), len(passes), len(kinds))
        return cls(
            problem,
            ideals,
            costs.count[kinds],
            tuple(
                _Pass(
                    _sums(ideals, compute * own),
                    moved[:, number].T,
                    np.array([cut @ of_kind for of_kind in moved[:, number].T]),
                )
                for number, own in enumerate(passes)
            ),
            held,
            pins,
            _sums(ideals, _parts(share, 2.0)),
            ideals.sums(compute.min(axis=0)),
        )

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
            looked += len(ends) * max(1, len(self.pins))
            if looked > WORK or len(least) * last > STATES:
                raise VerificationError("there are too many stages below the bound to look at all")
            for some in np.split(ends, range(AT_ONCE, len(ends), AT_ONCE)):
                for kind in range(len(self.count)):
                    end, own = self._priced(ideal, some, kind, forward)
                    for used, before in states:
                        if used[kind] < self.count[kind]:
                            then = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
                            of = least.setdefault(then, np.full(last + 1, NEVER))
                            of[end] = np.minimum(of[end], np.maximum(before, own))
        found = min(int(of[last]) for of in least.values())
        return found if found < NEVER else None

    def _priced(self, ideal: int, ends: Ints, kind: int, forward: int) -> tuple[Ints, Ints]:
        """Return the ends of stages that fit into a device and the limits, and backward passes."""
        limits = (forward, PARTS)
        fits = self.used_bytes[kind, ends] - self.used_bytes[kind, ideal] <= PARTS // 2
        for own, limit in zip(self.passes, limits, strict=False):
            fits &= own.compute[kind, ends] - own.compute[kind, ideal] < limit
        ends = ends[fits]
        open_ = np.flatnonzero(self.held[ideal] < self.pins)
        new = self.held[np.ix_(ends, open_)] - self.held[ideal, open_]
        torn = (new > 0) & (new < self.pins[open_])
        costs = []
        for own in self.passes:
            time = own.compute[kind, ends] - own.compute[kind, ideal]
            if self.problem.relayed:
                moved = own.crossed[kind, ends] + own.crossed[kind, ideal]
            else:
                moved = torn @ own.moved[kind, open_]
            costs.append(np.maximum(time, moved) if self.problem.overlap else time + moved)
        fits = np.all([cost < limit for cost, limit in zip(costs, limits, strict=False)], axis=0)
        backward = costs[1] if len(costs) > 1 else np.zeros(len(ends), np.int64)
        return ends[fits], backward[fits]


def _sums(ideals: Ideals, by_kind: Ints) -> Ints:
    return np.array([ideals.sums(of_kind) for of_kind in by_kind])


def _parts(values: Floats, target: float) -> Ints:
    """Return values in parts of the target, rounded downwards; those above it as the target."""
    parts: Ints = np.floor(np.minimum(values / target, 1.0) * PARTS).astype(np.int64)
    return parts


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
