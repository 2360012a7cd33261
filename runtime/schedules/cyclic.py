"""Asynchronous pipelines for any plan: every device repeats one round of work and never waits.

Let T be the max-load. Give every device d its tasks in a fixed order, one after the other, within
a period of length T that begins at a phase x_d. Task τ of a sample then starts at

    σ_τ = x_d + k_τ·T + position of τ in the period,

with the least whole k_τ for which σ_τ is not before the end of every task that τ waits for.
Sample j follows j·T later. Nothing ever collides, so the period T is reached, whatever the graph
and however often work comes back to a device; k says how many samples are in flight. Phases are
chosen so that the first task on a device starts as soon as it can: for a chain of equal stages
this is 1F1B itself.

A stage of R replicas takes every R-th sample; then L samples, L the least common multiple, are
treated as one.
"""

from __future__ import annotations

import math

import numpy as np

from ..pieces import BACKWARD, FORWARD, Stages
from .actions import Kind, Schedule, Versions
from .patterns import Slot, _forward_only, held, rounds

#: Slack in units of the period for rounding of sums.
SLACK = 1e-12


def pipedream(stages: Stages, microbatches: int) -> Schedule:
    """PipeDream's asynchronous pipeline: no flush, one weight version per sample in flight."""
    return asynchronous(stages, microbatches, "pipedream", "in flight")


def pipedream_2bw(stages: Stages, microbatches: int) -> Schedule:
    """PipeDream-2BW: the same order, gradients accumulated, two weight versions."""
    return asynchronous(stages, microbatches, "2bw", "two")


def inference(stages: Stages, microbatches: int) -> Schedule:
    """Pipelined inference: a stream of samples, forward only."""
    _forward_only(stages, "inference")
    return asynchronous(stages, microbatches, "inference", "one")


def asynchronous(stages: Stages, microbatches: int, name: str, versions: Versions) -> Schedule:
    """Return the cyclic schedule of the module's description.

    References
    ----------
    [ours] After modulo scheduling in compilers: Rau, "Iterative modulo scheduling", MICRO 1994.
    """
    repeat = math.lcm(*(len(devices) for devices in stages.replicas))
    period = float(stages.load.max()) * repeat
    tasks = [t for t in np.argsort(stages.rank, kind="stable").tolist() if stages.present.flat[t]]
    copies = [(t, c) for t in tasks for c in range(repeat)]
    duration = {t: float(stages.duration.flat[t]) for t in tasks}
    before: dict[int, list[int]] = {t: [] for t in tasks}
    for a, b in stages.edges.tolist():
        before[b].append(a)

    position: dict[tuple[int, int], float] = {}
    filled = np.zeros(len(stages.devices))
    for t, c in copies:
        d = stages.replicas[t // 2][c % len(stages.replicas[t // 2])]
        position[t, c] = float(filled[d])
        filled[d] += duration[t]
    phase: dict[int, float] = {}
    end: dict[tuple[int, int], float] = {}
    number: dict[tuple[int, int], int] = {}
    for t, c in copies:
        d = stages.replicas[t // 2][c % len(stages.replicas[t // 2])]
        ready = max((end[a, c] for a in before[t]), default=0.0)
        if d not in phase:
            phase[d] = (ready - position[t, c]) % period if period > 0 else 0.0
        offset = phase[d] + position[t, c]
        k = math.ceil((ready - offset) / period - SLACK) if period > 0 else 0
        number[t, c] = k
        end[t, c] = offset + k * period + duration[t]

    order = {copy: i for i, copy in enumerate(copies)}
    tables = []
    for own in held(stages):
        slots = []
        for stage, r in own:
            number_of_replicas = len(stages.replicas[stage])
            for side, kind in ((FORWARD, Kind.F), (BACKWARD, Kind.B)):
                t = 2 * stage + side
                if stages.present[stage, side]:
                    slots += [
                        Slot(stage, kind, number[t, c], order[t, c], c, repeat)
                        for c in range(r, repeat, number_of_replicas)
                    ]
        tables.append(rounds(slots, microbatches))
    depth = (max(number.values()) - min(number.values()) + 1) * repeat
    return Schedule(name, microbatches, tuple(tables), versions=versions, depth=depth)
