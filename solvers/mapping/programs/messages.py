"""Messages at a threshold, exactly: the program of `formulations.mapping.message_program`.

Only boundaries to which few pairs between blocks are admitted are in it; the others find their
pairs, as a rule, and without them it is a relaxation. Where no message can leave a component of the
admitted pairs, each component holds whole pipelines, one device per stage: then components are
solved one after the other, and what is known of one at some thresholds is kept for others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generic

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from ....formulations.linear import Linear
from ....formulations.mapping.bound import LowerBounds, fitting, pair_upper_bounds
from ....formulations.mapping.costs import MappingCosts
from ....formulations.mapping.message_program import MessageProgram, message_program
from ....instances.common.arrays import Bools, Floats, Ints
from ...core.highs import Outcome, run_highs
from ...core.search import S, Search
from ..parameters import COMPLETION_PAIRS, MESSAGE_HEURISTICS


class MessageTest(Generic[S]):
    """A test for `threshold_bound`, which keeps what it found at the least threshold with any.

    Parameters
    ----------
    block
        Shape (D,): as `find_blocks` returns it.
    most_pairs
        Admitted pairs between blocks, per device, up to which a boundary is in the program.
    seconds
        For one program; what is not decided by then counts as possible.

    Attributes
    ----------
    threshold, devices
        The least threshold at which messages are possible, and the devices of the stages in the
        program there; empty if none were found.
    """

    def __init__(self, search: Search[S], block: Ints, most_pairs: float, seconds: float) -> None:
        self._search = search
        self._block = block
        self._most_pairs = most_pairs
        self._seconds = seconds
        self._rng = np.random.default_rng(search.limits.seed)
        self._known: dict[bytes, _Pipelines] = {}
        self.threshold = np.inf
        self.devices: dict[int, Ints] = {}

    def __call__(
        self, costs: MappingCosts, lower_bounds: LowerBounds, threshold: float
    ) -> dict[int, Ints] | bool | None:
        """Return None where no mapping has its messages on the tight boundaries.

        Else devices by stage, others each time; empty if it is not decided; True if no boundary is
        tight.
        """
        bounds = pair_upper_bounds(costs, lower_bounds, threshold)
        fits = None if bounds is None else fitting(costs, lower_bounds, threshold)
        if bounds is None or fits is None:
            return None
        counted = np.flatnonzero(costs.boundary.any(axis=1)).tolist()
        admitted: dict[int, Bools] = {}
        for s in counted:
            able = costs.boundary_costs(s) <= bounds[0][s]
            able &= fits[s][:, None] & fits[s + 1][None, :]
            np.fill_diagonal(able, False)
            if self._crossing(able) <= self._most_pairs * costs.size:
                admitted[s] = able
        if not admitted:
            return True
        label: Ints = np.zeros(costs.size, np.int64)
        if len(admitted) == costs.stages - 1:
            graph = csr_array(np.any(list(admitted.values()), axis=0))
            label = connected_components(graph)[1].astype(np.int64)
        if label.any():
            found = self._in_pipelines(costs, admitted, fits, label, threshold)
        else:
            program = message_program(admitted, fits, self._block, costs.replicas)
            found = self._devices(program, self._run(program.linear))
        if found is None:
            return None
        if found and threshold <= self.threshold:
            self.threshold, self.devices = threshold, found
        return found

    def complete(self, costs: MappingCosts, lower_bounds: LowerBounds) -> Ints | None:
        """Return slots, (S, R), that keep the threshold's counts per block; None if none are found.

        Here all boundaries are in the program, dense ones with their cheapest pairs.
        """
        bounds = pair_upper_bounds(costs, lower_bounds, self.threshold)
        fits = fitting(costs, lower_bounds, self.threshold)
        if bounds is None or fits is None or not self.devices:
            return None
        counts = np.full((costs.stages, int(self._block.max()) + 1), costs.replicas)
        for s, row in self.devices.items():
            counts[s] = np.bincount(self._block[row], minlength=counts.shape[1])
        fits = fits & (counts[:, self._block] > 0)
        admitted = {}
        for s in np.flatnonzero(costs.boundary.any(axis=1)).tolist():
            pair_costs = costs.boundary_costs(s)
            able = (pair_costs <= bounds[0][s]) & fits[s][:, None] & fits[s + 1][None, :]
            np.fill_diagonal(able, False)
            admitted[s] = _cheapest(able, pair_costs, self._block)
        program = message_program(admitted, fits, self._block, costs.replicas, counts)
        found = self._devices(program, self._run(program.linear))
        if not found or len(found) < costs.stages:
            return None
        return np.array([found[s] for s in range(costs.stages)])

    def _crossing(self, able: Bools) -> int:
        """Pairs that are told apart, each direction counted."""
        if not self._block.any():
            return int(able.sum()) // 2
        return int((able & (self._block[:, None] != self._block[None, :])).sum()) // 2

    def _in_pipelines(
        self,
        costs: MappingCosts,
        admitted: dict[int, Bools],
        fits: Bools,
        label: Ints,
        threshold: float,
    ) -> dict[int, Ints] | None:
        """Place pipelines in components; None if they hold fewer than R in all."""
        groups = [np.flatnonzero(label == k) for k in range(int(label.max()) + 1)]
        groups = [group for group in groups if len(group) >= costs.stages]
        known = [
            self._known.setdefault(g.tobytes(), _Pipelines(len(g) // costs.stages)) for g in groups
        ]
        spare = sum(c.most(threshold) for c in known) - costs.replicas
        for k in np.argsort([-c.refuted for c in known], kind="stable").tolist():
            if spare < 0:
                return None
            pipelines, group = known[k], groups[k]
            before = pipelines.most(threshold)
            if before == pipelines.count(threshold) or self._search.should_stop():
                continue
            among = np.ix_(group, group)
            program = message_program(
                {s: able[among] for s, able in admitted.items()},
                fits[:, group],
                np.unique(self._block[group], return_inverse=True)[1],
                None,
            )
            outcome = self._run(program.linear, most=True)
            members = self._devices(program, outcome)
            if members:
                pipelines.found.append((threshold, {s: group[row] for s, row in members.items()}))
            if outcome.status == "infeasible":  # not even none: rows say that it cannot be
                pipelines.above.append((threshold, 0))
            elif np.isfinite(outcome.bound):
                pipelines.above.append((threshold, int(-outcome.bound + 1e-6)))
            spare -= before - pipelines.most(threshold)
        if spare < 0:
            return None
        slots: dict[int, list[int]] = {s: [] for s in range(costs.stages)}
        for pipelines in known:
            for s, row in pipelines.best(threshold).items():
                slots[s] += row.tolist()
        if min(map(len, slots.values())) < costs.replicas:
            return {}
        return {s: np.array(row[: costs.replicas]) for s, row in slots.items()}

    def _devices(self, program: MessageProgram, outcome: Outcome) -> dict[int, Ints] | None:
        """Devices by stage; None if there are none, empty if it is not known."""
        if outcome.status == "infeasible":
            return None
        found = None if outcome.x is None else program.members(outcome.x)
        return {} if found is None else found

    def _run(self, linear: Linear, *, most: bool = False) -> Outcome:
        """Solve for any solution, or for the most pipelines."""
        # without costs, or with many different ones, HiGHS finds its first solution later
        cost = self._rng.integers(0, 2, len(linear.cost)).astype(float)
        if most:
            cost[:] = 0.0
            cost[0] = -1.0
        return run_highs(
            replace(linear, cost=cost),
            self._search,
            on_incumbent=lambda _: not most,
            seconds=self._seconds,
            options={"mip_heuristic_effort": MESSAGE_HEURISTICS},
        )


def _cheapest(able: Bools, pair_costs: Floats, block: Ints) -> Bools:
    """Return the admitted pairs inside blocks, and between them the cheapest of each end."""
    across = able & (block[:, None] != block[None, :])
    if int(across.sum()) <= COMPLETION_PAIRS * len(block):
        return able
    value = np.where(across, pair_costs, np.inf)
    kept: Bools = able & ~across
    for axis in (0, 1):
        best = np.argpartition(value, COMPLETION_PAIRS, axis=axis).take(
            range(COMPLETION_PAIRS), axis=axis
        )
        chosen = np.zeros_like(kept)
        np.put_along_axis(chosen, best, True, axis=axis)
        kept |= chosen & across
    return kept


class _Pipelines:
    """Bounds on how many pipelines a component holds, at the thresholds tried."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.above: list[tuple[float, int]] = []
        self.found: list[tuple[float, dict[int, Ints]]] = []

    @property
    def refuted(self) -> float:
        """The largest threshold at which it was not full."""
        return max((t for t, count in self.above if count < self._most), default=0.0)

    def most(self, threshold: float) -> int:
        """Upper bound at a threshold."""
        return min((n for t, n in self.above if t >= threshold), default=self._most)

    def best(self, threshold: float) -> dict[int, Ints]:
        """Most pipelines found so far that fit a threshold: devices by stage."""
        fitting_ = [members for t, members in self.found if t <= threshold]
        return max(fitting_, key=lambda members: len(members[0]), default={})

    def count(self, threshold: float) -> int:
        """Lower bound at a threshold."""
        best = self.best(threshold)
        return len(best[0]) if best else 0
