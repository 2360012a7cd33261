"""A recorded step as boxes on lanes, as pictures and traces show simulations."""

from __future__ import annotations

from ..pictures.timeline import Box, what_of
from ..schedules.actions import Action
from .join import Comparison


def measured_boxes(comparison: Comparison) -> list[Box]:
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
                Box(
                    where,
                    what_of(action.kind),
                    str(action),
                    action.stage,
                    action.microbatch,
                    done.start_s - begin,
                    done.end_s - begin,
                )
            )
    return found


def _device(comparison: Comparison, rank: int, action: Action) -> int:
    """Return the plan's device that did an action: the stage's only one, or the rank's."""
    devices = comparison.simulation.stages.replicas[action.stage]
    return rank if rank in devices[1:] else devices[0]
