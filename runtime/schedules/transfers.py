"""Transfers as actions of their own: what a device that cannot overlap does, spelled out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..simulate.stages import StageGraph
from .actions import Kind, Schedule


def with_transfers(schedule: Schedule, stages: StageGraph) -> Schedule:
    """Return the schedule with an action for every reception and every sending.

    A task receives just before it runs and sends just after, as it does implicitly.
    """
    receives = np.zeros((stages.count, 2), dtype=bool)
    sends = np.zeros((stages.count, 2), dtype=bool)
    for a, b in stages.edges.tolist():
        if stages.replicas[a // 2] != stages.replicas[b // 2]:
            sends[a // 2, a % 2] = True
            receives[b // 2, b % 2] = True
    tables = []
    for table in schedule.actions:
        stage, kind = table[:, 0], table[:, 1]
        back = (kind == Kind.B) | (kind == Kind.I)
        moves = back | (kind == Kind.F)
        side = back.astype(np.int64)
        before = np.flatnonzero(moves & receives[stage, side])
        after = np.flatnonzero(moves & sends[stage, side])
        parts = [
            (np.arange(len(table)), table[:, 1]),
            (before - 0.25, Kind.RECV_F + 2 * side[before]),
            (after + 0.25, Kind.SEND_F + 2 * side[after]),
        ]
        place = np.concatenate([at for at, _ in parts])
        rows = np.concatenate((table, table[before], table[after]))
        rows[:, 1] = np.concatenate([kinds for _, kinds in parts])
        tables.append(rows[np.argsort(place, kind="stable")])
    return replace(schedule, name=f"{schedule.name}, transfers listed", actions=tuple(tables))
