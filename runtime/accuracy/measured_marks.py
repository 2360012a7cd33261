"""The marks of a recorded step, as those of simulations are."""

from __future__ import annotations

from ...instances.common.escape import plain
from ..pictures.marks import Bar, Marks, what_of
from ..schedules.actions import Action
from .join import Comparison


def measured_marks(comparison: Comparison) -> Marks:
    """Return what was done in the typical step; lanes are the devices in use, times in seconds."""
    step = comparison.typical_step
    run = comparison.simulation
    lane = {d: i for i, d in enumerate(run.used)}
    begin = min(done.start_s for done in comparison.recording.done(step))
    found = []
    seen = set()
    for rank in comparison.recording.ranks:
        for done in rank.actions:
            action = done.action
            where = lane[_device(comparison, rank.rank, action)]
            if done.step != step or (where, action) in seen:
                continue  # another copy of the whole pipeline did it too
            seen.add((where, action))
            found.append(
                Bar(
                    where,
                    what_of(action.kind),
                    str(action),
                    done.start_s - begin,
                    done.end_s - begin,
                    action.stage,
                    action.microbatch,
                )
            )
    names = tuple(plain(run.stages.devices[d]) for d in run.used)
    span = max((bar.end for bar in found), default=0.0)
    return Marks(names, len(names), tuple(sorted(found, key=_when)), span, "s")


def _when(bar: Bar) -> tuple[int, float]:
    return bar.lane, bar.start


def _device(comparison: Comparison, rank: int, action: Action) -> int:
    """Return the plan's device that did an action: the stage's only one, or the rank's."""
    devices = comparison.simulation.stages.replicas[action.stage]
    return rank if rank in devices[1:] else devices[0]
