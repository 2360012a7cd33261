"""The marks of a recorded step, as those of simulations are."""

from __future__ import annotations

from ...instances.common.escape import plain
from ..pictures.marks import Bar, Marks, what_of
from .join import COMPUTES, Comparison


def measured_marks(comparison: Comparison) -> Marks:
    """Return what was done in the typical step; lanes are the devices in use, times in seconds."""
    step = comparison.typical_step
    run = comparison.simulation
    lane = {d: i for i, d in enumerate(run.used)}
    begin = min(done.start_s for done in comparison.recording.done(step))
    found = []
    seen = set()
    for rank in comparison.recording.ranks:
        did = [done.action for done in rank.actions if done.action.kind in COMPUTES]
        if not did:
            continue
        ring = run.stages.replicas[did[0].stage]
        where = lane[ring[did[0].microbatch % len(ring)]]
        for done in rank.actions:
            action = done.action
            if done.step != step or (where, action) in seen:
                continue  # another device of the replica did it too
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
