"""Placement rules for the stages of a pipeline, by units: pins to stages, and units apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...instances import Workload
from ...instances.common.arrays import Bools, Ints
from ...instances.model.placement_rules import PlacementRules
from .groups import DeviceGroups, Pin, groups_of

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, eq=False)
class StageRules:
    """Placement rules for the stages of a pipeline, by units."""

    workload: Workload  # workload of the nodes
    unit_of: Ints  # (n,): unit of each node
    # edges between units, the first of which must not be in a later stage than the second
    ahead: nx.DiGraph[int]
    pins: tuple[Pin, ...]  # the pins of units
    # pairs of nodes whose units share no device, with the rule
    apart: tuple[tuple[int, int, str], ...]
    # returns, for a number of stages, the device of each
    devices_of: Callable[[int], Sequence[int]]
    group_of: Ints  # (n,): nodes of one group share a device

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return bool(self.pins or self.apart)

    @property
    def units_apart(self) -> list[tuple[int, int]]:
        """Pairs of units that share no device."""
        of = self.unit_of
        return sorted({(int(of[u]), int(of[v])) for u, v, _ in self.apart})

    @property
    def named(self) -> Bools:
        """Shape (U,): whether a rule concerns the unit."""
        found = np.zeros(int(self.unit_of.max()) + 1, np.bool_)
        found[self.unit_of[[pin.node for pin in self.pins]]] = True
        found[[u for pair in self.units_apart for u in pair]] = True
        return found

    def stages(self, size: int) -> dict[int, int]:
        """Return the stage of each pinned unit, in a pipeline of `size` stages."""
        return {
            int(self.unit_of[pin.node]): pin.number + (size if pin.number < 0 else 0)
            for pin in self.pins
        }

    def why_not(self, size: int) -> str | None:
        """Return a line on rules that contradict each other with `size` stages; None if none do."""
        import networkx as nx

        stage, by_unit = self.stages(size), {int(self.unit_of[p.node]): p for p in self.pins}
        for pin in self.pins:
            unit = int(self.unit_of[pin.node])
            own = pin.number + (size if pin.number < 0 else 0)
            if not 0 <= own < size:
                return f"{pin.rule}: there can be only {size} stages; take another, or fewer rules"
            if own != stage[unit]:
                other = by_unit[unit]
                return (
                    f"{self._together(pin.node, other.node)}, so {pin.rule} and {other.rule} "
                    "cannot hold"
                )
        device = self.devices_of(size)
        for u, v, rule in self.apart:
            a, b = int(self.unit_of[u]), int(self.unit_of[v])
            if a == b:
                return f"{rule} cannot hold: {self._together(u, v)}"
            if {a, b} <= stage.keys() and device[stage[a]] == device[stage[b]]:
                return f"{by_unit[a].rule}, {by_unit[b].rule} and {rule} contradict each other"
        for unit, pin in by_unit.items():
            for behind in nx.descendants(self.ahead, unit) & stage.keys():
                if stage[behind] < stage[unit]:
                    other = by_unit[behind]
                    return (
                        f"{self._order(pin.node, other.node)}, so {pin.rule} and {other.rule} "
                        "cannot hold"
                    )
        return None

    def _order(self, u: int, v: int) -> str:
        ids, back = self.workload.ids, self.workload.backward
        return f"{ids[u]} {'comes before' if back[u] or back[v] else 'feeds'} {ids[v]}"

    def _together(self, u: int, v: int) -> str:
        ids = self.workload.ids
        return f"nodes {ids[u]} and {ids[v]} share a stage in every contiguous split"


def stage_rules(
    workload: Workload,
    rules: PlacementRules,
    unit_of: Ints,
    edges: Ints,
    *,
    devices_of: Callable[[int], Sequence[int]] = range,
    coloured: bool = True,
) -> StageRules:
    """Return the rules for the stages of a pipeline.

    Of each edge between units the first must not be in a later stage than the second. `devices_of`
    returns, for a number of stages, the device of each. Nodes of a colour share a device if
    `coloured`. Errors are those of `groups_of`.
    """
    import networkx as nx

    ahead: nx.DiGraph[int] = nx.DiGraph()
    ahead.add_nodes_from(range(int(unit_of.max()) + 1))
    ahead.add_edges_from(edges.tolist())
    groups: DeviceGroups = groups_of(workload, rules, coloured=coloured)
    first = {g: v for v, g in reversed(list(enumerate(groups.group_of.tolist())))}
    pins = tuple(pin for own in groups.pins for pin in own)
    apart = tuple((first[g], first[h], rule) for (g, h), rule in groups.apart.items())
    return StageRules(workload, unit_of, ahead, pins, apart, devices_of, groups.group_of)
