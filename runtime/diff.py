"""Comparison of two plans: devices that match, and nodes that moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..instances import InputError, NodeId
from ..instances.common.arrays import Ints
from ..instances.formats.outline import Outline

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class DeviceMatch:
    """Device of the first plan, and the one of the second with most of the same nodes."""

    first: str  # first, second: their names, empty where a plan has no counterpart
    second: str
    nodes: tuple[int, int]  # number of nodes in the first and in the second plan
    common: int  # number of nodes in both


@dataclass(frozen=True)
class PlanDiff:
    """Comparison of two plans of one workload."""

    first: Outline  # first, second: the plans
    second: Outline
    # devices of one kind, matched such that as many nodes as possible stay
    pairs: tuple[DeviceMatch, ...]
    # nodes that move: id, device in the first plan, and the match of that in the second plan, or
    # its own name if it has no match
    moved: tuple[tuple[NodeId, str, str], ...]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per pair of devices: names, numbers of nodes, nodes in common."""
        import pandas as pd

        rows = [(p.first, p.nodes[0], p.second, p.nodes[1], p.common) for p in self.pairs]
        return pd.DataFrame(rows, columns=["first", "nodes", "second", "nodes ", "common"])


def diff(first: Outline, second: Outline) -> PlanDiff:
    """Compare two plans of one workload; InputError for two workloads. O(nodes + devices³)."""
    if first.workload[1] != second.workload[1]:
        same = first.workload[0] == second.workload[0]
        raise InputError(
            f"diff: the first plan is for {first.workload[0]!r} (fingerprint "
            f"{first.workload[1][:12]}), the second for {second.workload[0]!r} "
            f"({second.workload[1][:12]}); compare plans of one workload"
            + (", made with the same --tied" if same else "")
        )
    common = _common(first, second)
    alike = np.array([[a[1] == b[1] for b in second.devices] for a in first.devices])
    # Pairs of unlike kinds complete the assignment, but are worth nothing and dropped.
    worth = 2 * np.where(alike, common * (1 + len(second.devices)), 0) + alike
    from scipy.optimize import linear_sum_assignment  # slow to import

    rows, columns = linear_sum_assignment(worth, maximize=True)
    partner = {int(a): int(b) for a, b in zip(rows, columns, strict=True) if alike[a, b]}
    pairs = []
    for a, (name, _, nodes) in enumerate(first.devices):
        b = partner.get(a)
        other = second.devices[b] if b is not None else ("", "", frozenset[NodeId]())
        shared = int(common[a, b]) if b is not None else 0
        pairs.append(DeviceMatch(name, other[0], (len(nodes), len(other[2])), shared))
    for b, (name, _, nodes) in enumerate(second.devices):
        if b not in partner.values():
            pairs.append(DeviceMatch("", name, (0, len(nodes)), 0))
    where = {v: b for b, (_, _, nodes) in enumerate(second.devices) for v in nodes}
    matched = {b: first.devices[a][0] for a, b in partner.items()}
    moved = [
        (v, name, matched.get(where[v], second.devices[where[v]][0]))
        for a, (name, _, nodes) in enumerate(first.devices)
        for v in nodes
        if where[v] != partner.get(a)
    ]
    return PlanDiff(first, second, tuple(pairs), tuple(sorted(moved, key=_natural)))


def _common(first: Outline, second: Outline) -> Ints:
    where = {v: b for b, (_, _, nodes) in enumerate(second.devices) for v in nodes}
    common = np.zeros((len(first.devices), len(second.devices)), dtype=np.int64)
    for a, (_, _, nodes) in enumerate(first.devices):
        for v in nodes:
            if v not in where:
                raise InputError(f"diff: node {v} is not in the second plan; it was changed")
            common[a, where[v]] += 1
    return common


def _natural(item: Sequence[NodeId]) -> tuple[bool, NodeId]:
    return isinstance(item[0], str), item[0]
