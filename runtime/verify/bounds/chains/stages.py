"""What stages of a chain cost a device, in whole parts of a target.

A set S of nodes costs a device Σ p over S, and c_u for each node u of which some, not all, of u and
its readers are in S; if data is relayed, c_u for each end of the stage at which some, not all, of
them are before it. Parts are rounded downwards, so that sums are exact and never too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .....instances import Costs
from .....instances.common.arrays import Bools, Floats, Ints
from ...rules import RELATIVE_SLACK
from ..bound_check import too_much
from .ideals import Ideals

#: Parts of the target: sums of 2^18 times that are no larger stay below 2^63.
PARTS = 1 << 44

#: Ideals times nets, and comparisons of a net with a stage, at most; stages priced at once.
CELLS, WORK, AT_ONCE = 100_000_000, 40_000_000_000, 4096


@dataclass(frozen=True, eq=False)
class Stages:
    """Stages between ideals; N ideals, K kinds that have devices, E nets, some passes.

    Parameters
    ----------
    compute, crossed
        For each pass, shape (K, N): of the ideals, and what relayed data costs at their ends;
        the latter () if none is.
    moved
        For each pass, shape (K, E): of the nets.
    held, pins
        Shapes (N, E) and (E,): blocks of each net that an ideal holds, and that it has.
    """

    compute: tuple[Ints, ...]
    crossed: tuple[Ints, ...]
    moved: tuple[Ints, ...]
    held: NDArray[np.int32]
    pins: Ints

    @classmethod
    def of(
        cls,
        costs: Costs,
        ideals: Ideals,
        target: float,
        passes: Sequence[Bools],
        readers: Sequence[Sequence[int]],
        *,
        relayed: bool,
    ) -> Stages:
        """Price stages.

        Parameters
        ----------
        costs
            Without links between devices.
        target
            Above 0 and finite; what takes longer counts as that.
        passes
            Shape (n,) each: nodes of the pass, which pays for what they make.
        readers
            Of each node, those that count.
        relayed
            Whether data moves only from a stage to the next.

        Raises
        ------
        VerificationError
            If there are too many ideals and nets for tables of both.
        """
        kinds = np.flatnonzero(costs.count)
        compute = parts(costs.compute[kinds], target)
        transfer = parts(costs.transfer[kinds], target)
        nets: dict[frozenset[int], Ints] = {}  # what each pass pays for them, by kind
        for u, others in enumerate(readers):
            net = frozenset(ideals.block[[u, *others]].tolist()) - {-1}
            if len(net) > 1:
                paid = nets.setdefault(net, np.zeros((len(passes), len(kinds)), np.int64))
                paid += [transfer[:, u] * own[u] for own in passes]
        if len(ideals.members) * len(nets) > CELLS:
            raise too_much(f"there are {len(ideals.members)} ideals and {len(nets)} nets")
        held, pins = ideals.held(nets), np.array([len(net) for net in nets], np.int64)
        by_net = np.array([*nets.values()], np.int64).reshape(len(nets), len(passes), len(kinds))
        moved = tuple(by_net[:, number].T.copy() for number in range(len(passes)))
        sums = tuple(np.array([ideals.sums(kind * own) for kind in compute]) for own in passes)
        crossed: tuple[Ints, ...] = ()
        if relayed:
            cut = (held > 0) & (held < pins)
            crossed = tuple(np.array([cut @ kind for kind in own]) for own in moved)
        return cls(sums, crossed, moved, held, pins)

    def time(self, number: int, kind: int, ideal: int, ends: Ints) -> Ints:
        """Return the compute of a pass of the stages from an ideal to some others."""
        own = self.compute[number][kind]
        time: Ints = own[ends] - own[ideal]
        return time

    def transfers(self, kind: int, ideal: int, ends: Ints) -> list[Ints]:
        """Return what the stages from an ideal to some others move, by pass."""
        if self.crossed:
            return [own[kind, ends] + own[kind, ideal] for own in self.crossed]
        open_ = np.flatnonzero(self.held[ideal] < self.pins)
        found = [np.empty(len(ends), np.int64) for _ in self.moved]
        for begin in range(0, len(ends), AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
            new = self.held[np.ix_(ends[some], open_)] - self.held[ideal, open_]
            torn = (new > 0) & (new < self.pins[open_])
            for of_pass, own in zip(found, self.moved, strict=True):
                of_pass[some] = torn @ own[kind, open_]
        return found


def bytes_in_parts(values: Floats, costs: Costs) -> Ints:
    """Return bytes in parts of twice what a device has, by kind that has devices."""
    room = costs.capacity_bytes[costs.count > 0, None] * (1 + RELATIVE_SLACK)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return parts(np.where(values > 0, values / room, 0.0), 2.0)


def parts(values: Floats, target: float) -> Ints:
    """Return values in parts of the target, rounded downwards; those above it as the target."""
    with np.errstate(over="ignore"):
        whole: Ints = np.floor(np.minimum(values / target, 1.0) * PARTS).astype(np.int64)
    return whole
